// Trees of a block drafter's candidates, against all paths through them one by one.
#include "drafters/block_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/hash.h"
#include "ops/sampling_math.h"

namespace tensorfold {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int64_t kRank = 3;
constexpr int64_t kFirstPos = 41;  // of the drafted rows of the second sequence

/// Two sequences, the second with num_rows drafted rows of num_candidates, all numbers random.
BlockProposals random_proposals(int64_t num_rows, int64_t num_candidates, uint64_t seed) {
  BlockProposals proposals;
  BlockProposalsBuilder builder(proposals);
  const std::vector<int32_t> anchors = {1, 2};
  const std::vector<SequenceRows> sequences = {
      {.first_row = 0, .num_rows = 2, .first_pos = 7},
      {.first_row = 2, .num_rows = 1 + num_rows, .first_pos = kFirstPos - 1}};
  builder.begin({.anchors = anchors, .rows = {.positions = {}, .sequences = sequences}}, num_candidates,
                kRank);
  uint64_t word = seed;
  const auto fill = [&](std::span<float> values, float spread) {
    for (float& value : values)
      value =
          spread * static_cast<float>(static_cast<double>((word = mix64(word + 1)) >> 11) * 0x1p-53 - 0.5);
  };
  fill(builder.logits(), 4);
  fill(builder.hidden(), 2);
  fill(builder.predecessors(), 2);
  fill(builder.successors(), 2);
  for (int32_t i = 0; i < std::ssize(builder.tokens()); ++i) builder.tokens()[i] = 100 + i * 7 % 90;
  return proposals;
}

/// Of each path of tokens through the second sequence's rows the logarithm of its probability, by the
/// formula.
std::map<Tokens, double> all_paths(const BlockProposals& proposals, const SampleRow& sampling,
                                   float least_confidence = 0) {
  std::map<Tokens, double> paths;
  const auto extend = [&](auto&& self, const Tokens& path, int64_t row, int64_t previous,
                          double sum) -> void {
    if (row == proposals.num_rows(1)) return;
    const int64_t of_all = proposals.first_row(1) + row, k = proposals.num_candidates();
    std::vector<float> scores(k);
    proposals.score(1, of_all, previous, scores);
    std::vector<double> values(k);
    double total = 0;
    for (int64_t i = 0; i < k; ++i) {
      values[i] = scores[i];
      if (sampling.temperature > 0) {
        const uint64_t key = sampling::row_key(sampling.seed, kFirstPos + row);
        values[i] = values[i] / sampling.temperature +
                    sampling::gumbel(sampling::token_hash(key, proposals.tokens(of_all)[i]));
      }
      total += std::exp(values[i]);
    }
    for (int64_t i = 0; i < k; ++i) {
      Tokens longer = path;
      longer.push_back(proposals.tokens(of_all)[i]);
      const double probability = std::exp(values[i]) / total;
      paths[longer] = sum + std::log(probability);
      if (probability >= least_confidence) self(self, longer, row + 1, i, paths[longer]);
    }
  };
  extend(extend, {}, 0, -1, 0);
  return paths;
}

std::vector<Tokens> paths_of(const Draft& draft) {
  std::vector<Tokens> paths;
  for (int64_t i = 0; i < draft.size(); ++i) {
    Tokens path = draft.parents[i] < 0 ? Tokens() : paths[draft.parents[i]];
    path.push_back(draft.tokens[i]);
    paths.push_back(path);
  }
  return paths;
}

TEST(BlockTree, HasTheLikeliestOfAllGuessesInTheirOrder) {
  int num_noisy = 0, num_wide = 0;
  Tokens greedy_first;
  for (const float temperature : {0.0f, 0.7f, 1.4f}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      const BlockProposals proposals = random_proposals(4, 5, seed);
      const SampleRow sampling{.temperature = temperature, .seed = seed * 31};
      std::vector<std::pair<double, Tokens>> expected;
      for (const auto& [path, probability] : all_paths(proposals, sampling))
        expected.push_back({-probability, path});
      std::sort(expected.begin(), expected.end());
      for (const int64_t max_tokens : {1, 2, 7, 15, 60}) {
        BlockTree tree;
        Draft draft;
        draft.append(3);
        tree.grow(proposals, 1, sampling, {.max_tokens = max_tokens}, draft);
        ASSERT_EQ(draft.size(), max_tokens);
        const std::vector<Tokens> found = paths_of(draft);
        for (int64_t i = 0; i < max_tokens; ++i) ASSERT_EQ(found[i], expected[i].second) << seed << " " << i;
        num_wide += !draft.is_chain();
        EXPECT_LE(draft.depth(), 4);
        Draft again;
        tree.grow(proposals, 1, sampling, {.max_tokens = max_tokens}, again);  // with the memory of the first
        EXPECT_EQ(again.tokens, draft.tokens);
        EXPECT_EQ(again.parents, draft.parents);
        EXPECT_EQ(again.evidence, draft.evidence);
      }
      Draft greedy;
      BlockTree().grow(proposals, 1, {.temperature = 0}, {.max_tokens = 1}, greedy);
      num_noisy += greedy.tokens.front() != expected.front().second.front();
    }
  }
  EXPECT_GT(num_wide, 100);
  EXPECT_GT(num_noisy, 10) << "the noise decides nothing";
}

