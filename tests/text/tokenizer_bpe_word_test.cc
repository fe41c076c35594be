// The merge loop against its definition: lowest rank first, leftmost of equals.
#include <gtest/gtest.h>

#include <map>

#include "base/hash.h"
#include "tests/text/tokenizer_cases.h"
#include "text/bpe_cache.h"
#include "text/bpe_word.h"

namespace tensorfold {
namespace {

/// Random merges over `num_letters` letters: each joins two tokens that exist into a new one.
struct RandomMerges {
  BpeMerges merges;
  std::map<std::pair<int32_t, int32_t>, std::pair<uint32_t, int32_t>> plain;

  RandomMerges(Draws& draws, int32_t num_letters, int num_merges) {
    merges.reserve(num_merges);
    int32_t next = num_letters;
    for (int i = 0; i < num_merges; ++i) {
      const auto left = static_cast<int32_t>(draws.below(next)),
                 right = static_cast<int32_t>(draws.below(next));
      if (!plain.try_emplace({left, right}, plain.size(), next).second) continue;
      merges.add(left, right, next++);
    }
  }

  std::vector<int32_t> merge_plainly(std::vector<int32_t> symbols) const {
    while (true) {
      size_t best = symbols.size();
      uint32_t best_rank = UINT32_MAX;
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        const auto merge = plain.find({symbols[i], symbols[i + 1]});
        if (merge == plain.end() || merge->second.first >= best_rank) continue;
        best = i;
        best_rank = merge->second.first;
      }
      if (best == symbols.size()) return symbols;
      symbols[best] = plain.at({symbols[best], symbols[best + 1]}).second;
      symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
    }
  }
};

TEST(BpeWordTest, QueueAndScanMergeAsDefined) {
  int num_merged = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Draws draws(seed);
    const RandomMerges random(draws, 3, 40);
    for (const size_t length : {0, 1, 2, 3, 7, 20, 48, 49, 120}) {
      std::vector<int32_t> symbols;
      for (size_t i = 0; i < length; ++i) symbols.push_back(static_cast<int32_t>(draws.below(3)));
      const std::vector<int32_t> expected = random.merge_plainly(symbols);
      num_merged += static_cast<int>(symbols.size() - expected.size());
      for (const bool may_scan : {false, true}) {
        BpeWordScratch scratch;
        scratch.symbols = symbols;
        merge_word(random.merges, may_scan, scratch);
        ASSERT_EQ(scratch.symbols, expected)
            << "seed " << seed << ", length " << length << ", scan " << may_scan;
      }
    }
  }
  EXPECT_GT(num_merged, 10000);  // The inputs are not degenerate.
}

TEST(BpeWordTest, AMillionEqualSymbolsTakeNoQuadraticTime) {
  BpeMerges merges;
  merges.reserve(2);
  merges.add(0, 0, 1);
  merges.add(1, 1, 2);
  BpeWordScratch scratch;
  scratch.symbols.assign(1000001, 0);
  merge_word(merges, true, scratch);
  ASSERT_EQ(scratch.symbols.size(), 250001u);
  EXPECT_EQ(scratch.symbols.front(), 2);
  EXPECT_EQ(scratch.symbols.back(), 0);
}

TEST(BpeCacheTest, KeysAreEqualOnlyForEqualWords) {
  std::map<std::tuple<uint64_t, uint64_t, uint8_t>, std::string> seen;
  for (size_t length = 1; length <= BpeCache::kMaxWordBytes; ++length) {
    for (size_t i = 0; i < length; ++i) {
      for (const char c : {'\0', 'b', '\xff'}) {
        std::string word(length, 'a');
        word[i] = c;
        const BpeCache::Key key = BpeCache::key_of(word);
        const auto [place, is_new] = seen.try_emplace({key.head, key.tail, key.num_bytes}, word);
        EXPECT_TRUE(is_new) << place->second << " and " << word;
      }
    }
  }
}

TEST(BpeCacheTest, WordsThatDifferInLengthOnlyAreNotTakenForEachOther) {
  // Eight and nine equal letters have the same first and last eight bytes. Some of so many share a place in
  // the cache.
  BpeCache cache;
  const std::vector<int32_t> ids = {1};
  for (uint64_t i = 0; i < 300'000; ++i) {
    const uint64_t bytes = mix64(i);
    cache.put({bytes, bytes, 8}, ids);
    ASSERT_TRUE(cache.find({bytes, bytes, 9}).empty()) << i;
    ASSERT_FALSE(cache.find({bytes, bytes, 8}).empty()) << i;
  }
}

TEST(BpeCacheTest, ReturnsWhatWasPutAndNothingElse) {
  BpeCache cache;
  const std::vector<int32_t> ids = {1, 2, 3};
  const BpeCache::Key key = BpeCache::key_of("hello");
  EXPECT_TRUE(cache.find(key).empty());
  cache.put(key, ids);
  const std::span<const int32_t> found = cache.find(key);
  EXPECT_EQ(std::vector<int32_t>(found.begin(), found.end()), ids);
  EXPECT_TRUE(cache.find(BpeCache::key_of("hellp")).empty());
  const std::vector<int32_t> too_many(BpeCache::kMaxIds + 1, 7);
  cache.put(BpeCache::key_of("many"), too_many);
  EXPECT_TRUE(cache.find(BpeCache::key_of("many")).empty());
}

}  // namespace
}  // namespace tensorfold
