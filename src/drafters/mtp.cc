// See mtp.h. Formulas and positions: specs/drafters.md §1.
#include "drafters/mtp.h"

#include "base/check.h"

namespace tensorfold {

MtpDrafter::MtpDrafter(const MtpModel& parts) : parts_(parts), head_(*parts.model.draft_head()) {}

Status MtpDrafter::prepare(int64_t max_tasks, int64_t max_rows, int64_t) {
  Device& device = parts_.ops.device();
  const ModelSpec& spec = parts_.model.spec();
  const int64_t bytes = max_rows * spec.hidden_size * dtype_bytes(DType::kF32);
  max_rows_ = max_rows;
  TF_ASSIGN_OR_RETURN(inputs_, device.allocate(bytes, "hidden states of the draft head"));
  TF_ASSIGN_OR_RETURN(outputs_, device.allocate(bytes, "hidden states of the draft head"));
  return guesses_.prepare(device, {.max_tasks = max_tasks,
                                   .vocab_size = spec.vocab_size,
                                   .num_tokens = parts_.num_drawable_tokens,
                                   .least_confidence = parts_.least_confidence});
}

/// A row of the head is a position's hidden state and the token after it.
void MtpDrafter::lay_out_rows(std::span<DraftTask> tasks) {
  layout_.clear();
  hidden_rows_.clear();
  guessing_.clear();
  for (DraftTask& task : tasks) {
    if (task.rows.empty()) continue;
    TF_DCHECK(task.first_pos + std::ssize(task.rows) < std::ssize(task.tokens));
    const bool guesses = task.max_tokens > 0;
    layout_.add(task, task.tokens.subspan(static_cast<size_t>(task.first_pos + 1), task.rows.size()),
                task.first_pos, /*num_drafted=*/0, guesses);
    hidden_rows_.insert(hidden_rows_.end(), task.rows.begin(), task.rows.end());
    if (guesses) guessing_.push_back(&task);
  }
}

/// One more row for each draft that goes on: the hidden state that its last guess came of, and that guess.
void MtpDrafter::lay_out_guesses() {
  hidden_rows_.clear();
  for (const int32_t i : kept_) hidden_rows_.push_back(layout_.logit_rows()[static_cast<size_t>(i)]);
  layout_.clear();
  for (const DraftTask* task : guessing_) {
    const int64_t pos = std::ssize(task->tokens) - 2 + task->draft->size();
    layout_.add(*task, {&task->draft->tokens.back(), 1}, pos, /*num_drafted=*/0, /*wants_logits=*/true);
  }
}

/// A pass over layout_, its row i starting from row hidden_rows_[i] of `hidden`.
Status MtpDrafter::run_pass(View hidden, const State& state, Arena& scratch) {
  const Arena::Frame frame(scratch);
  Ops& ops = parts_.ops;
  const int64_t T = layout_.num_rows(), E = parts_.model.spec().hidden_size;
  const View inputs(inputs_.data(), DType::kF32, {T, E});
  const Outputs outputs{.logits = guesses_.logits(std::ssize(layout_.logit_rows())),
                        .hidden = View(outputs_.data(), DType::kF32, {T, E})};
  const Pass pass = layout_.pass();
  ops.begin_pass(pass.rows);
  ops.gather_rows(inputs, hidden, hidden_rows_);
  head_.forward(pass, inputs, ops, parts_.weights, state, scratch, outputs);
  guesses_.draw(ops, guessing_);
  return ops.end_pass();
}

Status MtpDrafter::run(std::span<DraftTask> tasks, const ModelRows& model, const State& state,
                       Arena& scratch) {
  lay_out_rows(tasks);
  if (layout_.num_rows() == 0) return {};
  TF_RETURN_IF_ERROR(run_pass(model.hidden, state, scratch));
  const View given(outputs_.data(), DType::kF32, {max_rows_, parts_.model.spec().hidden_size});
  while (!guessing_.empty()) {
    guesses_.append(guessing_, kept_);
    if (guessing_.empty()) break;
    lay_out_guesses();
    TF_RETURN_IF_ERROR(run_pass(given, state, scratch));
  }
  return {};
}

}  // namespace tensorfold
