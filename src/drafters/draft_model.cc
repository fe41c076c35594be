// See draft_model.h.
#include "drafters/draft_model.h"

#include <algorithm>

namespace tensorfold {

Status DraftModelDrafter::prepare(int64_t max_tasks, int64_t max_rows, int64_t max_guesses) {
  max_rows_ = std::max(max_rows, max_guesses);  // drafts run whole where the state cannot be stepped back
  return guesses_.prepare(parts_.ops.device(), {.max_tasks = max_tasks,
                                                .vocab_size = parts_.model.spec().vocab_size,
                                                .num_tokens = parts_.num_drawable_tokens,
                                                .least_confidence = parts_.least_confidence});
}

/// Known tokens that the state lacks, of those who want guesses or are to catch up, up to max_rows_. Who
/// wants guesses and lacks none then has one.
void DraftModelDrafter::lay_out_known(std::span<DraftTask> tasks) {
  layout_.clear();
  guessing_.clear();
  for (DraftTask& task : tasks) {
    const int64_t num_missing = std::ssize(task.tokens) - task.num_absorbed;
    const int64_t wanted = task.max_tokens > 0 ? num_missing : std::min(task.num_catch_up, num_missing);
    const int64_t num_rows = std::min(wanted, max_rows_ - layout_.num_rows());
    if (num_rows <= 0) continue;
    const bool guesses = task.max_tokens > 0 && num_rows == num_missing;
    layout_.add(task,
                task.tokens.subspan(static_cast<size_t>(task.num_absorbed), static_cast<size_t>(num_rows)),
                task.num_absorbed, /*num_drafted=*/0, guesses);
    task.num_absorbed += num_rows;
    if (guesses) guessing_.push_back(&task);
  }
  layout_.limit_tokens(parts_.model.spec().vocab_size);
}

/// The row of each draft's last guess. A recurrent state cannot hold guesses, so there all of the draft runs
/// again.
void DraftModelDrafter::lay_out_guesses() {
  layout_.clear();
  const bool is_recurrent = !recurrent_layers().empty();
  for (const DraftTask* task : guessing_) {
    const std::span<const int32_t> draft = task->draft->tokens;
    const int64_t num_rows = is_recurrent ? std::ssize(draft) : 1;
    layout_.add(*task, draft.last(static_cast<size_t>(num_rows)),
                std::ssize(task->tokens) + std::ssize(draft) - num_rows, is_recurrent ? num_rows : 0,
                /*wants_logits=*/true);
  }
}

Status DraftModelDrafter::run_pass(const State& state, Arena& scratch) {
  const Arena::Frame frame(scratch);
  Ops& ops = parts_.ops;
  const Pass pass = layout_.pass();
  ops.begin_pass(pass.rows);
  parts_.model.forward(pass, ops, parts_.weights, state, scratch,
                       {.logits = guesses_.logits(std::ssize(pass.logit_rows))});
  guesses_.draw(ops, guessing_);
  return ops.end_pass();
}

Status DraftModelDrafter::run(std::span<DraftTask> tasks, const ModelRows&, const State& state,
                              Arena& scratch) {
  lay_out_known(tasks);
  if (layout_.num_rows() == 0) return {};
  TF_RETURN_IF_ERROR(run_pass(state, scratch));
  guesses_.append(guessing_, kept_);
  while (!guessing_.empty()) {
    lay_out_guesses();
    TF_RETURN_IF_ERROR(run_pass(state, scratch));
    guesses_.append(guessing_, kept_);
  }
  return {};
}

}  // namespace tensorfold
