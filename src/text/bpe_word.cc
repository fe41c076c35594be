// text/bpe_word.h: a scan for the minimum where words are short, a queue where they are not.
#include "text/bpe_word.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "text/tokenizer_vocab.h"

namespace tensorfold {
namespace {

/// Up to here, finding the minimum in one or two cache lines beats keeping a queue.
constexpr size_t kMaxScannedSymbols = 48;
constexpr uint32_t kNone = UINT32_MAX;

void merge_by_scanning(const BpeMerges& merges, BpeWordScratch& scratch) {
  std::vector<int32_t>& symbols = scratch.symbols;
  size_t n = symbols.size();
  scratch.ranks.resize(n);
  uint32_t* ranks = scratch.ranks.data();
  const auto rank_at = [&](size_t i) {
    return i + 1 < n ? merges.find(symbols[i], symbols[i + 1]).rank : BpeMerges::kNoRank;
  };
  for (size_t i = 0; i < n; ++i) ranks[i] = rank_at(i);
  while (true) {
    const size_t best = static_cast<size_t>(std::min_element(ranks, ranks + n) - ranks);
    if (ranks[best] == BpeMerges::kNoRank) break;
    symbols[best] = merges.merged_by_rank(ranks[best]);
    const size_t num_after = n - best - 2;
    std::memmove(&symbols[best + 1], symbols.data() + best + 2, num_after * sizeof symbols[0]);
    std::memmove(ranks + best + 1, ranks + best + 2, num_after * sizeof ranks[0]);
    --n;
    ranks[best] = rank_at(best);
    if (best > 0) ranks[best - 1] = rank_at(best - 1);
  }
  symbols.resize(n);
}

/// Candidates ordered by (rank, position of the left symbol). A candidate is stale when its left symbol was
/// absorbed, has become the last, or its pair now merges to something else.
class QueuedMerge {
 public:
  QueuedMerge(const BpeMerges& merges, BpeWordScratch& scratch)
      : merges_(merges), s_(scratch), num_(static_cast<uint32_t>(scratch.symbols.size())) {
    s_.next.resize(num_);
    s_.previous.resize(num_);
    s_.queue.clear();
    for (uint32_t i = 0; i < num_; ++i) {
      s_.next[i] = i + 1 < num_ ? i + 1 : kNone;
      s_.previous[i] = i > 0 ? i - 1 : kNone;
    }
    for (uint32_t i = 0; i + 1 < num_; ++i) {
      const uint32_t rank = merges_.find(s_.symbols[i], s_.symbols[i + 1]).rank;
      if (rank != BpeMerges::kNoRank) s_.queue.push_back(uint64_t{rank} << 32 | i);
    }
    std::make_heap(s_.queue.begin(), s_.queue.end(), std::greater<>());
  }

  void run() {
    while (!s_.queue.empty()) {
      std::pop_heap(s_.queue.begin(), s_.queue.end(), std::greater<>());
      const uint64_t top = s_.queue.back();
      s_.queue.pop_back();
      merge_at(static_cast<uint32_t>(top), static_cast<uint32_t>(top >> 32));
    }
    size_t kept = 0;
    for (uint32_t i = 0; i != kNone && i < num_; i = s_.next[i]) s_.symbols[kept++] = s_.symbols[i];
    s_.symbols.resize(kept);
  }

 private:
  static constexpr int32_t kAbsorbed = -1;

  void merge_at(uint32_t left, uint32_t rank) {
    const int32_t merged = merges_.merged_by_rank(rank);
    if (s_.symbols[left] == kAbsorbed || s_.next[left] == kNone) return;
    const uint32_t right = s_.next[left];
    const BpeMerges::Merge current = merges_.find(s_.symbols[left], s_.symbols[right]);
    if (current.rank == BpeMerges::kNoRank || current.merged != merged) return;
    s_.symbols[left] = merged;
    s_.symbols[right] = kAbsorbed;
    s_.next[left] = s_.next[right];
    if (s_.next[left] != kNone) s_.previous[s_.next[left]] = left;
    if (s_.previous[left] != kNone) push(s_.previous[left]);
    if (s_.next[left] != kNone) push(left);
  }

  void push(uint32_t left) {
    const uint32_t rank = merges_.find(s_.symbols[left], s_.symbols[s_.next[left]]).rank;
    if (rank == BpeMerges::kNoRank) return;
    s_.queue.push_back(uint64_t{rank} << 32 | left);
    std::push_heap(s_.queue.begin(), s_.queue.end(), std::greater<>());
  }

  const BpeMerges& merges_;
  BpeWordScratch& s_;
  uint32_t num_;
};

}  // namespace

void BpeMerges::reserve(size_t num_merges) {
  const size_t size = std::bit_ceil(2 * num_merges + 2);
  slots_.assign(size, Slot{});
  shift_ = 64 - std::countr_zero(size);
  seed_ = tokenizer_hash_seed();
  merged_.clear();
  merged_.reserve(num_merges);
}

void BpeMerges::add(int32_t left, int32_t right, int32_t merged) {
  const uint64_t key = key_of(left, right);
  size_t i = slot_of(key);
  while (slots_[i].key != key && slots_[i].key != kEmpty) i = (i + 1) & (slots_.size() - 1);
  slots_[i] = {key, {static_cast<uint32_t>(merged_.size()), merged}};
  merged_.push_back(merged);
}

void merge_word(const BpeMerges& merges, bool merge_grows, BpeWordScratch& scratch) {
  if (scratch.symbols.size() < 2 || merges.is_empty()) return;
  if (merge_grows && scratch.symbols.size() <= kMaxScannedSymbols) {
    merge_by_scanning(merges, scratch);
  } else {
    QueuedMerge(merges, scratch).run();
  }
}

}  // namespace tensorfold
