// Prompt lookup against its definition by brute force, and its bounds.
#include "drafters/lookup.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/hash.h"

namespace tensorfold {
namespace {

using Tokens = std::vector<int32_t>;

/// Texts and the sequence, with -1 after each text.
Tokens joined(const std::vector<Tokens>& texts, const Tokens& sequence) {
  Tokens all;
  for (const Tokens& text : texts) {
    all.insert(all.end(), text.begin(), text.end());
    all.push_back(-1);
  }
  all.insert(all.end(), sequence.begin(), sequence.end());
  return all;
}

/// The definition: over all earlier ends, the longest common suffix of at least two tokens, at most max_match
/// counted; the latest of equals.
Tokens expected_proposal(const Tokens& all, int64_t sequence_tokens, int64_t max_match, int64_t max_tokens) {
  const auto n = std::ssize(all);
  int64_t best_length = 1, best_end = 0;
  for (int64_t end = 1; end < n; ++end) {
    int64_t length = 0;
    while (length < std::min({max_match, sequence_tokens, end}) && all[end - 1 - length] >= 0 &&
           all[end - 1 - length] == all[n - 1 - length])
      ++length;
    if (length >= 2 && length >= best_length) {
      best_length = length;
      best_end = end;
    }
  }
  if (best_length < 2) return {};
  Tokens longer = all;  // the proposal may read itself
  for (int64_t i = 0; i < max_tokens && longer[best_end + i] >= 0; ++i)
    longer.push_back(longer[best_end + i]);
  return {longer.begin() + n, longer.end()};
}

Tokens random_tokens(int64_t count, int32_t alphabet, uint64_t seed) {
  Tokens tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>(mix64(seed * 1000003 + i) % static_cast<uint64_t>(alphabet)));
  return tokens;
}

/// Random tokens that now and then repeat a piece of what was there.
Tokens repetitive_tokens(int64_t count, int32_t alphabet, uint64_t seed) {
  Tokens tokens = random_tokens(8, alphabet, seed);
  for (uint64_t i = 0; std::ssize(tokens) < count; ++i) {
    const uint64_t word = mix64(seed ^ mix64(i));
    if (word % 4 == 0) {
      const size_t from = (word >> 8) % tokens.size();
      for (size_t j = 0; j < 3 + (word >> 40) % 12; ++j) tokens.push_back(tokens[from + j]);
    } else {
      tokens.push_back(static_cast<int32_t>((word >> 16) % static_cast<uint64_t>(alphabet)));
    }
  }
  return tokens;
}

constexpr LookupOptions kExact = {.max_match = 12, .max_candidates = 1 << 20, .max_tokens = 1 << 20};

TEST(LookupDrafter, FindsTheLatestOfTheLongestMatches) {
  int64_t num_proposals = 0, num_past_the_end = 0;
  for (uint64_t seed = 0; seed < 24; ++seed) {
    const int32_t alphabet = seed % 3 == 0 ? 2 : seed % 3 == 1 ? 6 : 40;
    const Tokens tokens = repetitive_tokens(400, alphabet, seed);
    std::vector<Tokens> texts;
    if (seed % 2 == 1) texts = {repetitive_tokens(90, alphabet, seed + 100), {}, {1}, {0, 1}};
    LookupDrafter drafter(kExact);
    for (const Tokens& text : texts) drafter.add_text(text);
    for (size_t n = 1; n <= tokens.size(); ++n) {
      drafter.extend({&tokens[n - 1], 1});
      const Tokens all = joined(texts, {tokens.begin(), tokens.begin() + static_cast<long>(n)});
      Draft draft;
      drafter.propose(9, draft);
      const Tokens expected = expected_proposal(all, static_cast<int64_t>(n), kExact.max_match, 9);
      ASSERT_EQ(draft.tokens, expected) << "seed " << seed << " after " << n << " tokens";
      EXPECT_TRUE(draft.is_chain());
      num_proposals += !draft.is_empty();
      num_past_the_end += n > 4 && tokens[n - 1] == tokens[n - 2] && expected.size() == 9;
    }
  }
  EXPECT_GT(num_proposals, 3000);
  EXPECT_GT(num_past_the_end, 100);
}

/// The definition of branches: of all ends with the longest common suffix the latest, and of the others,
/// latest first, those that another token follows; up to max_branches.
std::vector<int64_t> expected_ends(const Tokens& all, int64_t sequence_tokens, int64_t max_branches) {
  const auto n = std::ssize(all);
  std::vector<int64_t> lengths(all.size());
  for (int64_t end = 1; end < n; ++end) {
    int64_t& length = lengths[end];
    while (length < std::min({kExact.max_match, sequence_tokens, end}) && all[end - 1 - length] >= 0 &&
           all[end - 1 - length] == all[n - 1 - length])
      ++length;
  }
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<int64_t> ends;
  for (int64_t end = n - 1; end > 0 && longest >= 2; --end) {
    const bool is_anew =
        std::none_of(ends.begin(), ends.end(), [&](int64_t other) { return all[other] == all[end]; });
    if (lengths[end] != longest || std::ssize(ends) == max_branches) continue;
    if (ends.empty() || (is_anew && all[end] >= 0)) ends.push_back(end);
  }
  return ends;
}

TEST(LookupDrafter, OffersWhatElseFollowedTheLongestMatches) {
  int64_t num_trees = 0;
  for (uint64_t seed = 0; seed < 24; ++seed) {
    const int32_t alphabet = seed % 3 == 0 ? 3 : seed % 3 == 1 ? 6 : 40;
    const Tokens tokens = repetitive_tokens(400, alphabet, seed);
    std::vector<Tokens> texts;
    if (seed % 2 == 1) texts = {repetitive_tokens(90, alphabet, seed + 100), {1, 2}, {0, 1}};
    LookupOptions options = kExact;
    options.max_branches = static_cast<int64_t>(2 + seed % 3);
    LookupDrafter drafter(options);
    for (const Tokens& text : texts) drafter.add_text(text);
    for (size_t n = 1; n <= tokens.size(); ++n) {
      drafter.extend({&tokens[n - 1], 1});
      const Tokens all = joined(texts, {tokens.begin(), tokens.begin() + static_cast<long>(n)});
      const auto ends = expected_ends(all, static_cast<int64_t>(n), options.max_branches);
      Draft draft;
      drafter.propose(9, draft);
      // By depth, each branch's guess after the other.
      Draft expected;
      std::vector<Tokens> branches(ends.size());
      std::vector<int64_t> last(ends.size(), -1);
      for (int64_t depth = 0; depth < 9; ++depth) {
        for (size_t i = 0; i < ends.size() && expected.size() < 9; ++i) {
          const int64_t pos = ends[i] + depth, beyond = pos - std::ssize(all);
          if (std::ssize(branches[i]) < depth || (beyond < 0 && all[pos] < 0)) continue;
          branches[i].push_back(beyond < 0 ? all[pos] : branches[i][beyond]);
          expected.append_to(last[i], branches[i].back());
          last[i] = expected.size() - 1;
        }
      }
      ASSERT_EQ(draft.tokens, expected.tokens) << "seed " << seed << " after " << n << " tokens";
      ASSERT_EQ(draft.parents, expected.parents);
      num_trees += !draft.is_chain();
    }
  }
  EXPECT_GT(num_trees, 1000);
}

TEST(LookupDrafter, ASearchForBranchesIsBoundedToo) {
  LookupDrafter drafter({.max_match = 32, .max_candidates = 16, .max_branches = 4});
  drafter.extend(Tokens(20000, 7));
  Draft draft;
  for (int i = 0; i < 100; ++i) drafter.propose(8, draft);
  EXPECT_EQ(draft.tokens, Tokens(8, 7));
  EXPECT_TRUE(draft.is_chain());
  EXPECT_LE(drafter.num_candidates(), 100 * 2 * 16);
}

TEST(LookupDrafter, HowTokensArriveDoesNotMatter) {
  Tokens tokens = repetitive_tokens(700, 20, 5);
  for (size_t i = 100; i < 106; ++i) tokens.push_back(tokens[i]);
  LookupDrafter one_by_one(kExact), at_once(kExact);
  for (const int32_t token : tokens) one_by_one.extend({&token, 1});
  at_once.extend(tokens);
  Draft a, b;
  one_by_one.propose(20, a);
  at_once.propose(20, b);
  EXPECT_FALSE(a.is_empty());
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.evidence, b.evidence);
}

