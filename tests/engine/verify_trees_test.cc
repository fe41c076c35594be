// Drafts that are trees, on the fake model: in whatever branch the reply is, whatever else a tree holds and
// whatever rows and pages there are for it, the reply is the serial one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

#include "drafters/lookup.h"
#include "drafters/tape.h"
#include "engine/pass.h"
#include "tests/support/engine_fixture.h"

namespace tensorfold {
namespace {

using testing::HasSubstr;
using Shape = TreeTapeDrafter::Shape;
using Tokens = std::vector<int32_t>;

// With wrong tokens before it the reply is never in the first branch.
constexpr Shape kRightLast = {.num_before = 1, .num_after = 0};
constexpr Shape kRightFirst = {.num_before = 0, .num_after = 1};
constexpr Shape kRightBetween = {.num_before = 1, .num_after = 1};
constexpr Shape kWide = {.num_before = 3, .num_after = 2};
constexpr Shape kWrongInTurn = {.num_before = 1, .num_after = 1, .num_right = -1};
constexpr Shape kWrong = {.num_before = 1, .num_after = 1, .num_right = 0};

DrafterFactory tree(const Shape& shape) {
  return [shape](const Request& r) {
    return std::make_unique<TreeTapeDrafter>(std::ssize(r.prompt), serial_reply(r, kTapeTokens),
                                             kFakeVocabSize, shape);
  };
}

/// A tree whose wrong branches have rows without a drawable token.
class PoisonTreeDrafter final : public TapeDrafter {
 public:
  using TapeDrafter::TapeDrafter;
  void propose(int64_t max_tokens, Draft& draft) override {
    TapeDrafter::propose(max_tokens, draft);
    const Tokens reply = draft.tokens;
    draft.truncate(0);
    int64_t right = -1;
    for (const int32_t token : reply) {
      const int64_t parent = right;
      draft.append_to(parent, draft.size() % 2 == 0 ? kFakeNanToken : kFakeInfiniteToken);
      draft.append_to(parent, token);
      right = draft.size() - 1;
    }
    draft.truncate(std::ssize(reply));
  }
};

class VerifyTreesTest : public EngineFixture {
 protected:
  VerifyTreesTest() {
    in_pass_ = [this](const Pass& pass) { count_branches(pass); };
  }

  static EngineOptions with_pages(EngineOptions options, int64_t num_pages) {
    options.kv_memory_bytes = memory_of_pages(num_pages, options);
    return options;
  }
  /// Branches after the first of each sequence.
  void count_branches(const Pass& pass) {
    std::set<int32_t> slots;
    for (const SequenceRows& rows : pass.rows.sequences)
      if (!slots.insert(rows.state_slot).second) ++num_branches_;
  }