TEST(BlockTree, ItsLikeliestBranchIsTheChain) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const BlockProposals proposals = random_proposals(3, 4, seed);
    const SampleRow sampling{.temperature = seed % 2 == 0 ? 0.0f : 1.0f, .seed = seed};
    std::vector<DraftedToken> chain;
    proposals.choose(1, sampling, chain);
    Draft draft;
    BlockTree().grow(proposals, 1, sampling, {.max_tokens = 4 + 16 + 64}, draft);
    ASSERT_EQ(draft.size(), 4 + 16 + 64) << "all there are";
    int64_t last = -1;
    for (const DraftedToken& drafted : chain) {
      // The first of those that follow is the likeliest.
      const auto next = std::ranges::find(draft.parents, static_cast<int32_t>(last));
      ASSERT_NE(next, draft.parents.end());
      last = next - draft.parents.begin();
      EXPECT_EQ(draft.tokens[last], drafted.token) << seed;
    }
  }
}

TEST(BlockTree, NothingFollowsAGuessThatIsTooUnsure) {
  const BlockProposals proposals = random_proposals(3, 4, 5);
  const SampleRow sampling{.temperature = 0};
  const std::map<Tokens, double> paths = all_paths(proposals, sampling, 0.3f);
  ASSERT_LT(paths.size(), 4u + 16 + 64);
  ASSERT_GT(paths.size(), 4u);
  Draft draft;
  BlockTree().grow(proposals, 1, sampling, {.max_tokens = 64, .least_confidence = 0.3f}, draft);
  EXPECT_EQ(draft.size(), std::ssize(paths));
  for (const Tokens& path : paths_of(draft)) EXPECT_TRUE(paths.contains(path));
}

TEST(BlockTree, EndsWhereThereAreNoCandidates) {
  BlockProposals proposals = random_proposals(3, 4, 5);
  BlockProposalsBuilder builder(proposals);
  const int64_t second = (proposals.first_row(1) + 1) * 4;
  builder.tokens()[second + 2] = builder.tokens()[second + 3] = -1;   // two left
  for (int64_t i = 4; i < 8; ++i) builder.tokens()[second + i] = -1;  // none left
  Draft draft;
  BlockTree().grow(proposals, 1, {.temperature = 1, .seed = 3}, {.max_tokens = 60}, draft);
  EXPECT_EQ(draft.size(), 4 + 4 * 2);
  for (const int32_t token : draft.tokens) EXPECT_GE(token, 0);
  for (int64_t i = 0; i < 4; ++i) builder.tokens()[second - 4 + i] = -1;
  BlockTree().grow(proposals, 1, {.temperature = 1, .seed = 3}, {.max_tokens = 60}, draft);
  EXPECT_TRUE(draft.is_empty());
}

}  // namespace
}  // namespace tensorfold
