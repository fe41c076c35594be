// The rows of a drafter's pass, put together sequence by sequence. Kept between passes, so that none of it is
// allocated again.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "drafters/pass_drafter.h"
#include "models/model.h"

namespace tensorfold {

/// Rows of a pass in the order in which they are added.
class PassLayout {
 public:
  void clear() {
    tokens_.clear();
    positions_.clear();
    sequences_.clear();
    logit_rows_.clear();
  }

  /// The rows of one sequence: `tokens` at first_pos and the positions after it, the last num_drafted of them
  /// guesses. Those of the last row are wanted if wants_logits.
  void add(const DraftTask& task, std::span<const int32_t> tokens, int64_t first_pos, int64_t num_drafted,
           bool wants_logits) {
    const auto num_rows = std::ssize(tokens), first_row = std::ssize(tokens_);
    sequences_.push_back({.first_row = first_row,
                          .num_rows = num_rows,
                          .first_pos = first_pos,
                          .page_table = task.page_table,
                          .state_slot = task.state_slot,
                          .num_drafted = num_drafted});
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    positions_.resize(tokens_.size());
    std::iota(positions_.end() - num_rows, positions_.end(), static_cast<int32_t>(first_pos));
    if (wants_logits) logit_rows_.push_back(static_cast<int32_t>(first_row + num_rows - 1));
  }

  int64_t num_rows() const { return std::ssize(tokens_); }
  std::span<const int32_t> logit_rows() const { return logit_rows_; }

  /// Tokens that a model of so many does not have become its first one: they can only come of a prompt.
  void limit_tokens(int64_t vocab_size) {
    for (int32_t& token : tokens_)
      if (token >= vocab_size) token = 0;
  }

  /// Until the next change. Its drafted rows are none that a commit will want: a drafter's state takes in
  /// what is known only.
  Pass pass() const {
    return {.tokens = tokens_,
            .rows = {.positions = positions_, .sequences = sequences_},
            .logit_rows = logit_rows_};
  }

 private:
  std::vector<int32_t> tokens_, positions_, logit_rows_;
  std::vector<SequenceRows> sequences_;
};

}  // namespace tensorfold