  std::atomic<int64_t> num_branches_{0};
};

TEST_F(VerifyTreesTest, ARepliesTokensDoNotDependOnTreesOptionsOrCompany) {
  const std::vector<std::pair<const char*, DrafterFactory>> drafters = {
      {"right last", tree(kRightLast)},
      {"right first", tree(kRightFirst)},
      {"right between", tree(kRightBetween)},
      {"wide", tree(kWide)},
      {"wrong in turn", tree(kWrongInTurn)},
      {"wrong", tree(kWrong)},
      {"poison",
       [](const Request& r) {
         return std::make_unique<PoisonTreeDrafter>(std::ssize(r.prompt), serial_reply(r, kTapeTokens));
       }},
      {"lookup",
       [](const Request&) { return std::make_unique<LookupDrafter>(LookupOptions{.max_branches = 3}); }}};
  int64_t num_preemptions = 0, num_accepted = 0;
  uint64_t round = 0;
  for (const auto& [name, factory] : drafters) {
    for (const auto& [pass_tokens, max_sequences] :
         {std::pair<int64_t, int64_t>{1, 3}, {7, 16}, {64, 3}, {512, 1}, {512, 16}}) {
      EngineOptions options = drafting(factory, static_cast<int64_t>(2 + round * 5 % 14));
      options.pass_tokens = pass_tokens;
      options.max_sequences = max_sequences;
      if (round % 2 == 0) options = with_pages(options, 5);
      if (++round % 4 == 0) options.draft = DraftMode::kAuto;
      hold_passes();
      start(options);
      std::vector<Request> requests;
      std::vector<ReplyCollector> collectors(16);
      for (uint64_t i = 0; i < 16; ++i) {
        const auto n = static_cast<int64_t>(i);
        requests.push_back(request(1 + n * 37 % 150, i, 1 + n * 29 % 150));
        submit(requests.back(), collectors[i]);
      }
      release_passes();
      for (uint64_t i = 0; i < 16; ++i) {
        const CollectedReply reply = collectors[i].wait();
        ASSERT_EQ(reply.tokens, serial_reply(requests[i], requests[i].max_tokens))
            << name << ", request " << i;
        EXPECT_EQ(reply.finish, FinishReason::kLength);
      }
      const EngineStats stats = engine_->stats();
      EXPECT_EQ(stats.kv_pages_used, 0) << name;
      EXPECT_LE(control_.max_rows, std::max(options.pass_tokens, options.max_sequences));
      EXPECT_EQ(control_.num_faults, 0) << name;
      control_.max_rows = 0;
      num_preemptions += stats.preemptions;
      num_accepted += stats.draft_accepted_tokens;
      engine_.reset();
    }
  }
  EXPECT_GT(num_preemptions, 20);
  EXPECT_GT(num_accepted, 1000);
  EXPECT_GT(num_branches_, 1000);
}

// Eight guesses: at each of three depths a wrong one and the reply's, and two behind wrong ones.
TEST_F(VerifyTreesTest, GuessesInALaterBranchSavePasses) {
  start(drafting(tree(kRightLast), 8));
  const Request r = request(20, 2, 161);
  const CollectedReply reply = ask(r);
  EXPECT_EQ(reply.tokens, serial_reply(r, 161));
  // The prompt's pass gives one token, 38 passes four each. Of the last eight there is room for seven
  // guesses, two of them right, then for four and one right, for two and one right, and for none.
  EXPECT_EQ(engine_->stats().passes, 1 + 38 + 4);
  const DraftUsage& usage = reply.usage.speculative;
  EXPECT_EQ(usage.drafter, "tree tape");
  EXPECT_EQ(usage.rounds, 41);
  EXPECT_EQ(usage.drafted, 38 * 8 + 7 + 4 + 2);
  EXPECT_EQ(usage.accepted, 38 * 3 + 2 + 1 + 1);
  EXPECT_EQ(usage.passes_avoided, usage.accepted);
  EXPECT_EQ(usage.zero_accept_rounds, 0);
  EXPECT_EQ(num_branches_, 38 * 3 + 2 + 1 + 1);
}

TEST_F(VerifyTreesTest, TheRowsOfAPassBoundTheBranches) {
  EngineOptions options = drafting(tree(kRightLast), 8);
  options.pass_tokens = 9;
  options.max_sequences = 1;
  start(options);
  const Request r = request(5, 2, 100);
  EXPECT_EQ(ask(r).tokens, serial_reply(r, 100));
  // Eight rows may be drafted. The first branch has two guesses and the known row, the second three guesses,
  // one of them right, and that row again; the third would have four more.
  EXPECT_EQ(control_.max_rows, 7);
  EXPECT_EQ(engine_->stats().passes, 1 + 49 + 1);

  options.pass_tokens = 64;  // twice draft_max may be drafted then, which is enough for all four branches
  start(options);
  EXPECT_EQ(ask(r).tokens, serial_reply(r, 100));
  EXPECT_EQ(control_.max_rows, 3 + 4 + 4 + 4);
}

// A pass is at most about twice as large as one whose time is known; rows that branches repeat are rows.
TEST_F(VerifyTreesTest, WhatIsMeasuredToPayCountsTheRowsThatBranchesRepeat) {
  int64_t largest = 0, num_trees = 0;
  in_pass_ = [&](const Pass& pass) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // beside which rows cost little
    if (pass.rows.positions[0] == 0) return;                    // the prompt
    const int64_t num_rows = std::ssize(pass.tokens);
    EXPECT_LE(num_rows, std::max<int64_t>(2 * largest, 2));
    largest = std::max(largest, num_rows);
    num_trees += pass.rows.sequences.size() > 1;
  };
  EngineOptions options = drafting(tree(kRightFirst), 8);
  options.draft = DraftMode::kAuto;
  const Request r = request(5, 2, 300);
  // On a busy machine rows may seem dear.
  for (int attempt = 0; attempt < 20 && num_trees == 0; ++attempt) {
    start(options);
    largest = 0;
    EXPECT_EQ(ask(r).tokens, serial_reply(r, 300));
  }
  EXPECT_GT(num_trees, 0);
}

TEST_F(VerifyTreesTest, BranchesMayLieAnyhowOverPages) {
  for (const Shape& shape : {kRightLast, kRightBetween, kWrongInTurn}) {
    for (const int64_t draft_max : {2, 5, 13, 30}) {
      start(drafting(tree(shape), draft_max));
      for (int64_t num_prompt_tokens = 56; num_prompt_tokens <= 67; ++num_prompt_tokens) {
        const Request r = request(num_prompt_tokens, static_cast<uint64_t>(num_prompt_tokens), 90);
        ASSERT_EQ(ask(r).tokens, serial_reply(r, 90)) << num_prompt_tokens << " tokens, " << draft_max;
        EXPECT_EQ(engine_->stats().kv_pages_used, 0);
        EXPECT_EQ(control_.num_faults, 0);
      }
    }
  }
  EXPECT_GT(num_branches_, 500);
}

// The last known token is then at position 0, where a recurrence starts from zeros.
TEST_F(VerifyTreesTest, APromptOfOneTokenMayBeFollowedByATree) {
  for (const Shape& shape : {kRightLast, kWrong}) {
    start(drafting(tree(shape), 8));
    for (uint64_t seed = 0; seed < 8; ++seed) {
      const Request r = request(1, seed, 20);
      EXPECT_EQ(ask(r).tokens, serial_reply(r, 20));
    }
    EXPECT_GT(engine_->stats().draft_rounds, 0);
  }
}

TEST_F(VerifyTreesTest, BranchesAreDroppedWhereThereAreNoPages) {
  for (const int64_t num_pages : {1, 2, 3}) {
    num_branches_ = 0;
    start(with_pages(drafting(tree(kRightBetween), 12), num_pages));
    const Request r = request(21, 2, 64 * num_pages - 21);  // fills all pages to their last position
    EXPECT_EQ(ask(r).tokens, serial_reply(r, r.max_tokens));
    EXPECT_EQ(engine_->stats().preemptions, 0) << "a branch took a page that was not there";
    EXPECT_EQ(engine_->stats().kv_pages_used, 0);
    // With one page there is never one for a second branch.
    EXPECT_EQ(num_branches_ > 0, num_pages > 1);
  }
}

// The second request's branches lie in the last free page long before it needs it. The first needs it sooner,
// and has ended by the time the second does: held for branches, the page would cost a preemption.
TEST_F(VerifyTreesTest, NoPageIsHeldForBranches) {
  hold_passes();
  start(with_pages(drafting(tree(kWrong), 8), 3));
  Request first = request(50, 2, 19);
  const Request second = request(34, 4, 60);
  first.draft = false;
  ReplyCollector a, b;
  submit(first, a);
  submit(second, b);
  release_passes();
  EXPECT_EQ(a.wait().tokens, serial_reply(first, 19));
  EXPECT_EQ(b.wait().tokens, serial_reply(second, 60));
  EXPECT_EQ(engine_->stats().preemptions, 0);
  EXPECT_GT(num_branches_, 10);
}

TEST_F(VerifyTreesTest, AnEndOfSequenceTokenInsideABranchEndsTheReply) {
  const Request r = request(10, 4, 60);
  const Tokens whole = serial_reply(r, 60);
  for (const Shape& shape : {kRightLast, kRightFirst, kWrongInTurn}) {
    for (size_t at = 20; at < 32; ++at) {
      const auto end = std::find(whole.begin(), whole.end(), whole[at]) + 1;
      model_ = make_fake_model(control_);
      model_->generation.eos_token_ids = {whole[at]};
      start(drafting(tree(shape), 11));
      const CollectedReply reply = ask(r);
      EXPECT_EQ(reply.tokens, Tokens(whole.begin(), end));
      EXPECT_EQ(reply.finish, FinishReason::kStop);
      EXPECT_EQ(reply.usage.speculative.passes_avoided, std::ssize(reply.tokens) - engine_->stats().passes);
      EXPECT_EQ(engine_->stats().kv_pages_used, 0);
      Request ignoring = r;
      ignoring.ignore_eos = true;
      EXPECT_EQ(ask(ignoring).tokens, whole);
      engine_.reset();
    }
  }
}

/// Always the same tree: behind its first token a chain of two, and another chain of two beside it.
class FixedTreeDrafter final : public Drafter {
 public:
  explicit FixedTreeDrafter(int32_t token) : token_(token) {}
  std::string_view name() const override { return "fixed"; }
  void extend(std::span<const int32_t>) override {}
  void propose(int64_t max_tokens, Draft& draft) override {
    draft.clear();
    for (const int64_t parent : {-1, 0, 1}) draft.append_to(parent, token_);
    for (const int64_t parent : {-1, 3}) draft.append_to(parent, token_ + 1);
    draft.truncate(max_tokens);
  }

