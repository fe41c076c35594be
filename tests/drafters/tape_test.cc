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
