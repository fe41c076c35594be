// See block.h.
#include "drafters/block.h"

#include <algorithm>

namespace tensorfold {

Status BlockPassDrafter::prepare(int64_t max_tasks, int64_t max_rows, int64_t max_guesses) {
  max_block_rows_ = std::min(max_tasks * parts_.drafter.spec().block_size, max_tasks + max_guesses);
  max_rows_ = max_rows;
  const ModelSpec& target = parts_.target.model.spec();
  const int64_t row_bytes =
      std::ssize(target_layers()) * target.hidden_size * dtype_bytes(target.activation_dtype);
  TF_ASSIGN_OR_RETURN(taps_,
                      parts_.ops.device().allocate(max_rows * row_bytes, "inputs of the block drafter"));
  return {};
}

int64_t BlockPassDrafter::scratch_bytes() const {
  return std::max(parts_.drafter.absorb_scratch_bytes(max_rows_),
                  parts_.drafter.propose_scratch_bytes(max_block_rows_));
}

Status BlockPassDrafter::absorb(std::span<DraftTask> tasks, const ModelRows& model, const State& state,
                                Arena& scratch) {
  layout_.clear();
  rows_.clear();
  for (const DraftTask& task : tasks) {
    if (task.rows.empty()) continue;
    layout_.add(task, task.tokens.subspan(static_cast<size_t>(task.first_pos), task.rows.size()),
                task.first_pos,
                /*num_drafted=*/0, /*wants_logits=*/false);
    rows_.insert(rows_.end(), task.rows.begin(), task.rows.end());
  }
  if (rows_.empty()) return {};
  const Arena::Frame frame(scratch);
  const View taps(taps_.data(), model.taps.dtype, {std::ssize(rows_), model.taps.dim(1)});
  const Pass pass = layout_.pass();
  parts_.ops.begin_pass(pass.rows);
  parts_.ops.gather_rows(taps, model.taps, rows_);
  parts_.drafter.absorb(pass.rows, taps, parts_.ops, parts_.weights, state.kv_layers, scratch);
  return parts_.ops.end_pass();
}

/// A block begins with the last known token, whose keys and values the context does not have yet.
Status BlockPassDrafter::propose(const State& state, Arena& scratch) {
  const Arena::Frame frame(scratch);
  layout_.clear();
  anchors_.clear();
  for (const DraftTask* task : guessing_) {
    const int64_t num_guesses = std::min(task->max_depth, parts_.drafter.spec().block_size - 1);
    block_.assign(static_cast<size_t>(1 + num_guesses), parts_.drafter.spec().mask_token_id);
    layout_.add(*task, block_, std::ssize(task->tokens) - 1, /*num_drafted=*/0, /*wants_logits=*/false);
    anchors_.push_back(task->tokens.back());
  }
  return parts_.drafter.propose(
      {.anchors = anchors_, .rows = layout_.pass().rows, .num_drawable_tokens = parts_.num_drawable_tokens},
      parts_.ops, parts_.weights, parts_.target, state.kv_layers, scratch, proposals_);
}

void BlockPassDrafter::take_chain(int64_t sequence, DraftTask& task) {
  proposals_.choose(sequence, task.sampling.front(), chain_);
  for (const DraftedToken& drafted : chain_) {
    task.draft->append(drafted.token, evidence_of_probability(drafted.confidence));
    if (drafted.confidence < parts_.least_confidence) return;
  }
}

void BlockPassDrafter::take_tree(int64_t sequence, DraftTask& task) {
  tree_.grow(proposals_, sequence, task.sampling.front(),
             {.max_tokens = task.max_tokens, .least_confidence = parts_.least_confidence}, *task.draft);
}

Status BlockPassDrafter::run(std::span<DraftTask> tasks, const ModelRows& model, const State& state,
                             Arena& scratch) {
  TF_RETURN_IF_ERROR(absorb(tasks, model, state, scratch));
  guessing_.clear();
  for (DraftTask& task : tasks)
    if (task.max_tokens > 0) guessing_.push_back(&task);
  if (guessing_.empty()) return {};
  TF_RETURN_IF_ERROR(propose(state, scratch));
  for (size_t i = 0; i < guessing_.size(); ++i) {
    const auto sequence = static_cast<int64_t>(i);
    parts_.offers_trees ? take_tree(sequence, *guessing_[i]) : take_chain(sequence, *guessing_[i]);
  }
  return {};
}

}  // namespace tensorfold
