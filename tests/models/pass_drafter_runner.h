// A PassDrafter on its own: the memory that an engine would give it, and turns of one sequence.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "drafters/pass_drafter.h"
#include "tests/support/test_model.h"

namespace tensorfold {

/// A drafter and the pages of one sequence, which lie in reverse order.
class PassDrafterRunner {
 public:
  PassDrafterRunner(Ops& ops, std::unique_ptr<PassDrafter> drafter, int64_t max_tokens)
      : ops_(ops), drafter_(std::move(drafter)), page_table_((max_tokens + kPageTokens - 1) / kPageTokens) {
    std::iota(page_table_.rbegin(), page_table_.rend(), 0);
    const auto num_pages = std::ssize(page_table_);
    for (const KvShape& shape : drafter_->kv_layers()) {
      const int64_t page_bytes = ops.kv_page_bytes(shape);
      memory_.push_back(allocate(2 * num_pages * page_bytes));
      std::byte* keys = memory_.back().data();
      EXPECT_TRUE(ops.device().zero(keys, 2 * num_pages * page_bytes).ok());
      pages_.push_back({shape, keys, keys + num_pages * page_bytes, page_bytes, num_pages});
    }
    EXPECT_TRUE(drafter_->prepare(/*max_tasks=*/2, max_tokens, kMaxDraftTokens).ok());
    scratch_ = allocate(drafter_->scratch_bytes());
  }

  /// A turn of `tokens`, of which the model computed all but the last, from first_pos on, since the turn
  /// before: row p of `model` is that of position p. Greedy guesses.
  Draft turn(std::span<const int32_t> tokens, const ModelRows& model, int64_t first_pos, int64_t max_tokens) {
    return turn(tokens, model, first_pos, {.max_tokens = max_tokens, .max_depth = max_tokens});
  }

  /// A turn of a drafter that does not follow the model, in which it catches up on so many positions.
  void catch_up(std::span<const int32_t> tokens, int64_t count) {
    EXPECT_TRUE(turn(tokens, {}, std::ssize(tokens) - 1, {.num_catch_up = count}).is_empty());
  }
  /// Positions that it says it holds.
  int64_t num_absorbed() const { return num_absorbed_; }

 private:
  struct Wanted {
    int64_t max_tokens = 0, max_depth = 0, num_catch_up = 0;
  };
  Draft turn(std::span<const int32_t> tokens, const ModelRows& model, int64_t first_pos,
             const Wanted& wanted) {
    std::vector<int32_t> rows(std::ssize(tokens) - 1 - first_pos);
    std::iota(rows.begin(), rows.end(), static_cast<int32_t>(first_pos));
    const std::vector<SampleRow> sampling(wanted.max_depth, {.temperature = 0});
    Draft draft;
    DraftTask task{.tokens = tokens,
                   .rows = rows,
                   .first_pos = first_pos,
                   .num_absorbed = num_absorbed_,
                   .page_table = page_table_.data(),
                   .max_tokens = wanted.max_tokens,
                   .max_depth = wanted.max_depth,
                   .num_catch_up = wanted.num_catch_up,
                   .sampling = sampling,
                   .draft = &draft};
    Arena scratch(scratch_.data(), scratch_.size_bytes());
    EXPECT_TRUE(drafter_->run({&task, 1}, model, {pages_, {}}, scratch).ok());
    num_absorbed_ = task.num_absorbed;
    return draft;
  }

  Buffer allocate(int64_t bytes) { return ops_.device().allocate(bytes, "drafter").value(); }

  Ops& ops_;
  std::unique_ptr<PassDrafter> drafter_;
  std::vector<int32_t> page_table_;
  std::vector<Buffer> memory_;
  std::vector<KvPages> pages_;
  Buffer scratch_;
  int64_t num_absorbed_ = 0;
};

}  // namespace tensorfold
