// A model's draft head on its own: the memory that an engine would give it, and passes of one sequence.
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/support/test_model.h"

namespace tensorfold {

/// The head of a model that has one, with one sequence of its own, from position 0 on.
class HeadRunner {
 public:
  HeadRunner(const TestModel& model, int64_t max_tokens)
      : model_(model), head_(*model.model->draft_head()), max_tokens_(max_tokens) {
    const int64_t num_pages = (max_tokens + kPageTokens - 1) / kPageTokens;
    page_table_.resize(num_pages);
    std::iota(page_table_.begin(), page_table_.end(), 0);
    for (const KvShape& shape : head_.kv_layers()) {
      const int64_t page_bytes = model.ops->kv_page_bytes(shape);
      blocks_.push_back(allocate(2 * num_pages * page_bytes));
      std::byte* keys = blocks_.back().data();
      EXPECT_TRUE(model.ops->device().zero(keys, 2 * num_pages * page_bytes).ok());
      pages_.push_back({shape, keys, keys + num_pages * page_bytes, page_bytes, num_pages});
    }
    scratch_ = allocate(head_.scratch_bytes(max_tokens));
    logits_ = allocate(max_tokens * model.model->spec().vocab_size * 4);
    hidden_ = allocate(max_tokens * model.model->spec().hidden_size * 4);
  }

  struct Rows {
    std::vector<float> logits;  ///< [T, V].
    std::vector<float> hidden;  ///< [T, E].
  };

  /// Runs the next rows: `tokens` [T] at the positions after those of `hidden` [T, E].
  Rows append(std::span<const int32_t> tokens, View hidden) {
    const auto num_rows = std::ssize(tokens);
    std::vector<int32_t> positions(num_rows), all(num_rows);
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(num_tokens_));
    std::iota(all.begin(), all.end(), 0);
    const SequenceRows sequence = {0, num_rows, num_tokens_, page_table_.data()};
    const Pass pass = {.tokens = tokens, .rows = {positions, {&sequence, 1}}, .logit_rows = all};
    const ModelSpec& spec = model_.model->spec();
    const Outputs outputs = {.logits = View(logits_.data(), DType::kF32, {num_rows, spec.vocab_size}),
                             .hidden = View(hidden_.data(), DType::kF32, {num_rows, spec.hidden_size})};
    Arena scratch(scratch_.data(), scratch_.size_bytes());
    model_.ops->begin_pass(pass.rows);
    head_.forward(pass, hidden, *model_.ops, *model_.weights, {pages_, {}}, scratch, outputs);
    EXPECT_TRUE(model_.ops->end_pass().ok());
    num_tokens_ += num_rows;
    EXPECT_LE(num_tokens_, max_tokens_);
    return {to_host(outputs.logits), to_host(outputs.hidden)};
  }

  /// The last of append()'s hidden states, on the device: for a chained draft.
  View last_hidden(int64_t num_rows) const {
    return View(hidden_.data(), DType::kF32, {num_rows, model_.model->spec().hidden_size})
        .rows(num_rows - 1, 1);
  }

 private:
  Buffer allocate(int64_t bytes) { return model_.ops->device().allocate(bytes, "draft head").value(); }
  std::vector<float> to_host(View view) {
    std::vector<float> values(view.num_elements());
    EXPECT_TRUE(
        model_.ops->device()
            .copy_to_host(reinterpret_cast<std::byte*>(values.data()), view.data, std::ssize(values) * 4)
            .ok());
    return values;
  }

  const TestModel& model_;
  const DraftHead& head_;
  int64_t max_tokens_;
  int64_t num_tokens_ = 0;
  std::vector<Buffer> blocks_;
  std::vector<KvPages> pages_;
  std::vector<int32_t> page_table_;
  Buffer scratch_, logits_, hidden_;
};

}  // namespace tensorfold
