// The scheduler's policy: which rows, in which order, and who waits or gives way.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/support/fake_model.h"

namespace tensorfold {
namespace {

/// A row count per sequence id, in the order of the plan.
using Rows = std::vector<std::pair<RequestId, int64_t>>;

constexpr RecurrentShape kStates[] = {{.conv_taps = 1, .num_heads = 1, .key_dim = 2, .value_dim = 1}};

class SchedulerTest : public testing::Test {
 protected:
  void start(const Scheduler::Options& options, int64_t num_pages) {
    scheduler_.reset();  // its sequences hold pages of the pool
    pool_ = KvPagePool::create(*ops_, std::vector<KvShape>(2), num_pages).value();
    slots_ = StateSlotPool::create(control_.device, kStates, options.max_sequences, 32).value();
    scheduler_ = std::make_unique<Scheduler>(options, *pool_);
  }

  Sequence& add(RequestId id, int64_t num_prompt_tokens) {
    auto sequence = std::make_unique<Sequence>(*pool_, *slots_, TextStream(nullptr, {}));
    sequence->id = id;
    sequence->tokens = fake_prompt(num_prompt_tokens, id);
    sequence->num_prompt_tokens = num_prompt_tokens;
    Sequence& added = *sequence;
    scheduler_->add(std::move(sequence));
    return added;
  }

  /// Sequences 1, 2, ... whose prompts, of these lengths, one pass computes.
  std::vector<Sequence*> start_decoding(const Scheduler::Options& options, int64_t num_pages,
                                        std::initializer_list<int64_t> prompt_tokens) {
    start(options, num_pages);
    std::vector<Sequence*> sequences;
    for (const int64_t count : prompt_tokens) sequences.push_back(&add(1 + sequences.size(), count));
    run_pass();
    return sequences;
  }

  std::span<const PlannedRows> plan() {
    const auto planned = scheduler_->plan();
    EXPECT_TRUE(planned.ok());
    return planned.ok() ? *planned : std::span<const PlannedRows>();
  }

  /// Plans a pass with these drafts, of sequences in this order.
  std::span<const PlannedRows> plan_with_drafts(std::span<Sequence* const> sequences,
                                                std::initializer_list<Draft> drafts) {
    const auto planned = plan();
    size_t i = 0;
    for (const Draft& draft : drafts) sequences[i++]->drafts.draft = draft;
    EXPECT_TRUE(scheduler_->add_drafts().ok());
    return planned;
  }

  /// Plans a pass, checks its pages, and pretends that it ran: every sequence that yields a token gets one.
  Rows run_pass() {
    Rows rows;
    std::set<int32_t> slots;
    for (const PlannedRows& entry : plan()) {
      Sequence& sequence = *entry.sequence;
      rows.push_back({sequence.id, entry.num_rows});
      EXPECT_TRUE(slots.insert(sequence.state.id()).second) << "two sequences share a state slot";
      EXPECT_GE(sequence.state.id(), 0);
      EXPECT_GE(sequence.pages.num_pages() * kPageTokens, sequence.num_computed + entry.num_rows);
      const bool yields = entry.wants_logits();
      sequence.commit(entry.num_rows);
      if (yields) sequence.tokens.push_back(1);
    }
    return rows;
  }

