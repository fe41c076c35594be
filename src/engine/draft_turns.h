// The turns of an engine's PassDrafter: from sequences to the tasks it takes, over its own layers of the
// pages and slots. When and how deep is decided in verify.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "drafters/pass_drafter.h"
#include "engine/kv_pages.h"
#include "engine/sequence.h"
#include "engine/state_slots.h"

namespace tensorfold {

/// Engine thread only.
class DraftTurns {
 public:
  /// `drafter` is prepared; its layers are the last of `pool` and `slots`, which outlive this.
  DraftTurns(std::unique_ptr<PassDrafter> drafter, const KvPagePool& pool, const StateSlotPool& slots);

  const PassDrafter& drafter() const { return *drafter_; }

  struct Entry {
    Sequence* sequence = nullptr;
    int64_t max_tokens = 0;    ///< Guesses.
    int64_t max_depth = 0;     ///< Of them, those that follow each other; the sequence has pages for so many.
    int64_t num_catch_up = 0;  ///< As DraftTask.
    Draft draft = {};          ///< Out.
  };

  /// Positions of a sequence that the drafter does not have, but for the last known one, whose row gives the
  /// first guess. Of a drafter that does not follow the model.
  static int64_t num_missing(const Sequence& sequence) {
    return sequence.num_tokens() - 1 - sequence.drafts.computed.num_absorbed;
  }

  /// Shows the drafter what is new of each sequence, and takes its guesses. An error is a fault of the
  /// backend.
  Status run(std::span<Entry> entries, const ModelRows& model_rows, Arena scratch);

 private:
  std::unique_ptr<PassDrafter> drafter_;
  State state_;
  std::vector<DraftTask> tasks_;
  std::vector<SampleRow> sampling_;  ///< Of all tasks.
};

}  // namespace tensorfold
