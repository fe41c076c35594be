// Which drafted tokens a pass verifies, and what came of them: asks the drafters, chooses by the policy of
// drafters/policy.h, and counts. Rows are computed in pass.cc and tokens accepted in engine.cc.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "drafters/policy.h"
#include "engine/scheduler.h"

namespace tensorfold {

/// The drafts of one engine. Engine thread only.
class Verifier {
 public:
  struct Options {
    int64_t max_tokens = 0;   ///< Of a sequence in a pass.
    bool is_measured = true;  ///< Drafts what is measured to pay; else whatever is proposed.
  };
  explicit Verifier(const Options& options) : options_(options) {}

  /// Fills Sequence::drafts.draft of the planned sequences that decode: at most max_rows tokens in all.
  void propose(std::span<const PlannedRows> planned, int64_t max_rows);

  /// The pass of these rows took so long, and SequenceDrafts says what it accepted. Updates drafters, policy
  /// and usage; the drafts are then empty.
  void finish_pass(std::span<const PlannedRows> planned, double pass_ms);

 private:
  /// The pass without its drafted rows.
  struct KnownRows {
    int64_t num_rows = 0;
    int64_t num_sequences = 0;  ///< That get a token.
    bool only_decodes = true;   ///< No prompt rows.
  };
  void ask(Sequence& sequence, int64_t max_rows);
  void choose(int64_t max_rows);

  Options options_;
  PassCosts costs_;
  KnownRows known_;
  std::vector<Sequence*> asked_;      ///< Sequences with a proposal for this pass.
  std::vector<DraftChoice> choices_;  ///< Of each in asked_.
};

}  // namespace tensorfold