  FakeModelControl control_;
  std::unique_ptr<Ops> ops_ = make_fake_ops(control_);
  std::unique_ptr<KvPagePool> pool_;
  std::unique_ptr<StateSlotPool> slots_;
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(SchedulerTest, PromptsAreCutIntoChunksOldestFirst) {
  start({.max_sequences = 4, .pass_tokens = 8}, 10);
  add(1, 11);
  add(2, 6);
  EXPECT_EQ(run_pass(), (Rows{{1, 8}}));
  EXPECT_EQ(run_pass(), (Rows{{1, 3}, {2, 5}}));
  EXPECT_EQ(run_pass(), (Rows{{1, 1}, {2, 1}}));
}

TEST_F(SchedulerTest, DecodingRowsComeFirstAndPromptsGetAQuarterBesideThem) {
  start({.max_sequences = 4, .pass_tokens = 16}, 10);
  add(1, 3);
  EXPECT_EQ(run_pass(), (Rows{{1, 3}}));
  add(2, 100);
  add(3, 2);
  EXPECT_EQ(run_pass(), (Rows{{1, 1}, {2, 4}}));
  EXPECT_EQ(run_pass(), (Rows{{1, 1}, {2, 4}}));
}

TEST_F(SchedulerTest, DecodingGoesOnWhateverArrives) {
  start({.max_sequences = 4, .pass_tokens = 16}, 100);
  add(1, 1);
  run_pass();
  add(2, 1000);
  for (int i = 0; i < 100; ++i) {
    const Rows rows = run_pass();
    ASSERT_EQ(rows.front(), (std::pair<RequestId, int64_t>{1, 1}));
  }
}

TEST_F(SchedulerTest, PromptsGetOnEvenWhereDecodingRowsFillThePass) {
  start({.max_sequences = 4, .pass_tokens = 1}, 10);
  add(1, 1);
  run_pass();
  add(2, 3);
  EXPECT_EQ(run_pass(), (Rows{{1, 1}, {2, 1}}));
  EXPECT_EQ(run_pass(), (Rows{{1, 1}, {2, 1}}));
  EXPECT_EQ(run_pass(), (Rows{{1, 1}, {2, 1}}));
  EXPECT_EQ(run_pass(), (Rows{{1, 1}, {2, 1}}));
}

TEST_F(SchedulerTest, NoPassHasMoreRowsThanPromised) {
  for (const Scheduler::Options& options : {Scheduler::Options{.max_sequences = 6, .pass_tokens = 4},
                                            Scheduler::Options{.max_sequences = 3, .pass_tokens = 40}}) {
    start(options, 1000);
    for (RequestId id = 1; id <= 12; ++id) add(id, static_cast<int64_t>(1 + id * 7 % 30));
    for (int i = 0; i < 60; ++i) {
      int64_t num_rows = 0;
      for (const auto& [id, rows] : run_pass()) num_rows += rows;
      ASSERT_LE(num_rows, Scheduler::max_pass_rows(options));
    }
  }
}

TEST_F(SchedulerTest, SequencesBeyondTheLimitWaitInOrder) {
  start({.max_sequences = 2, .pass_tokens = 64}, 10);
  Sequence& first = add(1, 2);
  add(2, 2);
  add(3, 2);
  EXPECT_EQ(run_pass(), (Rows{{1, 2}, {2, 2}}));
  EXPECT_EQ(scheduler_->num_waiting(), 1);
  scheduler_->remove(first);
  EXPECT_EQ(run_pass(), (Rows{{2, 1}, {3, 2}}));
}

TEST_F(SchedulerTest, ARequestWaitsUntilPagesForItsPromptAreFree) {
  start({.max_sequences = 8, .pass_tokens = 512}, 6);
  Sequence& first = add(1, 4 * 64);
  add(2, 3 * 64);  // 4 + 3 > 6
  add(3, 2);       // would fit, but not before an older one
  EXPECT_EQ(run_pass(), (Rows{{1, 256}}));
  EXPECT_EQ(scheduler_->num_waiting(), 2);
  scheduler_->remove(first);
  EXPECT_EQ(run_pass(), (Rows{{2, 192}, {3, 2}}));
}

TEST_F(SchedulerTest, PagesOfAPromptThatIsStillComputedAreSpokenFor) {
  start({.max_sequences = 8, .pass_tokens = 64}, 6);
  add(1, 4 * 64);
  EXPECT_EQ(run_pass(), (Rows{{1, 64}}));
  EXPECT_EQ(pool_->num_used(), 1);
  add(2, 2 * 64 + 1);
  run_pass();
  EXPECT_EQ(scheduler_->num_waiting(), 1);
}

TEST_F(SchedulerTest, TheYoungestGivesWayAndComesBackFirst) {
  start({.max_sequences = 8, .pass_tokens = 512}, 5);
  Sequence& first = add(1, 63);
  Sequence& second = add(2, 63);
  Sequence& third = add(3, 64 + 2);
  add(4, 2);
  EXPECT_EQ(run_pass(), (Rows{{1, 63}, {2, 63}}));  // the third waits for a page to spare for each of the two
  EXPECT_EQ(run_pass(), (Rows{{1, 1}, {2, 1}}));
  EXPECT_EQ(pool_->num_used(), 2);
  EXPECT_EQ(scheduler_->num_waiting(), 2);
  EXPECT_EQ(run_pass(), (Rows{{1, 1}, {2, 1}}));  // both take their second page
  EXPECT_EQ(pool_->num_used(), 4);
  for (int i = 0; i < 63; ++i) run_pass();
  EXPECT_EQ(scheduler_->num_preemptions(), 0);
  EXPECT_EQ(run_pass(), (Rows{{1, 1}}));  // the first takes the last page, the second finds none
  EXPECT_EQ(scheduler_->num_preemptions(), 1);
  EXPECT_EQ(second.num_computed, 0);
  EXPECT_EQ(second.pages.num_pages(), 0);
  EXPECT_EQ(second.num_tokens(), 63 + 66);
  scheduler_->remove(first);
  EXPECT_EQ(run_pass(), (Rows{{2, 129}}));  // before the third, which is younger; with all it had
  scheduler_->remove(second);
  EXPECT_EQ(run_pass(), (Rows{{3, 66}, {4, 2}}));
  EXPECT_EQ(third.num_tokens(), 67);
}

TEST_F(SchedulerTest, SeveralMayGiveWayAndKeepTheirOrder) {
  start({.max_sequences = 8, .pass_tokens = 512}, 3);
  Sequence& first = add(1, 60);
  run_pass();
  add(2, 1);
  run_pass();
  EXPECT_EQ(scheduler_->num_running(), 2);
  first.tokens.resize(180, 5);  // as if it had grown at once: it needs both other pages
  EXPECT_EQ(run_pass(), (Rows{{1, 119}}));
  EXPECT_EQ(scheduler_->num_preemptions(), 1);
  add(3, 2);
  scheduler_->remove(first);
  EXPECT_EQ(run_pass(), (Rows{{2, 2}, {3, 2}}));
}

TEST_F(SchedulerTest, TheOldestAlwaysGetsOn) {
  start({.max_sequences = 8, .pass_tokens = 32}, 4);
  for (RequestId id = 1; id <= 6; ++id) add(id, 40 + static_cast<int64_t>(id));
  std::vector<int64_t> finished;
  for (int pass = 0; pass < 5000 && finished.size() < 6; ++pass) {
    Sequence* oldest = scheduler_->oldest();
    const RequestId oldest_id = oldest->id;
    const int64_t computed = oldest->num_computed;
    run_pass();
    ASSERT_EQ(scheduler_->oldest()->id, oldest_id);
    ASSERT_GT(scheduler_->oldest()->num_computed, computed);
    for (RequestId id = 1; id <= 6; ++id) {
      Sequence* sequence = scheduler_->find(id);
      if (sequence == nullptr || sequence->num_tokens() < 250) continue;
      finished.push_back(static_cast<int64_t>(id));
      scheduler_->remove(*sequence);
    }
  }
  EXPECT_EQ(finished, (std::vector<int64_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(pool_->num_used(), 0);
}

/// A chain of `count` guesses.
Draft draft_of(int64_t count) {
  Draft draft;
  for (int64_t i = 0; i < count; ++i) draft.append(static_cast<int32_t>(i));
  return draft;
}

/// Drafted rows by sequence id.
Rows drafted_rows(std::span<const PlannedRows> planned) {
  Rows rows;
  for (const PlannedRows& entry : planned) rows.push_back({entry.sequence->id, entry.num_drafted});
  return rows;
}

TEST_F(SchedulerTest, DraftsFillTheRowsThatAreLeftAndPromptsKeepTheirs) {
  std::vector<Sequence*> sequences =
      start_decoding({.max_sequences = 4, .pass_tokens = 16, .max_drafted_rows = 9}, 10, {3, 3});
  sequences.push_back(&add(3, 100));
  plan();
  EXPECT_EQ(scheduler_->num_draft_rows(), 9);  // of 16 rows two decode and four are the prompt's
  const auto planned = plan_with_drafts(sequences, {draft_of(6), draft_of(6), draft_of(6)});
  EXPECT_EQ(drafted_rows(planned), (Rows{{1, 6}, {2, 3}, {3, 0}}));
  EXPECT_EQ(planned[2].num_rows, 4);
  EXPECT_EQ(sequences[1]->drafts.draft.size(), 3);
}

TEST_F(SchedulerTest, DraftsTakeOnlyFreePagesAndGiveBackWhatWasForThemAlone) {
  const auto sequences =
      start_decoding({.max_sequences = 4, .pass_tokens = 512, .max_drafted_rows = 64}, 3, {62, 60});
  // The first's guesses are from 63 on: one in its page, the rest in the last free one. The second's are from
  // 61 on: three in its page.
  const auto planned = plan_with_drafts(sequences, {draft_of(20), draft_of(20)});
  EXPECT_EQ(drafted_rows(planned), (Rows{{1, 20}, {2, 3}}));
  EXPECT_EQ(pool_->num_free(), 0);
  EXPECT_EQ(scheduler_->num_preemptions(), 0);
  for (Sequence* sequence : sequences) sequence->commit(1);  // and none of the drafted rows
  scheduler_->return_draft_pages();
  EXPECT_EQ(pool_->num_free(), 1);
  EXPECT_EQ(sequences[0]->pages.num_pages(), 1);
}

TEST_F(SchedulerTest, PagesOfAcceptedRowsStay) {
  const auto sequences =
      start_decoding({.max_sequences = 4, .pass_tokens = 512, .max_drafted_rows = 64}, 3, {62});
  plan_with_drafts(sequences, {draft_of(20)});
  sequences[0]->commit(1 + 4);
  scheduler_->return_draft_pages();
  EXPECT_EQ(sequences[0]->pages.num_pages(), 2);
}

/// Two branches of `depth` guesses each.
Draft fork_of(int64_t depth) {
  Draft draft = draft_of(depth);
  draft.append_to(-1, 40);
  for (int64_t i = 1; i < depth; ++i) draft.append_to(draft.size() - 1, static_cast<int32_t>(40 + i));
  return draft;
}

TEST_F(SchedulerTest, EveryonesFirstBranchComesBeforeOtherBranches) {
  const auto sequences =
      start_decoding({.max_sequences = 4, .pass_tokens = 16, .max_drafted_rows = 12}, 10, {3, 3});
  const auto planned = plan_with_drafts(sequences, {fork_of(3), fork_of(3)});
  // Of 12 drafted rows each has three; the first then takes five for its other branch, the known row
  // included, and one is left.
  EXPECT_EQ(drafted_rows(planned), (Rows{{1, 6}, {2, 3}}));
  EXPECT_EQ(planned[0].num_repeated, 1);
  EXPECT_EQ(planned[0].num_pass_rows(), 8);
  EXPECT_EQ(planned[0].num_drafted_rows(), 8);
  EXPECT_EQ(planned[1].num_repeated, 0);
  EXPECT_EQ(planned[1].num_drafted_rows(), 3);
  EXPECT_TRUE(sequences[1]->drafts.branches.is_empty());
  EXPECT_TRUE(sequences[1]->drafts.draft.is_chain());
}

TEST_F(SchedulerTest, OtherBranchesTakeNoRowsFromAnyonesFirst) {
  const auto sequences =
      start_decoding({.max_sequences = 4, .pass_tokens = 16, .max_drafted_rows = 10}, 10, {3, 3});
  const auto planned = plan_with_drafts(sequences, {fork_of(3), fork_of(3)});
  EXPECT_EQ(drafted_rows(planned), (Rows{{1, 3}, {2, 3}})) << "the first could have had both of its branches";
  EXPECT_TRUE(sequences[0]->drafts.branches.is_empty());
}

TEST_F(SchedulerTest, OtherBranchesTakeOnlyFreePagesAndNobodyIsHeldBack) {
  for (const int64_t num_pages : {2, 3, 4}) {
    const auto sequences =
        start_decoding({.max_sequences = 4, .pass_tokens = 512, .max_drafted_rows = 64}, num_pages, {30, 30});
    if (num_pages == 2) run_pass();
    ASSERT_EQ(plan().size(), num_pages == 2 ? 1u : 2u) << "two take a page to spare";
    const int64_t num_free = pool_->num_free();
    const auto planned = plan_with_drafts(sequences, {fork_of(3), num_pages > 2 ? fork_of(3) : Draft()});
    EXPECT_EQ(planned[0].num_drafted, num_free >= 1 ? 6 : 3);
    if (num_pages > 2) {
      EXPECT_EQ(planned[1].num_drafted, num_free >= 2 ? 6 : 3);
    }
    EXPECT_EQ(pool_->num_free(), std::max<int64_t>(num_free - (num_pages > 2 ? 2 : 1), 0));
    EXPECT_EQ(scheduler_->num_preemptions(), 0);
    for (const Sequence* sequence : sequences)
      scheduler_->remove(*sequence);  // in the middle of a pass, as where one fails
    EXPECT_EQ(pool_->num_used(), 0);
  }
}

TEST_F(SchedulerTest, RemovingFreesPagesWhereverTheSequenceIs) {
  start({.max_sequences = 1, .pass_tokens = 64}, 4);
  add(1, 70);
  add(2, 5);
  run_pass();
  EXPECT_EQ(pool_->num_used(), 1);
  EXPECT_EQ(scheduler_->remove(*scheduler_->find(2))->id, 2u);
  EXPECT_EQ(scheduler_->remove(*scheduler_->find(1))->id, 1u);
  EXPECT_EQ(pool_->num_used(), 0);
  EXPECT_EQ(scheduler_->find(1), nullptr);
  EXPECT_EQ(scheduler_->oldest(), nullptr);
  EXPECT_TRUE(run_pass().empty());
}

}  // namespace
}  // namespace tensorfold
