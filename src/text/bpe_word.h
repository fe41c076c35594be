// The merge loop of byte pair encoding over one word, and the table of merges it asks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tensorfold {

/// Pairs of token ids and what they merge to. Open addressing, at most half full. Immutable once built.
class BpeMerges {
 public:
  static constexpr uint32_t kNoRank = UINT32_MAX;
  /// Lower rank merges first.
  struct Merge {
    uint32_t rank = kNoRank;  ///< kNoRank: the pair does not merge.
    int32_t merged = 0;
  };

  /// Makes room for `num_merges` calls of add().
  void reserve(size_t num_merges);
  /// The next rank merges (left, right) into `merged`. A pair added twice keeps the later rank.
  void add(int32_t left, int32_t right, int32_t merged);

  Merge find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (size_t i = slot_of(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key) return slots_[i].merge;
      if (slots_[i].key == kEmpty) return {};
    }
  }
  int32_t merged_by_rank(uint32_t rank) const { return merged_[rank]; }
  bool is_empty() const { return merged_.empty(); }

 private:
  static constexpr uint64_t kEmpty = UINT64_MAX;
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge;
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  /// The upper bits of a product depend on every bit of both ids; the seed keeps files from choosing
  /// collisions.
  size_t slot_of(uint64_t key) const { return ((key ^ seed_) * 0x9e3779b97f4a7c15ull) >> shift_; }

  std::vector<Slot> slots_{Slot{}, Slot{}};
  int shift_ = 63;
  uint64_t seed_ = 0;
  std::vector<int32_t> merged_;  // by rank
};

/// Scratch of the merge loop; reused from word to word.
struct BpeWordScratch {
  std::vector<int32_t> symbols;  ///< In: the initial symbols. Out: the ids of the word.
  std::vector<uint32_t> ranks;   ///< Of the pair (i, i + 1).
  std::vector<uint32_t> next, previous;
  std::vector<uint64_t> queue;
};

/// Merges scratch.symbols until no pair merges: always the pair of lowest rank, the leftmost of equals. Takes
/// time n log n in the number of symbols (n^2 for a few dozen). `merge_grows` says that a merged token is
/// longer than its parts (no prefix is taken off, ids are unique): then a short cut is exact; else every
/// detail of the reference's queue is kept, stale entries included.
void merge_word(const BpeMerges& merges, bool merge_grows, BpeWordScratch& scratch);

}  // namespace tensorfold