TEST(LookupDrafter, APeriodicTextIsProposedAsFarAsIsAsked) {
  LookupDrafter drafter;
  drafter.extend(Tokens{9, 1, 2, 3, 1, 2, 3, 1});
  Draft draft;
  drafter.propose(8, draft);
  EXPECT_EQ(draft.tokens, (Tokens{2, 3, 1, 2, 3, 1, 2, 3}));
  drafter.propose(1000, draft);
  EXPECT_EQ(draft.size(), kMaxDraftTokens);
  drafter.propose(0, draft);
  EXPECT_TRUE(draft.is_empty());
}

TEST(LookupDrafter, TextsEndWhereTheyEnd) {
  LookupDrafter drafter;
  drafter.add_text(Tokens{1, 2, 3});
  drafter.add_text(Tokens{3, 4, 5});
  drafter.extend(Tokens{1, 2});
  Draft draft;
  drafter.propose(8, draft);
  EXPECT_EQ(draft.tokens, (Tokens{3})) << "not into the next text";
  drafter.extend(Tokens{3, 3});
  drafter.propose(8, draft);
  EXPECT_TRUE(draft.is_empty()) << "3 and 3 are neighbours only across two texts";
}

TEST(LookupDrafter, LongerMatchesAreMoreEvidence) {
  int last = -1;
  for (const int64_t length : {2, 4, 7, 12}) {
    Tokens piece = random_tokens(length, 1000, 3);
    LookupDrafter drafter;
    drafter.add_text(piece);
    piece.push_back(5000);
    drafter.extend(piece);
    piece.pop_back();
    drafter.extend(piece);
    Draft draft;
    drafter.propose(1, draft);
    EXPECT_EQ(draft.tokens, (Tokens{5000}));
    EXPECT_GT(draft.evidence.front(), last);
    last = draft.evidence.front();
  }
  EXPECT_EQ(last, kNumEvidence - 1);
}

