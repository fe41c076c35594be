// See tape.h.
#include "drafters/tape.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tensorfold {

TapeDrafter::TapeDrafter(int64_t num_prompt_tokens, std::vector<int32_t> reply)
    : num_prompt_tokens_(num_prompt_tokens), reply_(std::move(reply)) {}

void TapeDrafter::extend(std::span<const int32_t> tokens) { num_tokens_ += std::ssize(tokens); }

void TapeDrafter::propose(int64_t max_tokens, Draft& draft) {
  draft.clear();
  ++stats_.searches;
  const int64_t first = num_tokens_ - num_prompt_tokens_;
  const int64_t end = std::min(first + std::min(max_tokens, kMaxDraftTokens), std::ssize(reply_));
  if (first < 0 || first >= end) return;
  for (int64_t i = first; i < end; ++i) draft.append(reply_[i], kNumEvidence - 1);
  ++stats_.matches;
  stats_.match_tokens += num_tokens_;
}

AdversaryDrafter::AdversaryDrafter(int64_t num_prompt_tokens, std::vector<int32_t> reply, int64_t vocab_size,
                                   int64_t num_right)
    : TapeDrafter(num_prompt_tokens, std::move(reply)), vocab_size_(vocab_size), num_right_(num_right) {
  TF_CHECK(vocab_size >= 2);
}

void AdversaryDrafter::propose(int64_t max_tokens, Draft& draft) {
  TapeDrafter::propose(max_tokens, draft);
  if (draft.is_empty()) return;
  const int64_t wrong = num_right_ >= 0 ? num_right_ : num_proposals_ % draft.size();
  ++num_proposals_;
  int32_t& token = draft.tokens[static_cast<size_t>(std::min(wrong, draft.size() - 1))];
  token = static_cast<int32_t>((token + 1) % vocab_size_);
}

TreeTapeDrafter::TreeTapeDrafter(int64_t num_prompt_tokens, std::vector<int32_t> reply, int64_t vocab_size,
                                 const Shape& shape)
    : TapeDrafter(num_prompt_tokens, std::move(reply)), vocab_size_(vocab_size), shape_(shape) {
  TF_CHECK(shape.num_before >= 0 && shape.num_after >= 0 &&
           vocab_size > shape.num_before + shape.num_after + 1);
}

// By depth, so that a shorter draft is a smaller tree and not a part of one branch.
void TreeTapeDrafter::propose(int64_t max_tokens, Draft& draft) {
  TapeDrafter::propose(max_tokens, draft);
  const std::vector<int32_t> reply = draft.tokens;
  const auto num_right =
      shape_.num_right >= 0 ? shape_.num_right : num_proposals_ % std::max<int64_t>(std::ssize(reply), 1);
  ++num_proposals_;
  const int64_t num_siblings = shape_.num_before + 1 + shape_.num_after;
  draft.truncate(0);
  int64_t right = -1;          // the guess that all before it lead to
  std::vector<int64_t> wrong;  // those beside it
  for (int64_t depth = 0; depth < std::ssize(reply); ++depth) {
    for (const int64_t node : wrong) draft.append_to(node, reply[depth], kNumEvidence - 1);
    wrong.clear();
    const int64_t parent = right;
    for (int64_t i = 0; i < num_siblings; ++i) {
      // What is added to the reply's token: another number for each of them, 0 for itself.
      const bool is_right = i == shape_.num_before;
      int64_t shift = i < shape_.num_before ? i + 1 : i;
      if (is_right) shift = depth == num_right ? num_siblings : 0;
      draft.append_to(parent, static_cast<int32_t>((reply[depth] + shift) % vocab_size_), kNumEvidence - 1);
      is_right ? void(right = draft.size() - 1) : wrong.push_back(draft.size() - 1);
    }
  }
  draft.truncate(std::ssize(reply));
}

}  // namespace tensorfold
