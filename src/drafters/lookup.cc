// The index behind drafters/lookup.h.
#include "drafters/lookup.h"

#include <algorithm>

#include "base/check.h"
#include "base/hash.h"

namespace tensorfold {
namespace {

constexpr int32_t kEndOfText = -1;  // equals no token
constexpr int64_t kOrders[] = {5, 2};
constexpr size_t kFirstHeads = 256;

/// Longer matches are surer.
int evidence_of(int64_t match_length) {
  constexpr int64_t kBorders[kNumEvidence - 1] = {3, 5, 9};
  int evidence = 0;
  while (evidence < kNumEvidence - 1 && match_length >= kBorders[evidence]) ++evidence;
  return evidence;
}

}  // namespace

LookupDrafter::LookupDrafter(const LookupOptions& options) : options_(options) {
  TF_CHECK(options.max_match >= kOrders[0] && options.max_candidates >= 1 && options.max_tokens >= 16);
  for (size_t i = 0; i < chains_.size(); ++i) {
    chains_[i].order = kOrders[i];
    chains_[i].heads.assign(kFirstHeads, -1);
  }
}

void LookupDrafter::add_text(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) push(token);
  push(kEndOfText);
}

void LookupDrafter::extend(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) push(token);
}

void LookupDrafter::push(int32_t token) {
  if (num_tokens() >= options_.max_tokens) forget_older_half();
  const int32_t run = tokens_.empty() ? 0 : run_lengths_.back();
  tokens_.push_back(token);
  run_lengths_.push_back(token == kEndOfText ? 0 : run + 1);
  for (Chains& chains : chains_) {
    // Twice as many heads as tokens keep strangers out of most chains; doubling costs each token a constant.
    if (tokens_.size() * 2 > chains.heads.size()) {
      chains.heads.assign(chains.heads.size() * 2, -1);
      rebuild(chains);
    } else {
      insert(chains);
    }
  }
}

/// Puts the last position in its chain.
void LookupDrafter::insert(Chains& chains) {
  const int64_t pos = std::ssize(chains.previous);
  int32_t before = -1;
  if (run_lengths_[pos] >= chains.order) {
    int32_t& head = chains.heads[bucket(chains, pos)];
    before = head;
    head = static_cast<int32_t>(pos);
  }
  chains.previous.push_back(before);
}

void LookupDrafter::rebuild(Chains& chains) {
  std::fill(chains.heads.begin(), chains.heads.end(), -1);
  chains.previous.clear();
  while (std::ssize(chains.previous) < num_tokens()) insert(chains);
}

size_t LookupDrafter::bucket(const Chains& chains, int64_t pos) const {
  uint64_t hash = 0;
  for (int64_t i = pos - chains.order + 1; i <= pos; ++i)
    hash = mix64(hash + static_cast<uint32_t>(tokens_[i]));
  return hash & (chains.heads.size() - 1);
}

/// Tokens that the text up to `pos` and the text up to its end have in common at their ends.
int64_t LookupDrafter::match_length(int64_t pos) const {
  const int64_t last = num_tokens() - 1;
  const int64_t longest = std::min<int64_t>({options_.max_match, run_lengths_[last], run_lengths_[pos]});
  int64_t length = 0;
  while (length < longest && tokens_[pos - length] == tokens_[last - length]) ++length;
  return length;
}

LookupDrafter::Match LookupDrafter::find(const Chains& chains) {
  Match best;
  const int64_t last = num_tokens() - 1;
  if (last < 0 || run_lengths_[last] < chains.order) return best;
  int32_t pos = chains.previous[last];
  for (int64_t i = 0; i < options_.max_candidates && pos >= 0; ++i, pos = chains.previous[pos]) {
    ++num_candidates_;
    const int64_t length = match_length(pos);
    if (length > best.length) best = {.end = pos + 1, .length = length};
    if (best.length == options_.max_match) break;  // an older one cannot be longer
  }
  return best.length >= chains.order ? best : Match{};
}

void LookupDrafter::propose(int64_t max_tokens, Draft& draft) {
  draft.clear();
  ++stats_.searches;
  Match match;
  for (const Chains& chains : chains_)
    if (match.length == 0) match = find(chains);
  if (match.length == 0) return;
  const int64_t count = std::min(max_tokens, kMaxDraftTokens);
  const int evidence = evidence_of(match.length);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t pos = match.end + i;
    const int32_t token = pos < num_tokens() ? tokens_[pos] : draft.tokens[pos - num_tokens()];
    if (token == kEndOfText) break;
    draft.append(token, evidence);
  }
  if (draft.is_empty()) return;
  ++stats_.matches;
  stats_.match_tokens += match.length;
}

void LookupDrafter::forget_older_half() {
  const auto kept = static_cast<long>(tokens_.size() / 2);
  tokens_.erase(tokens_.begin(), tokens_.end() - kept);
  run_lengths_.erase(run_lengths_.begin(), run_lengths_.end() - kept);
  for (size_t i = 0, run = 0; i < tokens_.size(); ++i) {
    run = tokens_[i] == kEndOfText ? 0 : run + 1;
    run_lengths_[i] = static_cast<int32_t>(run);
  }
  for (Chains& chains : chains_) rebuild(chains);
}

}  // namespace tensorfold
