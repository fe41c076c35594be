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

}  // namespace tensorfold
