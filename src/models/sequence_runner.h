// One sequence through a model, without an engine: for evaluation and tests. Its rows have the bits that the
// engine's have (arithmetic.md, "The rule"); it owns the KV memory, scratch and logits that the engine would.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "memory/weights.h"
#include "models/model.h"
#include "ops/ops.h"

namespace tensorfold {

/// A model ready to run: none is owned.
struct RunnableModel {
  const Model& model;
  Ops& ops;
  Weights& weights;
};

/// Positions from 0 on, appended in passes. One thread.
class SequenceRunner {
 public:
  struct Limits {
    int64_t max_tokens = 0;                ///< Of the sequence.
    int64_t max_rows = 0;                  ///< Of one append().
    bool with_hidden = false;              ///< append() also computes hidden().
    std::vector<int32_t> tap_layers = {};  ///< append() also computes taps(), after these layers.
  };
  /// Allocates for the limits; kOutOfMemory names what did not fit. What `runnable` refers to must outlive
  /// it.
  static Result<std::unique_ptr<SequenceRunner>> create(const RunnableModel& runnable, const Limits& limits);

  /// Runs the next tokens and returns host logits [R, V] of the rows named (ascending, counted within this
  /// call), which are valid until the next call. Tokens beyond the vocabulary and beyond the limits are
  /// kInvalidArgument.
  Result<std::span<const float>> append(std::span<const int32_t> tokens, std::span<const int32_t> logit_rows);

  /// [T, E] f32 on the device: Outputs::hidden of the last append()'s rows, valid until the next.
  View hidden() const { return hidden_; }

  /// [T, n*E] activation dtype on the device: Outputs::taps of all rows of the last append(), valid until the
  /// next.
  View taps() const { return taps_; }

  int64_t num_tokens() const { return num_tokens_; }

  /// Back to an empty sequence.
  Status reset();

 private:
  SequenceRunner(const RunnableModel& runnable, Limits limits)
      : runnable_(runnable), limits_(std::move(limits)) {}
  Status allocate();
  Status allocate_states();

  RunnableModel runnable_;
  Limits limits_;
  Buffer kv_;           ///< Layer by layer: all key pages, then all value pages.
  Buffer states_;       ///< Layer by layer: convolution rows, matrices.
  Buffer scratch_;      ///< Model::scratch_bytes(max_rows).
  Buffer logits_;       ///< [max_rows, V] f32.
  Buffer hidden_rows_;  ///< [max_rows, E] f32, with_hidden.
  View hidden_;
  Buffer tap_rows_;  ///< [max_rows, n*E] activation dtype, tap_layers.
  View taps_;
  std::vector<KvPages> kv_layers_;
  std::vector<RecurrentStates> recurrent_layers_;
  std::vector<int32_t> page_table_;  ///< The identity: the sequence has all pages.
  std::vector<float> host_logits_;
  int64_t num_tokens_ = 0;
};

}  // namespace tensorfold
