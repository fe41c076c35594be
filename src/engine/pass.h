// Runs one pass: from planned rows to the tokens they yield. Owns the buffers a pass needs, made once;
// decides nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "engine/engine.h"
#include "engine/kv_pages.h"
#include "engine/loaded_model.h"
#include "engine/scheduler.h"
#include "engine/state_slots.h"

namespace tensorfold {

/// Sees what decides each generated token; how the exactness matrix compares logits. Called on the engine's
/// thread once a pass is complete and its rows are known to be good, in the order of the rows.
class PassObserver {
 public:
  virtual ~PassObserver() = default;

  /// Request `id` drew `token` for absolute position `pos` from `logits` [V], which is gone after the call.
  virtual void on_token(RequestId id, int64_t pos, int32_t token, std::span<const float> logits) = 0;
};

/// The passes of one engine. Engine thread only.
class PassRunner {
 public:
  struct Limits {
    int64_t max_rows = 0;        ///< Of a pass.
    int64_t max_logit_rows = 0;  ///< Rows of a pass that yield a token.
  };
  /// Allocates scratch and logits. kOutOfMemory names what did not fit. `model`, `pool` and `slots`
  /// must outlive the runner.
  static Result<std::unique_ptr<PassRunner>> create(const LoadedModel& model, KvPagePool& pool,
                                                    StateSlotPool& slots, const Limits& limits);

  /// Computes the planned rows and draws a token from each entry that wants logits; commits nothing. An error
  /// is a fault of the backend: none of the rows may be used.
  Status run(std::span<const PlannedRows> planned);

  /// The token of the i-th entry that wanted logits; -1 where its logits admit none. Until the next run().
  int32_t token(int64_t i) const { return drawn_[static_cast<size_t>(i)]; }

  /// A host copy of the logits of the i-th entry that wanted them, of the tokens that can be drawn. Until the
  /// next call or run().
  Result<std::span<const float>> logits(int64_t i);

 private:
  PassRunner(const LoadedModel& model, KvPagePool& pool, StateSlotPool& slots);
  void lay_out(std::span<const PlannedRows> planned);

  const LoadedModel& model_;
  KvPagePool& pool_;
  StateSlotPool& slots_;
  Buffer scratch_;  ///< Model::scratch_bytes(max_rows).
  Buffer logits_;   ///< [max_logit_rows, V] f32.

  // The pass being run, [T] or per sequence; kept between passes so that none of it is allocated again.
  std::vector<int32_t> tokens_;
  std::vector<int32_t> positions_;
  std::vector<SequenceRows> sequences_;
  std::vector<int32_t> logit_rows_;
  std::vector<SampleRow> sample_rows_;
  std::vector<int32_t> drawn_;
  std::vector<float> host_logits_;  ///< [V].
};

}  // namespace tensorfold
