// How a tree falls into branches, which of them are kept, whose pages they have, and what is left of them.
#include "engine/draft_branches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "base/hash.h"
#include "drafters/policy.h"
#include "tests/support/fake_model.h"

namespace tensorfold {
namespace {

using Tokens = std::vector<int32_t>;

/// Tokens 100, 101, ... after these parents.
Draft draft_of(const Tokens& parents) {
  Draft draft;
  for (const int32_t parent : parents) draft.append_to(parent, static_cast<int32_t>(100 + draft.size()));
  return draft;
}

/// The tokens of the guesses from the root to this one.
Tokens path_to(const Draft& draft, int64_t node) {
  Tokens path;
  for (int64_t i = node; i >= 0; i = draft.parents[i]) path.insert(path.begin(), draft.tokens[i]);
  return path;
}

class DraftBranchesTest : public testing::Test {
 protected:
  /// Of a sequence that ends at position last_pos, with pages for as many guesses as `room` allows a branch.
  void start(int64_t num_pages, int64_t last_pos, int64_t num_first) {
    branches_.reset();  // before the pool of its pages
    pages_.reset();
    pool_ = KvPagePool::create(*ops_, std::vector<KvShape>(2), num_pages).value();
    pages_ = std::make_unique<PageTable>(*pool_);
    ASSERT_TRUE(pages_->grow_to(last_pos + 1 + num_first).ok());
    branches_ = std::make_unique<DraftBranches>(*pool_);
  }
  std::vector<Tokens> nodes() const {
    std::vector<Tokens> all;
    for (const DraftBranch& branch : branches_->branches()) all.push_back(branch.nodes);
    return all;
  }
  Tokens pages_of(const PageTable& table) const { return {table.data(), table.data() + table.num_pages()}; }
  /// A number in each page, to tell pages and copies by.
  uint64_t& mark(int32_t page) const {
    return *reinterpret_cast<uint64_t*>(pool_->layers()[1].value_page(page));
  }

