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
  constexpr int64_t kBorders[] = {3, 5, 9};
  constexpr auto kLeast = kNumEvidence - 1 - std::ssize(kBorders);
  return static_cast<int>(
      kLeast + std::ranges::count_if(kBorders, [&](int64_t border) { return match_length >= border; }));
}

}  // namespace

LookupDrafter::LookupDrafter(const LookupOptions& options)
    : options_(options), branches_(static_cast<size_t>(std::max<int64_t>(options.max_branches, 1))) {
  TF_CHECK(options.max_match >= kOrders[0] && options.max_candidates >= 1 && options.max_tokens >= 16 &&
           options.max_branches >= 1);
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

/// Whether the token at `end` follows none of the matches so far, and is one.
bool LookupDrafter::is_followed_anew(int64_t end) const {
  return tokens_[end] != kEndOfText &&
         std::none_of(matches_.begin(), matches_.end(),
                      [&](const Match& match) { return tokens_[match.end] == tokens_[end]; });
}

/// Fills matches_.
void LookupDrafter::find(const Chains& chains) {
  matches_.clear();
  const int64_t last = num_tokens() - 1;
  if (last < 0 || run_lengths_[last] < chains.order) return;
  int32_t pos = chains.previous[last];
  int64_t longest = 0;
  for (int64_t i = 0; i < options_.max_candidates && pos >= 0; ++i, pos = chains.previous[pos]) {
    ++num_candidates_;
    const int64_t length = match_length(pos);
    if (length < chains.order) continue;
    if (length > longest) {
      longest = length;
      matches_.assign(1, {.end = pos + 1, .length = length});
    } else if (length == longest && std::ssize(matches_) < options_.max_branches &&
               is_followed_anew(pos + 1)) {
      matches_.push_back({.end = pos + 1, .length = length});
    }
    // An older one cannot be longer.
    if (longest == options_.max_match && std::ssize(matches_) == options_.max_branches) break;
  }
}

void LookupDrafter::propose(int64_t max_tokens, Draft& draft) {
  draft.clear();
  ++stats_.searches;
  matches_.clear();
  for (const Chains& chains : chains_)
    if (matches_.empty()) find(chains);
  if (matches_.empty()) return;
  extend_branches(std::min(max_tokens, kMaxDraftTokens), draft);
  if (draft.is_empty()) return;
  ++stats_.matches;
  stats_.match_tokens += matches_.front().length;
}

/// Adds a guess to each branch in turn until there are `count`, or none goes on.
void LookupDrafter::extend_branches(int64_t count, Draft& draft) {
  for (Branch& branch : branches_) {
    branch.tokens.clear();
    branch.last = -1;
  }
  for (int64_t depth = 0, size = -1; draft.size() < count && draft.size() > size; ++depth) {
    size = draft.size();
    for (size_t i = 0; i < matches_.size() && draft.size() < count; ++i) {
      Branch& branch = branches_[i];
      if (std::ssize(branch.tokens) < depth) continue;  // its text has ended
      const int64_t pos = matches_[i].end + depth;
      const int32_t token = pos < num_tokens() ? tokens_[pos] : branch.tokens[pos - num_tokens()];
      if (token == kEndOfText) continue;
      draft.append_to(branch.last, token, evidence_of(matches_[i].length));
      branch.last = draft.size() - 1;
      branch.tokens.push_back(token);
    }
  }
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
