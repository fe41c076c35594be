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
  runner->tap_layers_.assign(limits.tap_layers.begin(), limits.tap_layers.end());
  if (!limits.tap_layers.empty()) {
    const ModelSpec& spec = model.model->spec();
    const int64_t bytes = limits.max_rows * std::ssize(limits.tap_layers) * spec.hidden_size *
                          dtype_bytes(spec.activation_dtype);
    TF_ASSIGN_OR_RETURN(runner->taps_, device.allocate(bytes, "residual streams of a pass"));
  }
  return runner;
}

/// Where the pass that is laid out leaves its results.
Outputs PassRunner::outputs() {
  const ModelSpec& spec = model_.model->spec();
  const int64_t T = std::ssize(tokens_), num_taps = std::ssize(tap_layers_);
  Outputs outputs;
  outputs.logits = View(logits_.data(), DType::kF32, {std::ssize(logit_rows_), spec.vocab_size});
  if (hidden_.data() != nullptr) outputs.hidden = View(hidden_.data(), DType::kF32, {T, spec.hidden_size});
  if (num_taps > 0) {
    while (std::ssize(all_rows_) < T) all_rows_.push_back(static_cast<int32_t>(all_rows_.size()));
    outputs.taps = {.layers = tap_layers_,
                    .rows = std::span(all_rows_).first(tokens_.size()),
                    .out = View(taps_.data(), spec.activation_dtype, {T, num_taps * spec.hidden_size})};
  }
  model_rows_ = {.hidden = outputs.hidden, .taps = outputs.taps.out};
  return outputs;
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
    const DraftBranches& branches = sequence.drafts.branches;
    if (branches.is_empty()) {
      lay_out(
          {.rows = rows,
           .guesses = std::span(sequence.drafts.draft.tokens).first(static_cast<size_t>(rows.num_drafted)),
           .page_table = sequence.pages.data(),
           .num_drafted = rows.num_drafted,
           .first_logit = rows.num_rows - 1});
      continue;
    }
    for (const DraftBranch& branch : branches.branches()) {
      // What earlier branches have as well, the last known token included, has its token from there.
      const bool is_first = &branch == &branches.branches().front();
      lay_out({.rows = rows,
               .guesses = branch.tokens,
               .page_table = is_first ? sequence.pages.data() : branch.pages.data(),
               .num_drafted = branch.num_rows(),
               .first_logit = is_first ? 0 : 1 + branch.num_shared});
    }
  }
  drawn_.assign(logit_rows_.size(), -1);
}

void PassRunner::lay_out(const RowRun& run) {
  const Sequence& sequence = *run.rows.sequence;
  const int64_t first_row = std::ssize(tokens_), first_pos = sequence.num_computed;
  const int64_t num_rows = run.rows.num_rows + std::ssize(run.guesses);
  sequences_.push_back({.first_row = first_row,
                        .num_rows = num_rows,
                        .first_pos = first_pos,
                        .page_table = run.page_table,
                        .state_slot = sequence.state.id(),
                        .num_drafted = run.num_drafted});
  const auto known = sequence.tokens.begin() + first_pos;
  tokens_.insert(tokens_.end(), known, known + run.rows.num_rows);
  tokens_.insert(tokens_.end(), run.guesses.begin(), run.guesses.end());
  positions_.resize(tokens_.size());
  std::iota(positions_.end() - num_rows, positions_.end(), static_cast<int32_t>(first_pos));
  for (int64_t i = num_rows - run.num_drafted; i < num_rows; ++i)
    drafted_rows_.push_back(static_cast<int32_t>(first_row + i));
  if (!run.rows.wants_logits()) return;
  for (int64_t i = run.first_logit; i < num_rows; ++i) {
    logit_rows_.push_back(static_cast<int32_t>(first_row + i));
    sample_rows_.push_back(sample_row(sequence.sampling, sequence.seed, first_pos + i + 1));
  }
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
  const Outputs outputs = this->outputs();
  ops.begin_pass(pass.rows);
  model_.model->forward(pass, ops, *model_.weights, model_state(model_, pool_, slots_), scratch, outputs);
  if (!drawn_.empty())
    ops.sample(drawn_, outputs.logits.columns(0, num_drawable_tokens(model_)), sample_rows_);
  return ops.end_pass();
}

Status PassRunner::commit(std::span<const PlannedRows> planned, std::span<const AcceptedRows> accepted) {
  if (model_.model->spec().recurrent_layers.empty()) return {};
  const ScopedFlushDenormals flush;
  sequences_.clear();
  positions_.clear();
  for (size_t i = 0; i < planned.size(); ++i) {
    const Sequence& sequence = *planned[i].sequence;
    const auto first_drafted = std::ssize(positions_);
    positions_.resize(static_cast<size_t>(first_drafted + planned[i].num_drafted_rows()));
    const int64_t first_row = first_drafted + accepted[i].first_row, num_rows = accepted[i].num_rows;
    if (num_rows == 0) continue;
    const int64_t first_pos = sequence.num_computed - num_rows;
    sequences_.push_back({.first_row = first_row,
                          .num_rows = num_rows,
                          .first_pos = first_pos,
                          .page_table = sequence.pages.data(),
                          .state_slot = sequence.state.id()});
    std::iota(positions_.begin() + first_row, positions_.begin() + first_row + num_rows,
              static_cast<int32_t>(first_pos));
  }
  if (sequences_.empty()) return {};
  Ops& ops = *model_.ops;
  const RowBatch rows{.positions = positions_, .sequences = sequences_};
  Arena scratch = this->scratch();
  ops.begin_pass(rows);
  model_.model->commit(rows, ops, *model_.weights, model_state(model_, pool_, slots_), scratch);
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
