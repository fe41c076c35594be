// The two drafters that know the reply.
#include "drafters/tape.h"

#include <gtest/gtest.h>

namespace tensorfold {
namespace {

using Tokens = std::vector<int32_t>;

TEST(TapeDrafter, ProposesTheReplyFromWhereTheSequenceIs) {
  TapeDrafter drafter(3, {10, 11, 12, 13});
  Draft draft;
  drafter.propose(4, draft);
  EXPECT_TRUE(draft.is_empty()) << "before the prompt is there";
  drafter.extend(Tokens{1, 2, 3});
  drafter.propose(2, draft);
  EXPECT_EQ(draft.tokens, (Tokens{10, 11}));
  EXPECT_TRUE(draft.is_chain());
  drafter.extend(Tokens{10, 11, 12});
  drafter.propose(8, draft);
  EXPECT_EQ(draft.tokens, (Tokens{13}));
  drafter.extend(Tokens{13});
  drafter.propose(8, draft);
  EXPECT_TRUE(draft.is_empty());
  EXPECT_EQ(drafter.stats().searches, 4);
  EXPECT_EQ(drafter.stats().matches, 2);
}

TEST(AdversaryDrafter, HasOneWrongTokenWhereItIsAskedTo) {
  const Tokens reply = {10, 11, 12, 19};
  for (int64_t num_right : {0, 1, 3, 9}) {
    AdversaryDrafter drafter(1, reply, 20, num_right);
    drafter.extend(Tokens{5});
    Draft draft;
    drafter.propose(4, draft);
    Tokens expected = reply;
    int32_t& wrong = expected[std::min<size_t>(num_right, 3)];
    wrong = (wrong + 1) % 20;
    EXPECT_EQ(draft.tokens, expected);
  }
  AdversaryDrafter drafter(0, reply, 20, -1);
  Draft draft;
  for (const Tokens& expected : {Tokens{11, 11, 12, 19}, Tokens{10, 12, 12, 19}, Tokens{10, 11, 13, 19},
                                 Tokens{10, 11, 12, 0}, Tokens{11, 11, 12, 19}}) {
    drafter.propose(4, draft);
    EXPECT_EQ(draft.tokens, expected);
  }
}

TEST(TreeTapeDrafter, HasTheReplyBetweenWrongTokensThatGoOnWithIt) {
  const Tokens reply = {10, 11, 12, 19, 5, 6, 7, 8, 9, 1};
  TreeTapeDrafter last(1, reply, 20, {.num_before = 1, .num_after = 0});
  last.extend(Tokens{5});
  Draft draft;
  last.propose(8, draft);
  EXPECT_EQ(draft.tokens, (Tokens{11, 10, 11, 12, 11, 12, 13, 12}));
  EXPECT_EQ(draft.parents, (Tokens{-1, -1, 0, 1, 1, 3, 4, 4}));
  last.propose(3, draft);
  EXPECT_EQ(draft.parents, (Tokens{-1, -1, 0}));

  TreeTapeDrafter between(1, reply, 20, {.num_before = 1, .num_after = 1});
  between.extend(Tokens{5});
  between.propose(7, draft);
  EXPECT_EQ(draft.tokens, (Tokens{11, 10, 12, 11, 11, 12, 11}));
  EXPECT_EQ(draft.parents, (Tokens{-1, -1, -1, 0, 2, 1, 1}));
}

TEST(TreeTapeDrafter, MayBeWrongFromADepthOn) {
  const Tokens reply = {10, 11, 12, 19, 5, 6, 7, 8, 9, 1};
  TreeTapeDrafter drafter(0, reply, 20, {.num_before = 1, .num_after = 0, .num_right = -1});
  // How far the reply goes in each proposal.
  for (int64_t num_right = 0; num_right < 3; ++num_right) {
    Draft draft;
    drafter.propose(10, draft);
    EXPECT_EQ(draft.size(), 10);
    int64_t node = -1, depth = 0;
    while ((node = draft.find_child(node, reply[depth])) >= 0) ++depth;
    EXPECT_EQ(depth, num_right);
  }
  TreeTapeDrafter wrong(0, reply, 20, {.num_before = 0, .num_after = 1, .num_right = 0});
  Draft draft;
  wrong.propose(9, draft);
  EXPECT_EQ(draft.find_child(-1, 10), -1);
}

TEST(Draft, KeepsWhatItIsAskedToInThatOrder) {
  Draft draft;
  for (const int32_t parent : {-1, -1, 0, 1, 2})
    draft.append_to(parent, static_cast<int32_t>(7 + draft.size()));
  EXPECT_EQ(draft.find_child(-1, 8), 1);
  EXPECT_EQ(draft.find_child(1, 10), 3);
  EXPECT_EQ(draft.find_child(0, 10), -1) << "of another parent";
  draft.keep(Tokens{1, 3, 0, 2});
  EXPECT_EQ(draft.tokens, (Tokens{8, 10, 7, 9}));
  EXPECT_EQ(draft.parents, (Tokens{-1, 0, -1, 2}));
}

TEST(Draft, IsATreeOfWhichAChainIsTheSimplest) {
  Draft draft;
  draft.append(7);
  draft.append(8);
  EXPECT_EQ(draft.parents, (Tokens{-1, 0}));
  EXPECT_TRUE(draft.is_chain());
  draft.tokens.push_back(9);
  draft.parents.push_back(0);
  EXPECT_FALSE(draft.is_chain());
  draft.truncate(2);
  EXPECT_TRUE(draft.is_chain());
  EXPECT_EQ(draft.size(), 2);
}

}  // namespace
}  // namespace tensorfold
