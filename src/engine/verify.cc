// See verify.h.
#include "engine/verify.h"

#include <algorithm>

namespace tensorfold {
void Verifier::propose(std::span<const PlannedRows> planned, int64_t max_rows) {
  asked_.clear();
  known_ = {};
  for (const PlannedRows& rows : planned) {
    known_.num_rows += rows.num_rows;
    known_.num_sequences += rows.wants_logits() ? 1 : 0;
    known_.only_decodes &= rows.sequence->is_decoding();
    if (rows.sequence->is_decoding() && rows.sequence->drafts.drafter != nullptr)
      ask(*rows.sequence, max_rows);
  }
  if (!asked_.empty()) choose(max_rows);
}

void Verifier::ask(Sequence& sequence, int64_t max_rows) {
  SequenceDrafts& drafts = sequence.drafts;
  const std::span<const int32_t> tokens = sequence.tokens;
  drafts.drafter->extend(tokens.subspan(static_cast<size_t>(drafts.num_shown)));
  drafts.num_shown = sequence.num_tokens();
  // A pass gives one token more than it accepts, and the reply ends at max_total_tokens.
  const int64_t room = sequence.max_total_tokens - sequence.num_tokens() - 1;
  const int64_t most = std::min({options_.max_tokens, room, max_rows});
  drafts.draft.clear();
  if (most <= 0) return;
  drafts.drafter->propose(most, drafts.draft);
  if (!drafts.draft.is_empty()) asked_.push_back(&sequence);
}

void Verifier::choose(int64_t max_rows) {
  choices_.clear();
  const double serial_ms = costs_.estimate(known_.num_rows) / static_cast<double>(known_.num_sequences);
  for (Sequence* sequence : asked_) {
    const SequenceDrafts& drafts = sequence->drafts;
    const bool allowed = !options_.is_measured || drafts.loss.allows(serial_ms);
    choices_.push_back({.probability = drafts.acceptance.probability(drafts.draft.evidence),
                        .available = allowed ? drafts.draft.size() : 0});
  }
  if (options_.is_measured) {
    choose_drafts(costs_, known_.num_rows, known_.num_sequences, max_rows, choices_);
  } else {
    for (DraftChoice& choice : choices_) {
      choice.chosen = std::min(choice.available, max_rows);
      max_rows -= choice.chosen;
    }
  }
  for (size_t i = 0; i < asked_.size(); ++i) {
    SequenceDrafts& drafts = asked_[i]->drafts;
    if (choices_[i].chosen == 0) drafts.acceptance.fade(drafts.draft.evidence);
    drafts.draft.truncate(choices_[i].chosen);
  }
}

void Verifier::finish_pass(std::span<const PlannedRows> planned, double pass_ms) {
  int64_t num_drafted = 0;
  for (const PlannedRows& rows : planned) num_drafted += rows.num_drafted + rows.num_repeated;
  if (known_.only_decodes) costs_.add(known_.num_rows + num_drafted, pass_ms);
  const double serial_ms = costs_.estimate(known_.num_rows);
  const double extra_ms = std::max(0.0, costs_.estimate(known_.num_rows + num_drafted) - serial_ms);
  for (const PlannedRows& rows : planned) {
    SequenceDrafts& drafts = rows.sequence->drafts;
    if (drafts.drafter == nullptr) continue;
    double own_extra_ms = 0, saved_ms = 0;
    if (rows.num_drafted > 0) {
      own_extra_ms = extra_ms * static_cast<double>(rows.num_drafted + rows.num_repeated) /
                     static_cast<double>(num_drafted);
      saved_ms = serial_ms * static_cast<double>(drafts.num_passes_avoided) /
                 static_cast<double>(known_.num_sequences);
      drafts.acceptance.add(drafts.draft.evidence, rows.num_drafted, drafts.num_accepted);
      drafts.drafter->verified(rows.num_drafted, drafts.num_accepted);
    }
    drafts.loss.add(pass_ms, own_extra_ms, saved_ms);
    drafts.draft.clear();
    drafts.num_accepted = drafts.num_passes_avoided = 0;
    drafts.last_accepted = -1;
  }
}

}  // namespace tensorfold