 private:
  int32_t token_;
};

TEST_F(VerifyTreesTest, NothingIsVerifiedBehindAGuessThatEndsTheReply) {
  const int32_t end_token = 5;
  Request r = request(10, 4, 60);
  const Tokens whole = serial_reply(r, 60);
  model_ = make_fake_model(control_);
  model_->generation.eos_token_ids = {end_token};
  start(drafting([end_token](const Request&) { return std::make_unique<FixedTreeDrafter>(end_token); }, 8));
  const CollectedReply reply = ask(r);
  EXPECT_EQ(reply.tokens, Tokens(whole.begin(), std::ranges::find(whole, end_token) + 1));
  const DraftUsage& usage = reply.usage.speculative;
  EXPECT_GT(usage.rounds, 20);
  EXPECT_GT(usage.drafted, 2 * usage.rounds);
  EXPECT_LE(usage.drafted, 3 * usage.rounds);
  r.ignore_eos = true;
  const CollectedReply ignoring = ask(r);
  EXPECT_EQ(ignoring.tokens, whole);
  EXPECT_GT(ignoring.usage.speculative.drafted, 4 * ignoring.usage.speculative.rounds);
}

TEST_F(VerifyTreesTest, LogprobsAndObserversSeeEachTokenOnceAsSerially) {
  struct Observer : PassObserver {
    void on_token(RequestId, int64_t pos, int32_t token, std::span<const float> logits) override {
      seen.push_back({pos, token, {logits.begin(), logits.end()}});
    }
    std::vector<std::tuple<int64_t, int32_t, std::vector<float>>> seen;
  } observers[2];
  Request r = request(10, 3, 70);
  r.num_logprobs = 3;
  CollectedReply replies[2];
  for (const bool is_drafted : {false, true}) {
    EngineOptions options = is_drafted ? drafting(tree(kRightBetween), 12) : EngineOptions();
    options.observer = &observers[is_drafted];
    start(options);
    replies[is_drafted] = ask(r);
  }
  EXPECT_GT(replies[1].usage.speculative.accepted, 20);
  EXPECT_EQ(observers[1].seen, observers[0].seen);
  for (size_t i = 0; i < 70; ++i) {
    const GeneratedToken &serial = replies[0].generated[i], &drafted = replies[1].generated[i];
    EXPECT_EQ(drafted.logprob, serial.logprob);
    EXPECT_EQ(drafted.top_logprobs[2].token, serial.top_logprobs[2].token);
  }
}

TEST_F(VerifyTreesTest, CancellingBetweenAnyPassesLeavesEveryoneElseAlone) {
  const Request cancelled = request(50, 3, 60), other = request(40, 5, 60);
  for (int64_t at = 0; at < 20; ++at) {
    std::atomic<RequestId> id = 0;
    control_.num_passes = 0;
    hold_passes();
    in_pass_ = [&](const Pass& pass) {
      count_branches(pass);
      if (control_.num_passes == at) engine_->cancel(id);
    };
    start(drafting(tree(kWrongInTurn), 9));
    ReplyCollector first, second;
    id = engine_->submit(cancelled, first.sink()).value();
    submit(other, second);
    release_passes();
    const CollectedReply reply = first.wait();
    const Tokens whole = serial_reply(cancelled, 60);
    EXPECT_TRUE(std::equal(reply.tokens.begin(), reply.tokens.end(), whole.begin()));
    EXPECT_EQ(second.wait().tokens, serial_reply(other, 60));
    EXPECT_EQ(engine_->stats().kv_pages_used, 0);
    EXPECT_EQ(ask(cancelled).tokens, whole) << "asked again";
    engine_.reset();
  }
  EXPECT_GT(num_branches_, 100);
}

// Passes that commit accepted rows are counted too, and can fail as others do.
TEST_F(VerifyTreesTest, AFailedPassOrCommitFailsItsRequestsAndTheEngineGoesOn) {
  int num_failed = 0;
  for (int64_t at = 0; at < 14; ++at) {
    control_.num_passes = 0;
    control_.end_pass = [at](int64_t pass_idx) {
      return pass_idx == at ? make_error(StatusCode::kInternal, "device fault in pass {}", at) : Status();
    };
    start(drafting(tree(kWrongInTurn), 6));
    std::vector<ReplyCollector> collectors(2);
    for (size_t i = 0; i < 2; ++i) submit(request(40, i, 30), collectors[i]);
    for (size_t i = 0; i < 2; ++i) {
      const CollectedReply reply = collectors[i].wait();
      const Tokens whole = serial_reply(request(40, i, 30), 30);
      EXPECT_TRUE(std::equal(reply.tokens.begin(), reply.tokens.end(), whole.begin()));
      EXPECT_EQ(collectors[i].peek().num_events_after_finish, 0);
      if (reply.finish != FinishReason::kError) {
        EXPECT_EQ(reply.tokens, whole);
        continue;
      }
      ++num_failed;
      EXPECT_THAT(reply.status.message(), HasSubstr(fmt::format("device fault in pass {}", at)));
    }
    EXPECT_EQ(engine_->stats().kv_pages_used, 0);
    EXPECT_EQ(ask(request(40, 7, 6)).tokens, serial_reply(request(40, 7, 6), 6));
    engine_.reset();
  }
  EXPECT_GE(num_failed, 14);
}

// With branches even a pass that accepts no guess commits a row, without which the state is one token behind.
TEST_F(VerifyTreesTest, AFailedCommitOfTheKnownRowAloneFailsTheRequest) {
  control_.end_pass = [](int64_t pass_idx) {
    return pass_idx == 2 ? make_error(StatusCode::kInternal, "device fault in the commit") : Status();
  };
  start(drafting(tree(kWrong), 6));
  const Request r = request(40, 1, 30);
  const CollectedReply reply = ask(r);
  EXPECT_EQ(reply.finish, FinishReason::kError);
  EXPECT_EQ(reply.status.message(), "request 1: device fault in the commit");
  EXPECT_EQ(reply.tokens, serial_reply(r, 2)) << "one of the prompt's pass, one of the tree's";
  EXPECT_EQ(engine_->stats().kv_pages_used, 0);
  EXPECT_EQ(ask(r).tokens, serial_reply(r, 30));
}

TEST_F(VerifyTreesTest, APageThatCannotBeCopiedFailsWhoRunsAndTheEngineGoesOn) {
  for (int at = 1; at < 8; ++at) {
    control_.device.num_copies = 0;
    control_.device.fail_copy_at = at;
    start(drafting(tree(kRightBetween), 7));
    const Request r = request(40, 1, 50);
    const CollectedReply reply = ask(r);
    EXPECT_EQ(reply.finish, FinishReason::kError);
    EXPECT_EQ(reply.status.message(), "request 1: copying a page failed on purpose");
    const Tokens whole = serial_reply(r, 50);
    EXPECT_TRUE(std::equal(reply.tokens.begin(), reply.tokens.end(), whole.begin()));
    EXPECT_EQ(engine_->stats().kv_pages_used, 0);
    EXPECT_EQ(ask(r).tokens, whole);
    engine_.reset();
  }
}

TEST_F(VerifyTreesTest, AnUndrawableRowOfTheReplyFailsAfterTheTokensBeforeIt) {
  const Request r = request(13, 2, 40);
  for (int64_t pos = 13; pos < 25; ++pos) {
    control_.nan_pos = pos;
    start(drafting(tree(kRightLast), 12));
    const CollectedReply reply = ask(r);
    EXPECT_EQ(reply.finish, FinishReason::kError);
    EXPECT_EQ(reply.tokens, serial_reply(r, pos - 12));
    EXPECT_EQ(reply.status.message(),
              fmt::format("request 1: the model produced NaN logits at position {}", pos));
    EXPECT_EQ(engine_->stats().kv_pages_used, 0);
  }
}

}  // namespace
}  // namespace tensorfold
