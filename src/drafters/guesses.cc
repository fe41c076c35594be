// See guesses.h.
#include "drafters/guesses.h"

#include "ops/ops.h"

namespace tensorfold {

Status GuessSampler::prepare(Device& device, const GuessLimits& limits) {
  limits_ = limits;
  const int64_t bytes = limits.max_tasks * limits.vocab_size * dtype_bytes(DType::kF32);
  TF_ASSIGN_OR_RETURN(buffer_, device.allocate(bytes, "logits of a drafter"));
  return {};
}

View GuessSampler::logits(int64_t num_rows) const {
  return View(buffer_.data(), DType::kF32, {num_rows, limits_.vocab_size});
}

void GuessSampler::draw(Ops& ops, std::span<DraftTask* const> tasks) {
  rows_.clear();
  for (const DraftTask* task : tasks)
    rows_.push_back(task->sampling[static_cast<size_t>(task->draft->size())]);
  drawn_.assign(tasks.size(), -1);
  probabilities_.assign(tasks.size(), 0.0f);
  if (tasks.empty()) return;
  const View drawable = logits(std::ssize(tasks)).columns(0, limits_.num_tokens);
  ops.sample(drawn_, drawable, rows_, probabilities_);
}

void GuessSampler::append(std::vector<DraftTask*>& tasks, std::vector<int32_t>& kept) {
  kept.clear();
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (drawn_[i] < 0) continue;  // no logits to draw from: no guess
    Draft& draft = *tasks[i]->draft;
    draft.append(drawn_[i], evidence_of_probability(probabilities_[i]));
    if (draft.size() == tasks[i]->max_tokens || probabilities_[i] < limits_.least_confidence) continue;
    tasks[kept.size()] = tasks[i];
    kept.push_back(static_cast<int32_t>(i));
  }
  tasks.resize(kept.size());
}

}  // namespace tensorfold
