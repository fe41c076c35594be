// Runs one pass: from planned rows to the tokens they yield. Owns the buffers a pass needs, made once;
// decides nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "drafters/pass_drafter.h"
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

/// What a pass leaves of a sequence's drafted rows.
struct AcceptedRows {
  int64_t first_row = 0;  ///< Of the sequence's rows in the pass: where the branch begins that was right.
  /// Its drafted rows that count: of a chain the right guesses, of branches the row of the last known token
  /// too.
  int64_t num_rows = 0;
};

/// The passes of one engine. Engine thread only.
class PassRunner {
 public:
  struct Limits {
    int64_t max_rows = 0;                      ///< Of a pass.
    int64_t max_logit_rows = 0;                ///< Rows of a pass from which a token is drawn.
    bool keeps_hidden = false;                 ///< For a drafter that reads them.
    std::span<const int32_t> tap_layers = {};  ///< For a drafter that reads residual streams.
    int64_t scratch_bytes = 0;                 ///< At least; for who else uses scratch().
  };
  /// Allocates scratch and logits. kOutOfMemory names what did not fit. `model`, `pool` and `slots`
  /// must outlive the runner.
  static Result<std::unique_ptr<PassRunner>> create(const LoadedModel& model, KvPagePool& pool,
                                                    StateSlotPool& slots, const Limits& limits);

  /// Computes the planned rows and draws a token from the last known row of each entry that wants logits, and
  /// from the row of each guess of its draft as if that and what it follows were right; commits nothing.
  /// Those are the pass's logit rows, in the order of the draft. An error is a fault of the backend: none of
  /// the rows may be used.
  Status run(std::span<const PlannedRows> planned);

  /// The token of the i-th logit row; -1 where its logits admit none. Until the next run().
  int32_t token(int64_t i) const { return drawn_[static_cast<size_t>(i)]; }

  /// A host copy of the logits of the i-th logit row, of the tokens that can be drawn. Until the next call or
  /// run().
  Result<std::span<const float>> logits(int64_t i);

  /// What the last run() left for a drafter. Until the next one.
  ModelRows model_rows() const { return model_rows_; }

  /// Free between run() and commit() of this and others.
  Arena scratch() const { return Arena(scratch_.data(), scratch_.size_bytes()); }

  /// Takes accepted[i] of the i-th entry of the last run() into its recurrent state; no rows for sequences
  /// that have ended. An error is a fault of the backend: none of those with accepted rows may go on.
  Status commit(std::span<const PlannedRows> planned, std::span<const AcceptedRows> accepted);

 private:
  PassRunner(const LoadedModel& model, KvPagePool& pool, StateSlotPool& slots);
  /// One run of rows with a page table: the known tokens of an entry, then guesses.
  struct RowRun {
    const PlannedRows& rows;
    std::span<const int32_t> guesses;
    const int32_t* page_table = nullptr;
    int64_t num_drafted = 0;  ///< Its last rows.
    int64_t first_logit =
        0;  ///< The first of its rows from which a token is drawn, if the entry wants logits.
  };
  Outputs outputs();
  void lay_out(std::span<const PlannedRows> planned);
  void lay_out(const RowRun& run);

  const LoadedModel& model_;
  KvPagePool& pool_;
  StateSlotPool& slots_;
  Buffer scratch_;  ///< Model::scratch_bytes(max_rows).
  Buffer logits_;   ///< [max_logit_rows, V] f32.
  Buffer hidden_;   ///< [max_rows, E] f32, with Limits::keeps_hidden.
  Buffer taps_;     ///< [max_rows, n*E] activation dtype, with Limits::tap_layers.
  std::vector<int32_t> tap_layers_;
  std::vector<int32_t> all_rows_;  ///< 0, 1, ..., as far as a pass has had rows.
  ModelRows model_rows_;

  // The pass being run, [T] or per sequence; kept between passes so that none of it is allocated again.
  std::vector<int32_t> tokens_;
  std::vector<int32_t> positions_;
  std::vector<SequenceRows> sequences_;
  std::vector<int32_t> logit_rows_;
  std::vector<int32_t> drafted_rows_;
  std::vector<SampleRow> sample_rows_;
  std::vector<int32_t> drawn_;
  std::vector<float> host_logits_;  ///< [V].
};

}  // namespace tensorfold
