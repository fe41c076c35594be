// See verify.h.
#include "engine/verify.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/log.h"

namespace tensorfold {
namespace {

double ms_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

/// A pass gives one token more than it accepts, and the reply ends at max_total_tokens.
int64_t Verifier::most_tokens(const Sequence& sequence) const {
  const int64_t room = sequence.max_total_tokens - sequence.num_tokens() - 1;
  return std::max<int64_t>(std::min({options_.max_tokens, room, max_rows_}), 0);
}

bool Verifier::is_allowed(const Sequence& sequence, DraftSource source) const {
  if (!options_.is_measured) return true;
  return sequence.drafts.loss_of(source).allows(costs_.estimate(known_.num_rows) /
                                                static_cast<double>(known_.num_sequences));
}

Status Verifier::propose(std::span<const PlannedRows> planned, const ModelRows& model_rows, Arena scratch) {
  max_rows_ = scheduler_.num_draft_rows();
  asked_.clear();
  known_ = {};
  for (const PlannedRows& rows : planned) {
    known_.num_rows += rows.num_rows;
    known_.num_sequences += rows.wants_logits() ? 1 : 0;
    known_.only_decodes &= rows.sequence->is_decoding();
  }
  for (const PlannedRows& rows : planned)
    if (rows.sequence->is_decoding()) search(*rows.sequence);
  if (turns_ != nullptr) TF_RETURN_IF_ERROR(compute(planned, model_rows, scratch));
  for (const PlannedRows& rows : planned) {
    cut_at_end(*rows.sequence);
    if (!rows.sequence->drafts.draft.is_empty()) asked_.push_back(rows.sequence);
  }
  if (!asked_.empty()) choose();
  return {};
}

void Verifier::search(Sequence& sequence) {
  SequenceDrafts& drafts = sequence.drafts;
  drafts.draft.clear();
  if (drafts.drafter == nullptr) return;
  const std::span<const int32_t> tokens = sequence.tokens;
  drafts.drafter->extend(tokens.subspan(static_cast<size_t>(drafts.num_shown)));
  drafts.num_shown = sequence.num_tokens();
  const int64_t most = most_tokens(sequence);
  if (most == 0) return;
  drafts.source = DraftSource::kDrafter;
  drafts.drafter->propose(most, drafts.draft);
}

/// Whether guesses are worth computing where some were found: if they are likelier to be right.
bool Verifier::wants_computed(Sequence& sequence) const {
  SequenceDrafts& drafts = sequence.drafts;
  if (!drafts.computed.is_wanted || !sequence.is_decoding() || most_tokens(sequence) == 0) return false;
  if (sequence.num_tokens() + options_.max_tokens > turns_->drafter().max_positions()) return false;
  if (turns_->drafter().follows_model() && drafts.computed.rows.empty()) return false;
  if (drafts.draft.is_empty()) return true;
  return drafts.acceptance_of_draft().probability(drafts.draft.evidence.front()) <
         drafts.computed.chance.probability();
}

/// Guesses that a turn computes for each planned sequence that wants them: of those for which the drafter is
/// in step, or of those for which it must catch up first, as if it had.
int64_t Verifier::choose_turn_depth(std::span<const PlannedRows> planned, bool must_catch_up) {
  chances_.clear();
  DepthQuery query{.passes = costs_,
                   .turns = turn_costs_,
                   .base_rows = known_.num_rows,
                   .num_sequences = known_.num_sequences,
                   .max_tokens = options_.max_tokens,
                   .max_rows = max_rows_};
  if (turns_->drafter().follows_model()) query.idle_ms = turn_costs_.estimate(1);
  for (const PlannedRows& rows : planned) {
    SequenceDrafts& drafts = rows.sequence->drafts;
    if (!wants_computed(*rows.sequence) || !is_allowed(*rows.sequence, DraftSource::kPassDrafter)) continue;
    if (this->must_catch_up(*rows.sequence) != must_catch_up) continue;
    chances_.push_back(drafts.computed.chance.probability());
    double gain = 1;
    for (const uint8_t evidence : drafts.draft.evidence)
      query.found_tokens += gain *= drafts.acceptance_of_draft().probability(evidence);
    added_rows_.resize(drafts.draft.tokens.size());
    count_added_rows(drafts.draft, added_rows_);
    query.found_rows += std::accumulate(added_rows_.begin(), added_rows_.end(), int64_t{0});
  }
  if (!options_.is_measured) return chances_.empty() ? 0 : options_.max_tokens;
  query.chances = chances_;
  return choose_depth(query);
}

/// Positions that a pass of guesses leaves at most for the next turn to take in. A turn that takes in more is
/// no measure of what turns take: where the drafter follows the model these are a prompt's, which it would
/// miss; else it catches up on them first.
int64_t Verifier::usual_rows() const { return options_.max_tokens + 1; }

/// Whether the drafter lacks more of the sequence than passes of guesses leave: the last token is taken in by
/// every turn.
bool Verifier::must_catch_up(const Sequence& sequence) const {
  if (!options_.is_measured || turns_->drafter().follows_model()) return false;
  const int64_t num_missing = DraftTurns::num_missing(sequence);
  return num_missing > 0 && (sequence.drafts.computed.num_absorbed == 0 || num_missing >= usual_rows());
}

/// A turn in which the drafter catches up on the oldest sequence whose budget has the time.
void Verifier::catch_up(Arena scratch) {
  entries_.clear();
  for (const auto& sequence : scheduler_.running()) {
    if (!wants_computed(*sequence) || !must_catch_up(*sequence) ||
        !is_allowed(*sequence, DraftSource::kPassDrafter))
      continue;
    const int64_t count = choose_catch_up({.passes = costs_,
                                           .turns = catch_up_costs_,
                                           .budget = catch_up_budget_,
                                           .num_missing = DraftTurns::num_missing(*sequence),
                                           .max_rows = options_.max_turn_rows,
                                           .num_left = sequence->max_total_tokens - sequence->num_tokens(),
                                           .base_rows = known_.num_rows});
    if (count == 0) continue;
    entries_.push_back({.sequence = sequence.get(), .num_catch_up = count});
    break;
  }
  if (entries_.empty()) return catch_up_costs_.skip();
  SequenceDrafts& drafts = entries_.front().sequence->drafts;
  const int64_t num_absorbed = drafts.computed.num_absorbed;
  const std::optional<double> turn_ms = run_turn({}, scratch);
  if (!turn_ms) return;
  drafts.usage.computing_ms += *turn_ms;
  catch_up_budget_.spend(*turn_ms);
  catch_up_costs_.add(drafts.computed.num_absorbed - num_absorbed, *turn_ms);
}

/// A sequence joins the turn for guesses, or only to be followed.
Status Verifier::add_turn_entry(Sequence& sequence, int64_t depth) {
  ComputedDrafts& computed = sequence.drafts.computed;
  computed.turn_ms = 0;
  if (!computed.is_wanted) return {};
  const bool is_allowed = this->is_allowed(sequence, DraftSource::kPassDrafter) || !sequence.is_decoding();
  int64_t max_tokens = 0, max_depth = 0;
  if (depth > 0 && is_allowed && wants_computed(sequence) && !must_catch_up(sequence)) {
    const int64_t most = std::min(most_tokens(sequence), turn_room_);
    TF_ASSIGN_OR_RETURN(max_depth, scheduler_.reserve_guesses(sequence, std::min(depth, most)));
    if (max_depth > 0) max_tokens = std::clamp(tree_tokens_, max_depth, most);
    turn_room_ -= max_tokens;
  }
  if (max_tokens == 0 && sequence.is_decoding()) {
    computed.chance.fade();
    typical_chance_.fade();
  }
  const bool follows = turns_->drafter().follows_model() && !computed.rows.empty() && is_allowed;
  if (max_tokens == 0 && !follows) return {};
  const int64_t num_new = turns_->drafter().follows_model() ? std::ssize(computed.rows)
                                                            : sequence.num_tokens() - computed.num_absorbed;
  is_usual_turn_ &= sequence.is_decoding() && num_new <= usual_rows();
  entries_.push_back({.sequence = &sequence, .max_tokens = max_tokens, .max_depth = max_depth});
  return {};
}

Status Verifier::compute(std::span<const PlannedRows> planned, const ModelRows& model_rows, Arena scratch) {
  const bool may_catch_up = choose_turn_depth(planned, /*must_catch_up=*/true) > 0;
  bool is_too_dear = !may_catch_up && !chances_.empty();
  if (may_catch_up) catch_up(scratch);
  if (turns_ == nullptr) return {};
  const int64_t depth = choose_turn_depth(planned, /*must_catch_up=*/false);
  is_too_dear |= depth == 0 && !chances_.empty();
  if (is_too_dear) turn_costs_.skip();
  entries_.clear();
  is_usual_turn_ = true;
  turn_room_ = max_rows_;
  // Everyone's share: a draft with more guesses than follow each other is a tree.
  tree_tokens_ = turns_->drafter().offers_trees() && !chances_.empty() ? max_rows_ / std::ssize(chances_) : 0;
  for (const auto& sequence : scheduler_.running()) TF_RETURN_IF_ERROR(add_turn_entry(*sequence, depth));
  if (entries_.empty()) return {};
  if (const std::optional<double> turn_ms = run_turn(model_rows, scratch)) take_computed(*turn_ms);
  return {};
}

/// The time of a turn of entries_. Nothing where it fails: the drafter is gone then.
std::optional<double> Verifier::run_turn(const ModelRows& model_rows, Arena scratch) {
  const auto start = std::chrono::steady_clock::now();
  const Status status = turns_->run(entries_, model_rows, scratch);
  if (status.ok()) return ms_since(start);
  log_error("{} failed and is not asked again: {}", turns_->drafter().name(), status.message());
  turns_ = nullptr;
  return std::nullopt;
}

void Verifier::take_computed(double turn_ms) {
  int64_t longest = 0;
  for (const DraftTurns::Entry& entry : entries_) longest = std::max(longest, entry.draft.depth());
  if (is_usual_turn_) turn_costs_.add(1 + longest, turn_ms);
  const double share_ms = turn_ms / static_cast<double>(entries_.size());
  for (DraftTurns::Entry& entry : entries_) {
    SequenceDrafts& drafts = entry.sequence->drafts;
    drafts.usage.computing_ms += share_ms;
    if (is_usual_turn_) drafts.computed.turn_ms = share_ms;
    if (entry.draft.is_empty()) continue;
    std::swap(drafts.draft, entry.draft);
    drafts.source = DraftSource::kPassDrafter;
  }
}

/// Nothing counts that follows a token which ends the reply.
void Verifier::cut_at_end(Sequence& sequence) {
  Draft& draft = sequence.drafts.draft;
  if (sequence.ignore_eos || draft.is_empty()) return;
  const auto ends = [&](int32_t token) {
    return std::ranges::find(options_.end_tokens, token) != options_.end_tokens.end() ||
           sequence.text.ends_reply(token);
  };
  may_follow_.clear();
  counting_.clear();
  for (int64_t i = 0; i < draft.size(); ++i) {
    const int32_t parent = draft.parents[static_cast<size_t>(i)];
    const bool counts = parent < 0 || may_follow_[static_cast<size_t>(parent)];
    may_follow_.push_back(counts && !ends(draft.tokens[static_cast<size_t>(i)]));
    if (counts) counting_.push_back(static_cast<int32_t>(i));
  }
  if (std::ssize(counting_) < draft.size()) draft.keep(counting_);
}

void Verifier::choose() {
  choices_.clear();
  size_t num_guesses = 0;
  for (const Sequence* sequence : asked_) num_guesses += sequence->drafts.draft.tokens.size();
  gains_.resize(num_guesses);
  added_rows_.resize(num_guesses);
  size_t first = 0;
  for (Sequence* sequence : asked_) {
    SequenceDrafts& drafts = sequence->drafts;
    Draft& draft = drafts.draft;
    const std::span<double> gains = std::span(gains_).subspan(first, draft.tokens.size());
    const std::span<int32_t> rows = std::span(added_rows_).subspan(first, draft.tokens.size());
    first += gains.size();
    for (size_t i = 0; i < gains.size(); ++i) {
      gains[i] = drafts.acceptance_of_draft().probability(draft.evidence[i]);
      if (draft.parents[i] >= 0) gains[i] *= gains[static_cast<size_t>(draft.parents[i])];
    }
    if (options_.is_measured && !draft.is_chain()) order_by_gain(draft, gains);
    count_added_rows(draft, rows);
    choices_.push_back(
        {.gains = is_allowed(*sequence, drafts.source) ? gains : gains.first(0), .rows = rows});
  }
  if (options_.is_measured) {
    choose_drafts(costs_, known_.num_rows, known_.num_sequences, max_rows_, choices_);
  } else {
    int64_t room = max_rows_;
    for (DraftChoice& choice : choices_) {
      choice.chosen = std::min(std::ssize(choice.gains), room);
      room -= choice.chosen;
    }
  }
  for (size_t i = 0; i < asked_.size(); ++i) {
    SequenceDrafts& drafts = asked_[i]->drafts;
    if (choices_[i].chosen == 0) drafts.acceptance_of_draft().fade(drafts.draft.evidence.front());
    drafts.draft.truncate(choices_[i].chosen);
  }
}

void Verifier::finish_pass(std::span<const PlannedRows> planned, std::span<const AcceptedRows> accepted,
                           double pass_ms) {
  int64_t num_drafted = 0;
  for (const PlannedRows& rows : planned) num_drafted += rows.num_drafted + rows.num_repeated;
  if (known_.only_decodes) costs_.add(known_.num_rows + num_drafted, pass_ms);
  const double serial_ms = costs_.estimate(known_.num_rows);
  const double extra_ms = std::max(0.0, costs_.estimate(known_.num_rows + num_drafted) - serial_ms);
  keep_rows(planned, accepted);
  bool is_computed_wanted = false;
  double computed_saved_ms = 0;
  for (const PlannedRows& rows : planned) {
    SequenceDrafts& drafts = rows.sequence->drafts;
    if (!drafts.has_drafter()) continue;
    is_computed_wanted |= drafts.computed.is_wanted && rows.wants_logits();
    double own_extra_ms = 0, saved_ms = 0;
    if (rows.num_drafted > 0) {
      own_extra_ms = extra_ms * static_cast<double>(rows.num_drafted + rows.num_repeated) /
                     static_cast<double>(num_drafted);
      saved_ms = serial_ms * static_cast<double>(drafts.num_passes_avoided) /
                 static_cast<double>(known_.num_sequences);
      learn(rows);
    }
    const bool is_computed = drafts.source == DraftSource::kPassDrafter;
    drafts.loss_of(DraftSource::kDrafter)
        .add(pass_ms, is_computed ? 0 : own_extra_ms, is_computed ? 0 : saved_ms);
    const double computed_extra_ms = drafts.computed.turn_ms + (is_computed ? own_extra_ms : 0);
    drafts.loss_of(DraftSource::kPassDrafter).add(pass_ms, computed_extra_ms, is_computed ? saved_ms : 0);
    computed_saved_ms += (is_computed ? saved_ms : 0) - computed_extra_ms;
    drafts.draft.clear();
    drafts.num_accepted = drafts.num_passes_avoided = 0;
    drafts.computed.turn_ms = 0;
    drafts.last_accepted = -1;
  }
  if (is_computed_wanted) catch_up_budget_.add(pass_ms, computed_saved_ms);
}

/// What the next turn shows of this pass: the rows that count.
void Verifier::keep_rows(std::span<const PlannedRows> planned, std::span<const AcceptedRows> accepted) {
  if (turns_ == nullptr || !turns_->drafter().follows_model()) return;
  int64_t first_row = 0;
  for (size_t i = 0; i < planned.size(); ++i) {
    const PlannedRows& rows = planned[i];
    ComputedDrafts& computed = rows.sequence->drafts.computed;
    if (computed.is_wanted) {
      // Where there are branches, the known row is the first one of that which was accepted.
      const int64_t count = accepted[i].num_rows + (rows.num_repeated > 0 ? 0 : rows.num_rows);
      computed.rows.resize(static_cast<size_t>(count));
      std::iota(computed.rows.begin(), computed.rows.end(),
                static_cast<int32_t>(first_row + accepted[i].first_row));
      computed.first_pos = rows.sequence->num_computed - count;
    }
    first_row += rows.num_pass_rows();
  }
}

void Verifier::learn(const PlannedRows& rows) {
  SequenceDrafts& drafts = rows.sequence->drafts;
  const Draft& draft = drafts.draft;
  is_right_.assign(draft.tokens.size(), false);
  for (int64_t i = drafts.last_accepted; i >= 0; i = draft.parents[static_cast<size_t>(i)])
    is_right_[static_cast<size_t>(i)] = true;
  for (size_t i = 0; i < draft.tokens.size(); ++i) {
    const int32_t parent = draft.parents[i];
    if (parent >= 0 && !is_right_[static_cast<size_t>(parent)])
      continue;  // what follows a wrong one was not tried
    drafts.acceptance_of_draft().add(draft.evidence[i], is_right_[i]);
  }
  if (drafts.source == DraftSource::kPassDrafter) {
    // By place: one guess of several may be right.
    const auto add = [&](bool is_right) {
      drafts.computed.chance.add(is_right);
      typical_chance_.add(is_right);
    };
    for (int64_t i = 0; i < drafts.num_accepted; ++i) add(true);
    if (std::ranges::find(draft.parents, drafts.last_accepted) != draft.parents.end()) add(false);
  }
  if (drafts.source == DraftSource::kDrafter) drafts.drafter->verified(rows.num_drafted, drafts.num_accepted);
}

}  // namespace tensorfold