  FakeModelControl control_;
  std::unique_ptr<Ops> ops_ = make_fake_ops(control_);
  std::unique_ptr<KvPagePool> pool_;
  std::unique_ptr<PageTable> pages_;
  std::unique_ptr<DraftBranches> branches_;
};

TEST_F(DraftBranchesTest, AChainHasNone) {
  start(2, 10, 3);
  branches_->split(draft_of({-1, 0, 1}));
  EXPECT_TRUE(branches_->is_empty());
  branches_->split({});
  EXPECT_TRUE(branches_->is_empty());
}

TEST_F(DraftBranchesTest, TheFirstGuessesBranchIsFirstAndEachOtherBeginsWithTheNextThatIsInNone) {
  start(9, 10, 3);
  branches_->split(draft_of({-1, -1, 0, 1, 1, 2, 2}));
  EXPECT_EQ(nodes(), (std::vector<Tokens>{{0, 2, 5}, {1, 3}, {1, 4}, {0, 2, 6}}));
  branches_->split(draft_of({-1, -1, -1}));
  EXPECT_EQ(nodes(), (std::vector<Tokens>{{0}, {1}, {2}}));
}

TEST_F(DraftBranchesTest, AddedRowsAreThoseThatTheBranchesHave) {
  const auto added = [](const Draft& draft) {
    Tokens rows(draft.tokens.size());
    count_added_rows(draft, rows);
    return rows;
  };
  EXPECT_EQ(added(draft_of({-1, 0, 1})), (Tokens{1, 1, 1}));
  EXPECT_EQ(added(draft_of({-1, -1, 0, 1, 1, 2, 2})), (Tokens{1, 2, 1, 1, 3, 1, 4}));
  start(9, 10, 3);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Tokens parents;
    for (uint64_t i = 0; i < 12; ++i)
      parents.push_back(static_cast<int32_t>(mix64(seed * 100 + i) % (i + 1)) - 1);
    Draft draft = draft_of(parents);
    const Tokens rows = added(draft);
    for (; !draft.is_empty(); draft.truncate(draft.size() - 1)) {
      branches_->split(draft);
      const int64_t expected = branches_->is_empty() ? draft.size() : branches_->num_rows() - 1;
      EXPECT_EQ(std::accumulate(rows.begin(), rows.begin() + draft.size(), int64_t{0}), expected) << seed;
    }
  }
}

TEST_F(DraftBranchesTest, GuessesAreOrderedByGainPerRow) {
  Draft draft = draft_of({-1, -1, 0, 1, 0});
  std::vector<double> gains = {0.5, 0.4, 0.25, 0.36, 0.21};
  order_by_gain(draft, gains);
  // After the first its first follower goes on; then the other branch (0.4 for two rows, 0.36 for one more),
  // then the branch that repeats the first guess.
  EXPECT_EQ(draft.tokens, (Tokens{100, 102, 101, 103, 104}));
  EXPECT_EQ(draft.parents, (Tokens{-1, 0, -1, 2, 0}));
  EXPECT_EQ(gains, (std::vector<double>{0.5, 0.25, 0.4, 0.36, 0.21}));

  for (uint64_t seed = 0; seed < 100; ++seed) {
    Tokens parents;
    gains.clear();
    std::map<Tokens, double> expected;
    for (uint64_t i = 0; i < 14; ++i) {
      const uint64_t word = mix64(seed * 100 + i);
      parents.push_back(static_cast<int32_t>(word % (i + 1)) - 1);
      gains.push_back(static_cast<double>(word >> 40));
    }
    draft = draft_of(parents);
    for (int64_t i = 0; i < draft.size(); ++i) expected[path_to(draft, i)] = gains[i];
    order_by_gain(draft, gains);
    ASSERT_EQ(draft.size(), 14);
    for (int64_t i = 0; i < draft.size(); ++i) {
      EXPECT_LT(draft.parents[i], i);
      EXPECT_EQ(expected.at(path_to(draft, i)), gains[i]);
    }
  }
}

// Two guesses for a place, each with one that follows.
TEST_F(DraftBranchesTest, AChainOrATreeIsWhatPaysByTheRowsItTakes) {
  const auto chosen = [](double per_row_ms) {
    Draft draft = draft_of({-1, -1, 0, 1});
    std::vector<double> gains = {0.5, 0.45, 0.45, 0.4};
    order_by_gain(draft, gains);
    Tokens rows(draft.tokens.size());
    count_added_rows(draft, rows);
    PassCosts costs;
    for (int64_t n = 1; n <= 20; ++n) costs.add(n, 10 + per_row_ms * static_cast<double>(n));
    DraftChoice choice{.gains = gains, .rows = rows};
    choose_drafts(costs, 1, 1, 20, {&choice, 1});
    draft.truncate(choice.chosen);
    return draft;
  };
  EXPECT_EQ(chosen(0.1).size(), 4) << "both branches";
  EXPECT_EQ(chosen(3).tokens, (Tokens{100, 102})) << "the likelier one";
  EXPECT_TRUE(chosen(3).is_chain());
  EXPECT_TRUE(chosen(30).is_empty());
}

TEST_F(DraftBranchesTest, KeptGuessesAreInTheOrderOfTheBranches) {
  start(9, 10, 3);
  Draft draft = draft_of({-1, -1, 0, 1, 1, 2, 2});
  branches_->split(draft);
  ASSERT_TRUE(branches_->keep(draft, {.num_first = 3, .num_rows = 100, .last_pos = 10}, *pages_).ok());
  EXPECT_EQ(draft.tokens, (Tokens{100, 102, 105, 101, 103, 104, 106}));
  EXPECT_EQ(draft.parents, (Tokens{-1, 0, 1, -1, 3, 3, 1}));
  EXPECT_EQ(nodes(), (std::vector<Tokens>{{0, 1, 2}, {3, 4}, {3, 5}, {0, 1, 6}}));
  EXPECT_EQ(branches_->num_rows(), 4 + 3 + 3 + 4);
  const Tokens num_shared = {0, 0, 1, 2};
  for (size_t i = 0; i < 4; ++i) {
    const DraftBranch& branch = branches_->branches()[i];
    EXPECT_EQ(branch.num_shared, num_shared[i]);
    EXPECT_EQ(branch.tokens, path_to(draft, branch.nodes.back()));
  }
}

TEST_F(DraftBranchesTest, BranchesForWhichThereAreNoRowsAreDroppedWithTheirGuesses) {
  const Draft whole = draft_of({-1, -1, 0, 1, 1, 2, 2});
  const auto kept = [&](int64_t num_first, int64_t num_rows) {
    start(9, 10, 3);
    Draft draft = whole;
    branches_->split(draft);
    EXPECT_TRUE(
        branches_->keep(draft, {.num_first = num_first, .num_rows = num_rows, .last_pos = 10}, *pages_).ok());
    // All rows are drafted ones: the three guesses of the first branch are not counted in num_rows.
    EXPECT_LE(branches_->num_rows(), num_first + num_rows);
    return draft.tokens;
  };
  EXPECT_EQ(kept(3, 11), (Tokens{100, 102, 105, 101, 103, 104, 106}));
  EXPECT_EQ(kept(3, 10), (Tokens{100, 102, 105, 101, 103, 104}));
  EXPECT_EQ(kept(3, 6), (Tokens{100, 102, 105, 101, 103}));
  EXPECT_EQ(kept(3, 3), (Tokens{100, 102, 105}));
  EXPECT_TRUE(branches_->is_empty()) << "a chain";
  EXPECT_EQ(kept(1, 8), (Tokens{100, 101, 103, 104})) << "the first branch is cut";
  EXPECT_EQ(kept(1, 11), (Tokens{100, 101, 103, 104, 102, 106}));
  EXPECT_EQ(kept(0, 100), Tokens{});
  EXPECT_TRUE(branches_->is_empty());
}

TEST_F(DraftBranchesTest, ABranchSharesFullPagesAndHasACopyOfTheLastAndItsOwn) {
  for (int64_t last_pos = 62; last_pos <= 66; ++last_pos) {
    start(20, last_pos, 2);
    const Tokens own = pages_of(*pages_);
    for (const int32_t page : own) mark(page) = 1000 + static_cast<uint64_t>(page);
    Draft draft = draft_of({-1, -1, 0, 1});
    branches_->split(draft);
    ASSERT_TRUE(branches_->keep(draft, {.num_first = 2, .num_rows = 9, .last_pos = last_pos}, *pages_).ok());
    EXPECT_EQ(branches_->branches()[0].pages.num_pages(), 0);
    const Tokens pages = pages_of(branches_->branches()[1].pages);
    ASSERT_EQ(std::ssize(pages), pages_for_tokens(last_pos + 3));
    const int64_t num_full = last_pos / 64;
    for (int64_t i = 0; i < std::ssize(pages); ++i) {
      EXPECT_EQ(pages[i] == own[i], i < num_full) << "page " << i << " at position " << last_pos;
      const bool is_fresh = i * 64 >= last_pos;
      EXPECT_EQ(mark(pages[i]), is_fresh ? 0 : 1000 + static_cast<uint64_t>(own[i]));
    }
    branches_->clear();
    EXPECT_EQ(pool_->num_used(), std::ssize(own));
  }
}

TEST_F(DraftBranchesTest, BranchesForWhichThereAreNoPagesAreDropped) {
  // Position 62: two guesses a branch need one page more than the copy.
  for (const int64_t num_free : {0, 1, 2, 3, 4}) {
    start(2 + num_free, 62, 2);
    Draft draft = draft_of({-1, -1, 0, 1, -1});
    branches_->split(draft);
    ASSERT_TRUE(branches_->keep(draft, {.num_first = 2, .num_rows = 99, .last_pos = 62}, *pages_).ok());
    const std::vector<Tokens> expected[] = {
        {}, {{0, 1}, {2}}, {{0, 1}, {2, 3}}, {{0, 1}, {2, 3}, {4}}, {{0, 1}, {2, 3}, {4}}};
    EXPECT_EQ(nodes(), expected[num_free]);
  }
}

TEST_F(DraftBranchesTest, TheBranchThatWasRightLeavesItsPages) {
  for (int64_t last = -1; last < 7; ++last) {
    start(20, 70, 3);
    Draft draft = draft_of({-1, -1, 0, 1, 1, 2, 2});
    branches_->split(draft);
    ASSERT_TRUE(branches_->keep(draft, {.num_first = 3, .num_rows = 99, .last_pos = 70}, *pages_).ok());
    const Tokens before = pages_of(*pages_);
    std::vector<Tokens> pages;
    for (const DraftBranch& branch : branches_->branches()) pages.push_back(pages_of(branch.pages));
    pages[0] = before;
    const size_t winner = last < 3 ? 0 : last < 5 ? 1 : last == 5 ? 2 : 3;
    const int64_t first_rows[] = {0, 4, 7, 10};
    EXPECT_EQ(branches_->accept(last, *pages_), first_rows[winner]) << last;
    EXPECT_EQ(pages_of(*pages_), pages[winner]);
    EXPECT_EQ(pages_of(*pages_).front(), before.front()) << "the full page is still the sequence's";
    EXPECT_EQ(pool_->num_used(), std::ssize(pages[winner])) << "pages of the others were kept";
    EXPECT_TRUE(branches_->is_empty());
  }
}

TEST_F(DraftBranchesTest, AFailedCopyLeavesNothingBehind) {
  start(20, 70, 2);
  const int64_t num_used = pool_->num_used();
  Draft draft = draft_of({-1, -1, -1});
  branches_->split(draft);
  control_.device.fail_copy_at = 2;
  EXPECT_EQ(branches_->keep(draft, {.num_first = 1, .num_rows = 99, .last_pos = 70}, *pages_).message(),
            "copying a page failed on purpose");
  branches_->clear();
  EXPECT_EQ(pool_->num_used(), num_used);
}

TEST_F(DraftBranchesTest, EveryGuessOfEveryTreeIsInItsBranch) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    start(200, 30, 20);
    Draft draft;
    for (uint64_t i = 0; i < 20; ++i)
      draft.append_to(static_cast<int64_t>(mix64(seed * 100 + i) % (i + 1)) - 1, static_cast<int32_t>(i));
    const Draft whole = draft;
    branches_->split(draft);
    if (branches_->is_empty()) continue;
    const auto num_first = std::ssize(branches_->branches().front().nodes);
    ASSERT_TRUE(
        branches_->keep(draft, {.num_first = num_first, .num_rows = 999, .last_pos = 30}, *pages_).ok());
    ASSERT_EQ(draft.size(), whole.size());
    int64_t next = 0;  // guesses are numbered as branches bring them
    for (const DraftBranch& branch : branches_->branches()) {
      EXPECT_EQ(branch.tokens, path_to(draft, branch.nodes.back()));
      const Tokens own(branch.nodes.begin() + branch.num_shared, branch.nodes.end());
      for (const int32_t node : own) EXPECT_EQ(node, next++);
      EXPECT_EQ(std::count(draft.parents.begin(), draft.parents.end(), branch.nodes.back()), 0) << "no leaf";
    }
    EXPECT_EQ(next, whole.size());
    // The same tree: every token follows what it followed.
    for (int64_t i = 0; i < draft.size(); ++i)
      EXPECT_EQ(path_to(draft, i), path_to(whole, draft.tokens[i])) << "seed " << seed;
  }
}

}  // namespace
}  // namespace tensorfold