TEST(LookupDrafter, ASearchIsBoundedWhereEverythingMatches) {
  LookupDrafter drafter({.max_match = 32, .max_candidates = 16});
  drafter.extend(random_tokens(20000, 2, 1));
  Draft draft;
  for (int i = 0; i < 100; ++i) drafter.propose(8, draft);
  EXPECT_LE(drafter.num_candidates(), 100 * 2 * 16);
  EXPECT_EQ(drafter.stats().searches, 100);
}

// A match of the higher order is found however many shorter ones are more recent.
TEST(LookupDrafter, ALongMatchFarBackIsFound) {
  Tokens tokens = {50, 51, 52, 53, 54, 1, 2, 77};
  for (int32_t i = 0; i < 500; ++i) {
    for (const int32_t token : {1, 2, 100 + i}) tokens.push_back(token);
  }
  for (const int32_t token : {50, 51, 52, 53, 54, 1, 2}) tokens.push_back(token);
  LookupDrafter drafter({.max_match = 32, .max_candidates = 16});
  drafter.extend(tokens);
  Draft draft;
  drafter.propose(1, draft);
  EXPECT_EQ(draft.tokens, (Tokens{77}));
}

TEST(LookupDrafter, MemoryIsBoundedAndTheNewerHalfStays) {
  const LookupOptions options{.max_match = 12, .max_candidates = 1 << 20, .max_tokens = 256};
  LookupDrafter drafter(options);
  const Tokens tokens = repetitive_tokens(3000, 30, 9);
  Tokens kept;
  for (const int32_t token : tokens) {
    if (std::ssize(kept) == options.max_tokens) kept.erase(kept.begin(), kept.end() - options.max_tokens / 2);
    kept.push_back(token);
    drafter.extend({&token, 1});
    ASSERT_LE(drafter.num_tokens(), options.max_tokens);
    Draft draft;
    drafter.propose(6, draft);
    ASSERT_EQ(draft.tokens, expected_proposal(kept, std::ssize(kept), options.max_match, 6));
  }
}

}  // namespace
}  // namespace tensorfold
