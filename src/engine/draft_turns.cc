// See draft_turns.h.
#include "engine/draft_turns.h"

#include <utility>

#include "base/fp_env.h"
#include "engine/sampler.h"

namespace tensorfold {

DraftTurns::DraftTurns(std::unique_ptr<PassDrafter> drafter, const KvPagePool& pool,
                       const StateSlotPool& slots)
    : drafter_(std::move(drafter)),
      state_{.kv_layers = pool.layers().last(drafter_->kv_layers().size()),
             .recurrent_layers = slots.layers().last(drafter_->recurrent_layers().size())} {}

Status DraftTurns::run(std::span<Entry> entries, const ModelRows& model_rows, Arena scratch) {
  const ScopedFlushDenormals flush;
  sampling_.clear();
  for (const Entry& entry : entries) {
    const Sequence& sequence = *entry.sequence;
    for (int64_t i = 0; i < entry.max_depth; ++i)
      sampling_.push_back(sample_row(sequence.sampling, sequence.seed, sequence.num_tokens() + i));
  }
  tasks_.clear();
  std::span<const SampleRow> left = sampling_;
  for (Entry& entry : entries) {
    Sequence& sequence = *entry.sequence;
    const ComputedDrafts& computed = sequence.drafts.computed;
    const auto count = static_cast<size_t>(entry.max_depth);
    entry.draft.clear();
    tasks_.push_back({.tokens = sequence.tokens,
                      .rows = computed.rows,
                      .first_pos = computed.first_pos,
                      .num_absorbed = computed.num_absorbed,
                      .page_table = sequence.pages.data(),
                      .state_slot = sequence.state.id(),
                      .max_tokens = entry.max_tokens,
                      .max_depth = entry.max_depth,
                      .num_catch_up = entry.num_catch_up,
                      .sampling = left.first(count),
                      .draft = &entry.draft});
    left = left.subspan(count);
  }
  TF_RETURN_IF_ERROR(drafter_->run(tasks_, model_rows, state_, scratch));
  for (size_t i = 0; i < entries.size(); ++i) {
    ComputedDrafts& computed = entries[i].sequence->drafts.computed;
    computed.num_absorbed = tasks_[i].num_absorbed;
    computed.rows.clear();
  }
  return {};
}

}  // namespace tensorfold
