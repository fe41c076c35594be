// Which drafted tokens a pass verifies, and what came of them: asks the drafters, chooses by the policy of
// drafters/policy.h, and counts. Rows are computed in pass.cc and tokens accepted in engine.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "drafters/policy.h"
#include "engine/draft_turns.h"
#include "engine/pass.h"
#include "engine/scheduler.h"

namespace tensorfold {

/// The drafts of one engine. Engine thread only.
class Verifier {
 public:
  struct Options {
    int64_t max_tokens = 0;                ///< Of a sequence in a pass.
    int64_t max_turn_rows = 0;             ///< Positions that a turn takes in, of all sequences.
    bool is_measured = true;               ///< Drafts what is measured to pay; else whatever is proposed.
    std::vector<int32_t> end_tokens = {};  ///< That end a reply, where the request lets them.
  };
  /// `turns` may be null. `scheduler` outlives this.
  Verifier(Options options, Scheduler& scheduler, std::unique_ptr<DraftTurns> turns)
      : options_(std::move(options)), scheduler_(scheduler), turns_(std::move(turns)) {}

  /// Name of the drafter that computes guesses; empty where there is none, or it has failed.
  std::string_view computing() const { return turns_ != nullptr ? turns_->drafter().name() : ""; }

  /// What guesses that are computed were like lately: what a new request begins with.
  const GuessRate& typical_chance() const { return typical_chance_; }

  /// Fills Sequence::drafts.draft of the planned sequences that decode: at most as many tokens in all as the
  /// pass has room for. `model_rows` are those of the pass before. Fails only where the device fails to clear
  /// a page; a drafter that fails is not asked again.
  Status propose(std::span<const PlannedRows> planned, const ModelRows& model_rows, Arena scratch);

  /// The pass of these rows took so long, and SequenceDrafts says what it accepted. Updates drafters, policy
  /// and usage; the drafts are then empty.
  void finish_pass(std::span<const PlannedRows> planned, std::span<const AcceptedRows> accepted,
                   double pass_ms);

 private:
  /// The pass without its drafted rows.
  struct KnownRows {
    int64_t num_rows = 0;
    int64_t num_sequences = 0;  ///< That get a token.
    bool only_decodes = true;   ///< No prompt rows.
  };
  int64_t most_tokens(const Sequence& sequence) const;
  bool is_allowed(const Sequence& sequence, DraftSource source) const;
  void search(Sequence& sequence);
  bool wants_computed(Sequence& sequence) const;
  int64_t choose_turn_depth(std::span<const PlannedRows> planned, bool must_catch_up);
  int64_t usual_rows() const;
  bool must_catch_up(const Sequence& sequence) const;
  void catch_up(Arena scratch);
  Status add_turn_entry(Sequence& sequence, int64_t depth);
  Status compute(std::span<const PlannedRows> planned, const ModelRows& model_rows, Arena scratch);
  std::optional<double> run_turn(const ModelRows& model_rows, Arena scratch);
  void take_computed(double turn_ms);
  void cut_at_end(Sequence& sequence);
  void choose();
  void keep_rows(std::span<const PlannedRows> planned, std::span<const AcceptedRows> accepted);
  void learn(const PlannedRows& rows);

  Options options_;
  Scheduler& scheduler_;
  std::unique_ptr<DraftTurns> turns_;
  PassCosts costs_;
  PassCosts turn_costs_;  ///< By 1 + tokens computed for each sequence.
  /// By positions that a turn has caught up on: found out anew now and then, but that costs.
  PassCosts catch_up_costs_ = PassCosts(2048);
  GuessRate typical_chance_ = ComputedDrafts().chance;  ///< Of the guesses of all requests.
  CatchUpBudget catch_up_budget_;                       ///< Of a drafter that does not follow the model.
  KnownRows known_;
  bool is_usual_turn_ = true;  ///< No entry of it has more to take in than passes of guesses leave.
  int64_t turn_room_ = 0;      ///< Guesses that the turn may still compute.
  int64_t tree_tokens_ = 0;    ///< Guesses of a sequence in it, where that is more than follow each other.
  int64_t max_rows_ = 0;       ///< Guesses that the pass has room for.
  std::vector<DraftTurns::Entry> entries_;  ///< Of the turn before this pass.
  std::vector<Sequence*> asked_;            ///< Sequences with a proposal for this pass.
  std::vector<DraftChoice> choices_;        ///< Of each in asked_.
  std::vector<double> gains_;               ///< Of all choices.
  std::vector<int32_t> added_rows_;         ///< Likewise: DraftChoice::rows.
  std::vector<double> chances_;             ///< Scratch of choose_turn_depth().
  std::vector<bool> is_right_;              ///< Scratch of learn(), by guess.
  std::vector<bool> may_follow_;            ///< Scratch of cut_at_end(), by guess.
  std::vector<int32_t> counting_;           ///< Likewise: guesses that count.
};

}  // namespace tensorfold
