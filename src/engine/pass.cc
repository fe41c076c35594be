// One pass through the model (engine/pass.h).
#include "engine/pass.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/arena.h"
#include "base/fp_env.h"
#include "engine/sampler.h"

namespace tensorfold {

namespace {

/// The model's layers of the pages and slots, which come before a drafter's.
State model_state(const LoadedModel& model, const KvPagePool& pool, const StateSlotPool& slots) {
  const ModelSpec& spec = model.model->spec();
  return {.kv_layers = pool.layers().first(spec.kv_layers.size()),
          .recurrent_layers = slots.layers().first(spec.recurrent_layers.size())};
}

}  // namespace

PassRunner::PassRunner(const LoadedModel& model, KvPagePool& pool, StateSlotPool& slots)
    : model_(model), pool_(pool), slots_(slots) {}

Result<std::unique_ptr<PassRunner>> PassRunner::create(const LoadedModel& model, KvPagePool& pool,
                                                       StateSlotPool& slots, const Limits& limits) {
  std::unique_ptr<PassRunner> runner(new PassRunner(model, pool, slots));
  Device& device = model.ops->device();
  const int64_t vocab_size = model.model->spec().vocab_size;
  const int64_t scratch_bytes = std::max(model.model->scratch_bytes(limits.max_rows), limits.scratch_bytes);
  TF_ASSIGN_OR_RETURN(runner->scratch_, device.allocate(scratch_bytes, "scratch memory of a pass"));
  TF_ASSIGN_OR_RETURN(
      runner->logits_,
      device.allocate(limits.max_logit_rows * vocab_size * dtype_bytes(DType::kF32), "logits of a pass"));
  if (limits.keeps_hidden) {
    const int64_t bytes = limits.max_rows * model.model->spec().hidden_size * dtype_bytes(DType::kF32);
    TF_ASSIGN_OR_RETURN(runner->hidden_, device.allocate(bytes, "hidden states of a pass"));
  }
  return runner;
}

// Rows lie in the order of the plan, so each sequence's are consecutive, as RowBatch asks.
void PassRunner::lay_out(std::span<const PlannedRows> planned) {
  tokens_.clear();
  positions_.clear();
  sequences_.clear();
  logit_rows_.clear();
  drafted_rows_.clear();
  sample_rows_.clear();
  for (const PlannedRows& rows : planned) {
    const Sequence& sequence = *rows.sequence;
    const int64_t first_pos = sequence.num_computed, end_pos = first_pos + rows.num_rows;
    const int64_t num_rows = rows.num_rows + rows.num_drafted;
    sequences_.push_back({.first_row = static_cast<int64_t>(tokens_.size()),
                          .num_rows = num_rows,
                          .first_pos = first_pos,
                          .page_table = sequence.pages.data(),
                          .state_slot = sequence.state.id(),
                          .num_drafted = rows.num_drafted});
    tokens_.insert(tokens_.end(), sequence.tokens.begin() + first_pos, sequence.tokens.begin() + end_pos);
    const Draft& draft = sequence.drafts.draft;
    if (rows.num_drafted > 0) {
      TF_DCHECK(draft.is_chain());  // so that the rows' positions follow each other
      tokens_.insert(tokens_.end(), draft.tokens.begin(), draft.tokens.begin() + rows.num_drafted);
    }
    positions_.resize(tokens_.size());
    std::iota(positions_.end() - num_rows, positions_.end(), static_cast<int32_t>(first_pos));
    if (!rows.wants_logits()) continue;
    for (int64_t i = 0; i <= rows.num_drafted; ++i) {
      const auto row = static_cast<int32_t>(std::ssize(tokens_) - rows.num_drafted - 1 + i);
      logit_rows_.push_back(row);
      if (i > 0) drafted_rows_.push_back(row);
      sample_rows_.push_back(sample_row(sequence.sampling, sequence.seed, end_pos + i));
    }
  }
  drawn_.assign(logit_rows_.size(), -1);
}

Status PassRunner::run(std::span<const PlannedRows> planned) {
  const ScopedFlushDenormals flush;  // arithmetic.md: every thread that computes
  lay_out(planned);
  Ops& ops = *model_.ops;
  const Pass pass{.tokens = tokens_,
                  .rows = {.positions = positions_, .sequences = sequences_},
                  .logit_rows = logit_rows_,
                  .drafted_rows = drafted_rows_};
  Arena scratch = this->scratch();
  const ModelSpec& spec = model_.model->spec();
  model_rows_ = {};
  if (hidden_.data() != nullptr)
    model_rows_.hidden = View(hidden_.data(), DType::kF32, {std::ssize(tokens_), spec.hidden_size});
  const View logits(logits_.data(), DType::kF32, {std::ssize(logit_rows_), spec.vocab_size});
  ops.begin_pass(pass.rows);
  model_.model->forward(pass, ops, *model_.weights,
                        model_state(model_, pool_, slots_), scratch,
                        {.logits = logits, .hidden = model_rows_.hidden});
  if (!drawn_.empty()) ops.sample(drawn_, logits.columns(0, num_drawable_tokens(model_)), sample_rows_);
  return ops.end_pass();
}

Status PassRunner::commit(std::span<const PlannedRows> planned, std::span<const int64_t> num_accepted) {
  if (model_.model->spec().recurrent_layers.empty()) return {};
  const ScopedFlushDenormals flush;
  sequences_.clear();
  positions_.clear();
  for (size_t i = 0; i < planned.size(); ++i) {
    const Sequence& sequence = *planned[i].sequence;
    const auto first_row = std::ssize(positions_);
    positions_.resize(static_cast<size_t>(first_row + planned[i].num_drafted));
    if (num_accepted[i] == 0) continue;
    const int64_t first_pos = sequence.num_computed - num_accepted[i];
    sequences_.push_back({.first_row = first_row,
                          .num_rows = num_accepted[i],
                          .first_pos = first_pos,
                          .page_table = sequence.pages.data(),
                          .state_slot = sequence.state.id()});
    std::iota(positions_.begin() + first_row, positions_.begin() + first_row + num_accepted[i],
              static_cast<int32_t>(first_pos));
  }
  if (sequences_.empty()) return {};
  Ops& ops = *model_.ops;
  const RowBatch accepted{.positions = positions_, .sequences = sequences_};
  Arena scratch = this->scratch();
  ops.begin_pass(accepted);
  model_.model->commit(accepted, ops, *model_.weights, model_state(model_, pool_, slots_), scratch);
  return ops.end_pass();
}

Result<std::span<const float>> PassRunner::logits(int64_t i) {
  const int64_t num_tokens = num_drawable_tokens(model_), vocab_size = model_.model->spec().vocab_size;
  constexpr int64_t kFloatBytes = sizeof(float);
  host_logits_.resize(static_cast<size_t>(num_tokens));
  TF_RETURN_IF_ERROR(model_.ops->device().copy_to_host(reinterpret_cast<std::byte*>(host_logits_.data()),
                                                       logits_.data() + i * vocab_size * kFloatBytes,
                                                       num_tokens * kFloatBytes));
  return std::span<const float>(host_logits_);
}

}  // namespace tensorfold
