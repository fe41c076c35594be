// The policy of engine/scheduler.h.
#include "engine/scheduler.h"

#include <algorithm>
#include <utility>

namespace tensorfold {

Scheduler::Scheduler(const Options& options, KvPagePool& pool) : options_(options), pool_(pool) {
  running_.reserve(static_cast<size_t>(options.max_sequences));
}

// Beside decoding rows at least one prompt row is planned, and a sequence is one or the other, so
// max_sequences bounds what can exceed pass_tokens.
int64_t Scheduler::max_pass_rows(const Options& options) {
  return std::max(options.pass_tokens, options.max_sequences);
}

void Scheduler::add(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }

Sequence* Scheduler::find(RequestId id) const {
  for (const auto& sequence : running_) {
    if (sequence->id == id) return sequence.get();
  }
  for (const auto& sequence : waiting_) {
    if (sequence->id == id) return sequence.get();
  }
  return nullptr;
}

Sequence* Scheduler::oldest() const {
  if (!running_.empty()) return running_.front().get();
  return waiting_.empty() ? nullptr : waiting_.front().get();
}

std::unique_ptr<Sequence> Scheduler::remove(const Sequence& sequence) {
  const auto take_from = [&](auto& sequences) -> std::unique_ptr<Sequence> {
    const auto it =
        std::find_if(sequences.begin(), sequences.end(), [&](const auto& s) { return s.get() == &sequence; });
    if (it == sequences.end()) return nullptr;
    std::unique_ptr<Sequence> taken = std::move(*it);
    sequences.erase(it);
    return taken;
  };
  std::unique_ptr<Sequence> taken = take_from(running_);
  if (taken == nullptr) taken = take_from(waiting_);
  TF_CHECK(taken != nullptr, "the scheduler does not have this sequence");
  taken->pages.clear();
  taken->drafts.branches.clear();
  taken->state.clear();
  return taken;
}

// Prompts that are still being computed take their pages chunk by chunk; what they have yet to take is spoken
// for.
int64_t Scheduler::num_unclaimed_pages() const {
  int64_t pages = pool_.num_free();
  for (const auto& sequence : running_) pages -= sequence->pages.num_missing(sequence->num_tokens());
  return pages;
}

void Scheduler::admit() {
  while (!waiting_.empty() && num_running() < options_.max_sequences) {
    const Sequence& next = *waiting_.front();
    // One more page for every sequence that runs already: without it the newcomer would soon be preempted by
    // their growth and its prompt computed twice.
    const int64_t needed = next.pages.num_missing(next.num_tokens()) + num_running();
    if (num_unclaimed_pages() < needed) return;
    waiting_.front()->state.acquire();  // there is one for every sequence that may run
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

int64_t Scheduler::prompt_row_budget() const {
  const int64_t num_decoding =
      std::count_if(running_.begin(), running_.end(), [](const auto& s) { return s->is_decoding(); });
  if (num_decoding == 0) return options_.pass_tokens;
  const int64_t left = std::min(options_.pass_tokens - num_decoding, options_.pass_tokens / 4);
  return std::max<int64_t>(left, 1);  // prompts get on even where decoding rows fill the pass
}

void Scheduler::preempt_youngest() {
  running_.back()->preempt();
  waiting_.push_front(std::move(running_.back()));
  running_.pop_back();
  ++num_preemptions_;
}

Result<std::span<const PlannedRows>> Scheduler::plan() {
  admit();
  int64_t prompt_rows = prompt_row_budget();
  planned_.clear();
  prompt_chunks_.clear();
  // Oldest first, so that whoever is preempted for a sequence has no rows planned yet.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    const bool is_decoding = sequence.is_decoding();
    const int64_t num_rows = is_decoding ? 1 : std::min(sequence.num_pending(), prompt_rows);
    if (num_rows == 0) continue;
    const int64_t num_positions = sequence.num_computed + num_rows;
    while (running_.size() > i && sequence.pages.num_missing(num_positions) > pool_.num_free())
      preempt_youngest();
    if (running_.size() == i) break;  // it was the youngest itself
    TF_RETURN_IF_ERROR(sequence.pages.grow_to(num_positions));
    if (!is_decoding) prompt_rows -= num_rows;
    (is_decoding ? planned_ : prompt_chunks_).push_back({.sequence = &sequence, .num_rows = num_rows});
  }
  planned_.insert(planned_.end(), prompt_chunks_.begin(), prompt_chunks_.end());
  return std::span<const PlannedRows>(planned_);
}

int64_t Scheduler::num_draft_rows() const {
  int64_t room = max_pass_rows(options_);
  for (const PlannedRows& rows : planned_) room -= rows.num_pass_rows();
  return std::clamp<int64_t>(room, 0, options_.max_drafted_rows);
}

Status Scheduler::add_drafts() {
  int64_t room = num_draft_rows();
  for (PlannedRows& rows : planned_) TF_RETURN_IF_ERROR(add_first_branch(rows, room));
  for (PlannedRows& rows : planned_) TF_RETURN_IF_ERROR(add_other_branches(rows, room));
  return {};
}

/// A chain is one branch.
Status Scheduler::add_first_branch(PlannedRows& rows, int64_t& room) {
  Sequence& sequence = *rows.sequence;
  Draft& draft = sequence.drafts.draft;
  DraftBranches& branches = sequence.drafts.branches;
  if (!sequence.is_decoding() || draft.is_empty()) return {};
  branches.split(draft);
  const int64_t depth = branches.is_empty() ? draft.size() : std::ssize(branches.branches().front().nodes);
  const int64_t known = sequence.num_tokens();
  const int64_t positions = (sequence.pages.num_pages() + pool_.num_free()) * kPageTokens;
  rows.num_drafted = std::min({depth, room, positions - known});
  if (branches.is_empty()) draft.truncate(rows.num_drafted);
  room -= rows.num_drafted;
  return sequence.pages.grow_to(known + rows.num_drafted);
}

Status Scheduler::add_other_branches(PlannedRows& rows, int64_t& room) {
  Sequence& sequence = *rows.sequence;
  SequenceDrafts& drafts = sequence.drafts;
  if (drafts.branches.is_empty()) return {};
  const int64_t num_first = rows.num_drafted;
  TF_RETURN_IF_ERROR(drafts.branches.keep(
      drafts.draft, {.num_first = num_first, .num_rows = room, .last_pos = sequence.num_computed},
      sequence.pages));
  rows.num_drafted = drafts.draft.size();
  if (drafts.branches.is_empty()) return {};
  rows.num_repeated = drafts.branches.num_rows() - rows.num_rows - rows.num_drafted;
  room -= rows.num_drafted_rows() - num_first;
  return {};
}

Result<int64_t> Scheduler::reserve_guesses(Sequence& sequence, int64_t most) {
  const int64_t known = sequence.num_tokens();
  const int64_t positions = (sequence.pages.num_pages() + pool_.num_free()) * kPageTokens;
  const int64_t count = std::clamp<int64_t>(positions - known, 0, most);
  if (count > 0) TF_RETURN_IF_ERROR(sequence.pages.grow_to(known + count));
  return count;
}

void Scheduler::return_draft_pages() {
  for (const auto& sequence : running_) sequence->pages.shrink_to(sequence->num_computed);
}

}  // namespace tensorfold
