// How many drafted rows a pass should verify: as many as are expected to raise tokens per millisecond, from
// what passes of each size have taken and how often each kind of proposal was right. Changes speed only.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "drafters/drafter.h"

namespace tensorfold {

/// What passes take, by their number of rows: measured where there was one, interpolated elsewhere. One
/// thread.
class PassCosts {
 public:
  /// What was not seen for stale_passes passes is forgotten.
  explicit PassCosts(int64_t stale_passes = 512) : stale_passes_(stale_passes) {}

  /// A pass of decoding and drafted rows took so long. Single outliers weigh little; a size that was not seen
  /// for long is forgotten, so that it is tried again.
  void add(int64_t num_rows, double ms);

  /// A pass came that was not one of these: sizes that are not tried again, as they seem dear, are forgotten
  /// too.
  void skip();

  /// Expected milliseconds of a pass; 0 before the first add().
  double estimate(int64_t num_rows) const;

  /// Rows of the largest pass that is known; 0 before the first add().
  int64_t largest() const;

 private:
  struct Size {
    double ms = 0;  ///< 0: not known.
    int64_t seen_at = 0;
  };
  void forget_stale();

  std::vector<Size> sizes_;  ///< By number of rows.
  int64_t stale_passes_, num_added_ = 0;
};

/// How often guesses were right lately. One thread.
class GuessRate {
 public:
  /// What is assumed before there were any.
  explicit GuessRate(double assumed) : assumed_(assumed) {}

  /// Probability that the next guess is right where those before it were.
  double probability() const;

  /// A guess that follows right ones was verified.
  void add(bool is_right);

  /// A guess was not tried: what is known of it fades.
  void fade();

 private:
  double assumed_, tried_ = 0, right_ = 0;
};

/// The rates of one request's guesses, by the drafter's evidence. One thread.
class Acceptance {
 public:
  double probability(int evidence) const { return rate(evidence).probability(); }
  void add(int evidence, bool is_right) { rate(evidence).add(is_right); }
  void fade(int evidence) { rate(evidence).fade(); }

 private:
  GuessRate& rate(int evidence) { return rates_[static_cast<size_t>(evidence)]; }
  const GuessRate& rate(int evidence) const { return rates_[static_cast<size_t>(evidence)]; }

  std::array<GuessRate, kNumEvidence> rates_ = {GuessRate(0.04), GuessRate(0.12), GuessRate(0.3),
                                                GuessRate(0.5),  GuessRate(0.7),  GuessRate(0.9)};
};

/// What a drafter costs a request beyond what it saves. A request may lose 1 % of its time and one row more,
/// then it stays serial until that is made good: text that nothing predicts stays near serial speed, whatever
/// the estimates say.
class DraftLoss {
 public:
  /// A pass of pass_ms was run for the request, extra_ms of it for drafts, which saved saved_ms.
  void add(double pass_ms, double extra_ms, double saved_ms);
  bool allows(double serial_ms) const { return loss_ms_ <= kShare * elapsed_ms_ + kFirst * serial_ms; }

 private:
  static constexpr double kShare = 0.01, kFirst = 0.5, kMostCredit_ms = 200;
  double elapsed_ms_ = 0, loss_ms_ = 0;
};

/// What a drafter that keeps a state of its own may take to catch up on tokens of requests before it has
/// guessed any: a reply that ends soon never earns that back, and that guesses will be right is not known
/// then. So all requests of an engine together earn it: the time of a few passes once, so that the first
/// request may find out, 1 % of the time in which requests that want its guesses are decoded, and half of
/// what its guesses save. One thread.
class CatchUpBudget {
 public:
  /// A pass took so long, and guesses saved so much of its time (negative: lost), turns that guess counted
  /// in.
  void add(double pass_ms, double saved_ms);
  /// A turn that catches up took so long.
  void spend(double ms) { balance_ms_ -= ms; }
  /// serial_ms: what a pass takes without guesses.
  bool allows(double ms, double serial_ms) const { return ms <= balance_ms_ + kFirstPasses * serial_ms; }

 private:
  /// Credit has a limit, so that requests that guesses do not help end it before long.
  static constexpr double kShare = 0.01, kReturn = 0.5, kFirstPasses = 16, kMostCredit_ms = 10'000;
  double balance_ms_ = 0;
};

/// What choose_catch_up() goes by.
struct CatchUpQuery {
  const PassCosts& passes;  ///< Of the model, by rows.
  const PassCosts& turns;   ///< Of the drafter, by positions that a turn has caught up on.
  const CatchUpBudget& budget;
  int64_t num_missing = 0;
  int64_t max_rows = 0;   ///< Of a turn.
  int64_t num_left = 0;   ///< Tokens of the reply that may still come.
  int64_t base_rows = 0;  ///< Of the pass without guesses.
};

/// Positions that a drafter should catch up on in a turn: all that it lacks or as many as make rows cheap,
/// where the budget has the time that all of them are expected to take, and that is at most a quarter of the
/// longest reply that may follow; else none. What they take is found out in turns of at most four times as
/// many positions as were measured, the first as if the drafter took a quarter of the model's time.
int64_t choose_catch_up(const CatchUpQuery& query);

/// A sequence whose draft may be verified.
struct DraftChoice {
  /// Of each guess in order: the probability that it and all that it follows are right.
  std::span<const double> gains;
  /// Of each guess: rows that it adds to the pass where those before it are chosen; empty: one each, as in a
  /// chain.
  std::span<const int32_t> rows = {};
  int64_t chosen = 0;  ///< Out: the first of them.
};

/// Chooses how many guesses of each sequence a pass of base_rows other rows verifies, in at most max_rows
/// rows in all, for the most tokens per millisecond; num_sequences tokens come without any. Guesses are added
/// by gain per row, so the choice is the best of those. Passes grow to at most about twice the largest one
/// that was measured, so that finding out that rows are dear is not.
void choose_drafts(const PassCosts& costs, int64_t base_rows, int64_t num_sequences, int64_t max_rows,
                   std::span<DraftChoice> choices);

/// What choose_depth() goes by.
struct DepthQuery {
  const PassCosts& passes;    ///< Of the model, by rows.
  const PassCosts& turns;     ///< Of the drafter, by 1 + tokens computed for each sequence.
  int64_t base_rows = 0;      ///< Of the pass without guesses.
  int64_t num_sequences = 0;  ///< Tokens that come without any.
  int64_t max_tokens = 0;     ///< For one sequence.
  int64_t max_rows = 0;       ///< Guesses of all sequences that the pass has room for.
  double idle_ms = 0;         ///< Of a turn without guesses, which comes all the same.
  double found_tokens = 0;    ///< Expected of guesses that were found for those who ask, and would be used
  int64_t found_rows = 0;     ///< instead, and the rows that they take.
  std::span<const double> chances =
      {};  ///< Of each sequence that asks: that a guess after right ones is right.
};

/// How many tokens a drafter whose guesses take time should compute for each sequence that asks: for the most
/// tokens per millisecond of its turn and the pass together; 0 where that is none. As choose_drafts() it goes
/// at most about twice as deep as was measured.
int64_t choose_depth(const DepthQuery& query);

}  // namespace tensorfold
