// Drafts on the fake model: whoever guesses, a reply is the serial one; limits, ends and faults inside a run
// of accepted tokens; what is counted.
#include "engine/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

#include "drafters/lookup.h"
#include "drafters/pass_drafter.h"
#include "drafters/tape.h"
#include "engine/pass.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/toy_model.h"

namespace tensorfold {
namespace {

using testing::HasSubstr;
using Tokens = std::vector<int32_t>;

std::unique_ptr<Drafter> make_tape(const Request& r) {
  return std::make_unique<TapeDrafter>(std::ssize(r.prompt), serial_reply(r, kTapeTokens));
}

DrafterFactory adversary(int64_t num_right) {
  return [num_right](const Request& r) {
    return std::make_unique<AdversaryDrafter>(std::ssize(r.prompt), serial_reply(r, kTapeTokens),
                                              kFakeVocabSize, num_right);
  };
}

/// Proposes the reply, and then tokens whose rows have NaN logits, or none that is finite.
class PoisonDrafter final : public TapeDrafter {
 public:
  using TapeDrafter::TapeDrafter;
  void propose(int64_t max_tokens, Draft& draft) override {
    TapeDrafter::propose(std::min<int64_t>(max_tokens, 2), draft);
    while (draft.size() < max_tokens)
      draft.append(draft.size() % 2 == 0 ? kFakeNanToken : kFakeInfiniteToken);
  }
};

/// What a FakePassDrafter is told and what it saw.
struct FakeTurns {
  bool is_right = true;       ///< Its guesses; else every third one is wrong.
  bool offers_trees = false;  ///< Each guess then follows a wrong one for its place.
  int64_t fails_at_turn = -1;
  int64_t num_turns = 0, num_faults = 0, num_guesses = 0;
  int64_t num_trees = 0;
  int64_t num_holes = 0;  ///< Positions that it was not shown in time.
};

/// Knows the replies of the fake model. Keeps a word for each position in a layer of its own, and checks that
/// it is shown each row of the model once, in order, with its hidden state, and that what it kept is still
/// there.
class FakePassDrafter final : public PassDrafter {
 public:
  explicit FakePassDrafter(FakeTurns& turns) : turns_(turns) {}

  std::string_view name() const override { return "fake"; }
  std::span<const KvShape> kv_layers() const override { return layers_; }
  bool wants_hidden() const override { return true; }
  bool offers_trees() const override { return turns_.offers_trees; }
  int64_t max_positions() const override { return kFakeMaxPositions; }
  Status prepare(int64_t, int64_t, int64_t) override { return {}; }
  int64_t scratch_bytes() const override { return 64; }

  Status run(std::span<DraftTask> tasks, const ModelRows& model, const State& state,
             Arena& scratch) override {
    scratch.array(DType::kF32, {16});
    if (turns_.num_turns++ == turns_.fails_at_turn)
      return make_error(StatusCode::kInternal, "a fault on purpose");
    if (state.kv_layers.size() != 1) ++turns_.num_faults;
    for (DraftTask& task : tasks) {
      for (size_t i = 0; i < task.rows.size(); ++i) {
        const int64_t pos = task.first_pos + static_cast<int64_t>(i);
        const Tokens seen(task.tokens.begin(), task.tokens.begin() + pos + 1);
        if (pos + 1 >= std::ssize(task.tokens)) ++turns_.num_faults;
        if (*model.hidden.row<float>(task.rows[i]) != fake_hidden(seen)) ++turns_.num_faults;
        if (pos > 0 && *word(state, task, pos - 1) != key(seen, pos - 1)) ++turns_.num_holes;
        *word(state, task, pos) = key(seen, pos);
      }
      guess(task, state);
    }
    return {};
  }

 private:
  static uint64_t key(std::span<const int32_t> tokens, int64_t pos) {
    return static_cast<uint64_t>(fake_hidden(tokens.first(static_cast<size_t>(pos) + 1))) + 7;
  }
  static uint64_t* word(const State& state, const DraftTask& task, int64_t pos) {
    const KvPages& pages = state.kv_layers[0];
    const int32_t page = task.page_table[pos / kPageTokens];
    TF_CHECK(page >= 0 && page < pages.num_pages);
    return reinterpret_cast<uint64_t*>(pages.key_page(page)) + pos % kPageTokens;
  }
  void guess(DraftTask& task, const State& state) {
    if (task.max_tokens == 0) return;
    const int64_t known = std::ssize(task.tokens);
    if (task.max_depth < 1 || task.max_depth > task.max_tokens || task.max_tokens > kMaxDraftTokens ||
        (!turns_.offers_trees && task.max_depth != task.max_tokens) ||
        std::ssize(task.sampling) != task.max_depth)
      ++turns_.num_faults;
    for (int64_t i = 0; i < task.max_depth; ++i) {
      if (task.sampling[static_cast<size_t>(i)].pos != known + i) ++turns_.num_faults;
      *word(state, task, known - 1 + i) = 1;  // gone by the next turn
    }
    const Tokens tokens(task.tokens.begin(), task.tokens.end());
    int64_t last = -1;
    for (const int32_t token : fake_reply(tokens, task.max_depth, task.sampling[0])) {
      const bool is_wrong = !turns_.is_right && ++turns_.num_guesses % 3 == 0;
      const int64_t parent = last;
      if (turns_.offers_trees) task.draft->append_to(parent, (token + 2) % kFakeNanToken, 5);
      task.draft->append_to(parent, is_wrong ? (token + 1) % kFakeNanToken : token, 3);
      last = task.draft->size() - 1;
    }
    task.draft->truncate(task.max_tokens);
    if (!task.draft->is_chain()) ++turns_.num_trees;
  }

  FakeTurns& turns_;
  std::vector<KvShape> layers_ = std::vector<KvShape>(1);
};

using VerifyTest = EngineFixture;

TEST_F(VerifyTest, ARepliesTokensDoNotDependOnDraftsOptionsOrCompany) {
  const std::vector<std::pair<const char*, DrafterFactory>> drafters = {
      {"tape", make_tape},
      {"always wrong", adversary(0)},
      {"wrong here and there", adversary(-1)},
      {"lookup", nullptr},
      {"poison", [](const Request& r) {
         return std::make_unique<PoisonDrafter>(std::ssize(r.prompt), serial_reply(r, kTapeTokens));
       }}};
  int64_t num_preemptions = 0, num_rounds = 0, num_partial = 0;
  uint64_t round = 0;
  for (const auto& [name, factory] : drafters) {
    for (const auto& [pass_tokens, max_sequences] :
         {std::pair<int64_t, int64_t>{1, 3}, {7, 16}, {64, 3}, {512, 1}, {512, 16}}) {
      EngineOptions options = drafting(factory, static_cast<int64_t>(1 + round % 8));
      options.pass_tokens = pass_tokens;
      options.max_sequences = max_sequences;
      if (round++ % 2 == 0) options.kv_memory_bytes = memory_of_pages(5, options);
      if (round % 3 == 0) options.draft = DraftMode::kAuto;
      hold_passes();
      start(options);
      std::vector<Request> requests;
      std::vector<ReplyCollector> collectors(20);
      for (uint64_t i = 0; i < 20; ++i) {
        const auto n = static_cast<int64_t>(i);
        requests.push_back(request(1 + n * 37 % 150, i, 1 + n * 29 % 150));
        requests.back().session = i % 3;
        submit(requests.back(), collectors[i]);
      }
      release_passes();
      for (uint64_t i = 0; i < 20; ++i) {
        const CollectedReply reply = collectors[i].wait();
        ASSERT_EQ(reply.tokens, serial_reply(requests[i], requests[i].max_tokens))
            << name << ", request " << i;
        EXPECT_EQ(reply.finish, FinishReason::kLength);
        EXPECT_EQ(reply.usage.completion_tokens, requests[i].max_tokens);
      }
      const EngineStats stats = engine_->stats();
      EXPECT_EQ(stats.kv_pages_used, 0);
      EXPECT_LE(control_.max_rows, std::max(options.pass_tokens, options.max_sequences));
      control_.max_rows = 0;
      num_preemptions += stats.preemptions;
      num_rounds += stats.draft_rounds;
      num_partial += stats.draft_accepted_tokens > 0 && stats.draft_accepted_tokens < stats.draft_tokens;
      EXPECT_EQ(control_.num_faults, 0) << name;
    }
  }
  EXPECT_GT(num_preemptions, 20);
  EXPECT_GT(num_rounds, 1000);
  EXPECT_GT(num_partial, 5);
}

TEST_F(VerifyTest, ADrafterThatComputesIsShownEachRowOnceAndChangesNoReply) {
  int64_t num_preemptions = 0;
  for (const DraftMode mode : {DraftMode::kModel, DraftMode::kAuto}) {
    for (const auto& [is_right, offers_trees] : {std::pair(false, false), {true, false}, {true, true}}) {
      for (const auto& [pass_tokens, max_sequences] :
           {std::pair<int64_t, int64_t>{1, 3}, {7, 16}, {64, 3}, {512, 16}}) {
        FakeTurns turns{.is_right = is_right, .offers_trees = offers_trees};
        EngineOptions options = drafting(nullptr, 5);
        options.draft = mode;
        options.pass_tokens = pass_tokens;
        options.max_sequences = max_sequences;
        options.make_pass_drafter = [&](const LoadedModel&) {
          return std::make_unique<FakePassDrafter>(turns);
        };
        if (pass_tokens == 64)  // a page has the drafter's layer too
          options.kv_memory_bytes =
              5 * (kFakePageBytes + kFakePageBytes / 2) + max_sequences * kFakeSlotBytes;
        hold_passes();
        start(options);
        std::vector<Request> requests;
        std::vector<ReplyCollector> collectors(12);
        for (uint64_t i = 0; i < 12; ++i) {
          const auto n = static_cast<int64_t>(i);
          requests.push_back(request(1 + n * 37 % 150, i, 1 + n * 29 % 150));
          requests.back().draft = i % 5 != 4;
          submit(requests.back(), collectors[i]);
        }
        release_passes();
        for (uint64_t i = 0; i < 12; ++i) {
          const CollectedReply reply = collectors[i].wait();
          ASSERT_EQ(reply.tokens, serial_reply(requests[i], requests[i].max_tokens)) << "request " << i;
          const DraftUsage& usage = reply.usage.speculative;
          EXPECT_EQ(usage.drafter, !requests[i].draft         ? ""
                                   : mode == DraftMode::kAuto ? "lookup+fake"
                                                              : "fake");
          if (is_right && mode == DraftMode::kModel && !offers_trees) {
            EXPECT_EQ(usage.accepted, usage.drafted);
          }
        }
        const EngineStats stats = engine_->stats();
        num_preemptions += stats.preemptions;
        EXPECT_EQ(turns.num_faults, 0);
        EXPECT_EQ(control_.num_faults, 0);
        if (mode == DraftMode::kModel) {
          EXPECT_EQ(turns.num_holes, 0);
          if (pass_tokens > 1) {
            EXPECT_GT(stats.draft_accepted_tokens, offers_trees && pass_tokens == 7 ? 20 : 200);
          }
          if (!is_right || offers_trees) {
            EXPECT_LT(stats.draft_accepted_tokens, stats.draft_tokens);
          }
        }
        engine_.reset();
      }
    }
  }
  EXPECT_GT(num_preemptions, 5);
}

TEST_F(VerifyTest, ADrafterThatFailsIsNotAskedAgain) {
  for (const int64_t at : {0, 1, 5}) {
    FakeTurns turns{.fails_at_turn = at};
    EngineOptions options = drafting(nullptr, 4);
    options.draft = DraftMode::kModel;
    options.make_pass_drafter = [&](const LoadedModel&) { return std::make_unique<FakePassDrafter>(turns); };
    start(options);
    const Request r = request(20, 2, 60);
    EXPECT_EQ(ask(r).tokens, serial_reply(r, 60));
    EXPECT_EQ(turns.num_turns, at + 1);
    EXPECT_EQ(ask(r).tokens, serial_reply(r, 60));
    EXPECT_EQ(turns.num_turns, at + 1);
    engine_.reset();
  }
}

TEST_F(VerifyTest, AfterADrafterHasFailedRequestsNoLongerNameIt) {
  for (const DraftMode mode : {DraftMode::kModel, DraftMode::kAuto}) {
    FakeTurns turns{.fails_at_turn = 0};
    EngineOptions options = drafting(nullptr, 4);
    options.draft = mode;
    options.make_pass_drafter = [&](const LoadedModel&) { return std::make_unique<FakePassDrafter>(turns); };
    start(options);
    const Request r = request(20, 2, 60);
    EXPECT_EQ(ask(r).usage.speculative.drafter, mode == DraftMode::kAuto ? "lookup+fake" : "fake");
    ASSERT_EQ(turns.num_turns, 1);
    for (int i = 0; i < 2; ++i)
      EXPECT_EQ(ask(r).usage.speculative.drafter, mode == DraftMode::kAuto ? "lookup" : "");
    engine_.reset();
  }
}

// A drafter may count on tokens of the vocabulary.
TEST_F(VerifyTest, ARefusedPromptIsShownToNoDrafter) {
  int num_made = 0;
  start(drafting([&](const Request& r) {
    ++num_made;
    return make_tape(r);
  }));
  Request refused = request(20, 2, 60);
  for (const int32_t token : {-1, static_cast<int32_t>(kFakeVocabSize)}) {
    refused.prompt[7] = token;
    EXPECT_FALSE(engine_->submit(refused, [](Event&&) {}).ok());
  }
  refused.prompt.clear();
  EXPECT_FALSE(engine_->submit(refused, [](Event&&) {}).ok());
  EXPECT_EQ(num_made, 0);
  EXPECT_EQ(ask(request(20, 2, 60)).usage.completion_tokens, 60);
  EXPECT_EQ(num_made, 1);
}

// The wrong one of two guesses for a place is said to be likelier. Both are verified once rows turn out to
// cost little beside the pass.
TEST_F(VerifyTest, TreesAreVerifiedWhereThatIsMeasuredToPay) {
  std::set<int64_t> branches;  // of a pass
  in_pass_ = [&](const Pass& pass) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    branches.insert(std::ssize(pass.rows.sequences));
  };
  FakeTurns turns{.offers_trees = true};
  EngineOptions options = drafting([](const Request&) { return nullptr; }, 6);
  options.draft = DraftMode::kAuto;
  options.make_pass_drafter = [&](const LoadedModel&) { return std::make_unique<FakePassDrafter>(turns); };
  const Request r = request(20, 2, 300);
  int64_t accepted = 0;
  // On a busy machine rows may seem dear.
  for (int attempt = 0; attempt < 20 && (branches.size() <= 1 || accepted <= 50); ++attempt) {
    start(options);
    const CollectedReply reply = ask(r);
    EXPECT_EQ(reply.tokens, serial_reply(r, 300));
    EXPECT_EQ(turns.num_faults, 0);
    accepted = std::max(accepted, reply.usage.speculative.accepted);
  }
  engine_.reset();
  EXPECT_GT(turns.num_trees, 0);
  EXPECT_GT(branches.size(), 1u) << "no tree was verified";
  EXPECT_GT(accepted, 50);
}

/// Knows the replies of the fake model, without following it: it has to take in each position in turn.
class FakeDraftModel final : public PassDrafter {
 public:
  struct Seen {
    int64_t num_faults = 0;
    std::vector<int64_t> catch_ups = {};  ///< Positions of each turn without guesses.
    int64_t first_guess_at = -1;          ///< Tokens of the sequence by then.
  };
  static constexpr int64_t kMaxDraft = 6;  ///< EngineOptions::draft_max.

  explicit FakeDraftModel(Seen& seen) : seen_(seen) {}

  std::string_view name() const override { return "fake model"; }
  std::span<const KvShape> kv_layers() const override { return layers_; }
  int64_t max_positions() const override { return kFakeMaxPositions; }
  Status prepare(int64_t, int64_t max_rows, int64_t) override {
    max_rows_ = max_rows;
    return {};
  }
  int64_t scratch_bytes() const override { return 64; }

  Status run(std::span<DraftTask> tasks, const ModelRows&, const State&, Arena&) override {
    for (DraftTask& task : tasks) {
      const int64_t missing = std::ssize(task.tokens) - task.num_absorbed;
      if (task.max_tokens == 0) {
        if (task.num_catch_up < 1 || task.num_catch_up >= missing || tasks.size() != 1) ++seen_.num_faults;
        seen_.catch_ups.push_back(std::min(task.num_catch_up, max_rows_));
        task.num_absorbed += seen_.catch_ups.back();
        continue;
      }
      if (task.num_absorbed == 0 || missing > kMaxDraft + 1) ++seen_.num_faults;
      if (seen_.first_guess_at < 0) seen_.first_guess_at = std::ssize(task.tokens);
      task.num_absorbed += missing;
      const Tokens tokens(task.tokens.begin(), task.tokens.end());
      for (const int32_t token : fake_reply(tokens, task.max_depth, task.sampling[0]))
        task.draft->append(token, 5);
    }
    return {};
  }

 private:
  Seen& seen_;
  int64_t max_rows_ = 0;
  std::vector<KvShape> layers_ = std::vector<KvShape>(1);
};

TEST_F(VerifyTest, ADraftModelCatchesUpInSlicesWhereTheReplyIsLongEnough) {
  in_pass_ = [](const Pass&) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  for (const int64_t pass_tokens : {64, 512}) {
    FakeDraftModel::Seen seen;
    int64_t accepted = 0;
    EngineOptions options = drafting([](const Request&) { return nullptr; }, FakeDraftModel::kMaxDraft);
    options.draft = DraftMode::kAuto;
    options.pass_tokens = pass_tokens;
    options.make_pass_drafter = [&](const LoadedModel&) { return std::make_unique<FakeDraftModel>(seen); };
    const Request r = request(300, 2, 400), brief = request(300, 4, 3);
    // On a busy machine turns may seem dear.
    for (int attempt = 0; attempt < 20 && accepted <= 50; ++attempt) {
      seen = {};
      start(options);
      EXPECT_EQ(ask(brief).tokens, serial_reply(brief, 3));
      EXPECT_TRUE(seen.catch_ups.empty()) << "three tokens never earn it back";
      const CollectedReply reply = ask(r);
      EXPECT_EQ(reply.tokens, serial_reply(r, 400));
      EXPECT_EQ(seen.num_faults, 0);
      accepted = reply.usage.speculative.accepted;
    }
    EXPECT_GT(accepted, 50);
    ASSERT_GE(seen.catch_ups.size(), 3u) << "of 16, 64 and 256 positions at most";
    EXPECT_EQ(seen.catch_ups.front(), 16) << "the first to find out what it takes";
    EXPECT_GE(seen.first_guess_at, 303) << "a slice a pass";
    engine_.reset();
  }
}

TEST_F(VerifyTest, UsageSaysWhichDrafterWasRight) {
  FakeTurns turns;
  EngineOptions options = drafting(nullptr, 4);
  options.draft = DraftMode::kModel;
  options.make_pass_drafter = [&](const LoadedModel&) { return std::make_unique<FakePassDrafter>(turns); };
  start(options);
  const DraftUsage usage = ask(request(20, 2, 61)).usage.speculative;
  ASSERT_EQ(usage.drafters.size(), 1u);
  EXPECT_EQ(usage.drafters[0].name, "fake");
  EXPECT_EQ(usage.drafters[0].rounds, 12);  // five tokens each, after the prompt's one
  EXPECT_EQ(usage.drafters[0].drafted, 48);
  EXPECT_EQ(usage.drafters[0].accepted, 48);
  EXPECT_GT(usage.computing_ms, 0);
  DraftUsage sum = usage;
  sum.add(usage);
  ASSERT_EQ(sum.drafters.size(), 1u);
  EXPECT_EQ(sum.drafters[0].rounds, 24);
  EXPECT_EQ(sum.drafters[0].drafted, 96);
  EXPECT_EQ(sum.drafters[0].accepted, 96);
  EXPECT_EQ(sum.computing_ms, 2 * usage.computing_ms);
}

TEST_F(VerifyTest, WithoutADrafterThatComputesTheModeIsRefused) {
  model_ = make_fake_model(control_);
  EngineOptions options;
  options.draft = DraftMode::kModel;
  EXPECT_EQ(Engine::create(model_, options).status().message(),
            "fake has no draft head (MTP), and no draft model was given");
}

TEST_F(VerifyTest, ASessionsTextsGiveGuessesAndChangeNoReply) {
  // Random tokens hold no pair of their own again often, so that a guess is the session's.
  const auto accepted_of = [&](std::optional<SessionKey> before, std::optional<SessionKey> now,
                               int64_t session_tokens) {
    EngineOptions options = drafting(nullptr, 8);
    options.session_tokens = session_tokens;
    start(options);
    Request r = request(20, 2, 150);
    r.session = before;
    EXPECT_EQ(ask(r).tokens, serial_reply(r, 150));
    r.session = now;
    const CollectedReply reply = ask(r);
    EXPECT_EQ(reply.tokens, serial_reply(r, 150));
    return reply.usage.speculative.accepted;
  };
  const int64_t alone = accepted_of(std::nullopt, std::nullopt, 1 << 20);
  EXPECT_LT(alone, 60);
  EXPECT_GT(accepted_of(7, 7, 1 << 20), 110) << "the earlier reply was not found";
  EXPECT_EQ(accepted_of(7, 8, 1 << 20), alone) << "another session's text was used";
  EXPECT_EQ(accepted_of(7, std::nullopt, 1 << 20), alone);
  EXPECT_EQ(accepted_of(std::nullopt, 7, 1 << 20), alone);
  EXPECT_EQ(accepted_of(7, 7, 0), alone);
}

TEST_F(VerifyTest, SessionsAreCountedAndBounded) {
  EngineOptions options = drafting(nullptr, 8);
  options.session_tokens = 1000;
  start(options);
  for (uint64_t i = 0; i < 30; ++i) {
    Request r = request(40, i, 50);
    if (i % 2 == 0) r.session = i;
    EXPECT_EQ(ask(r).tokens, serial_reply(r, 50));
    const EngineStats stats = engine_->stats();
    EXPECT_LE(stats.session_tokens, 1000);
    if (i >= 2) continue;
    EXPECT_EQ(stats.session_tokens, 40 + 8 + 50) << "the prompt, and the reply with what leads to it";
    EXPECT_EQ(stats.sessions, 1);
  }
  EXPECT_GT(engine_->stats().sessions, 2);
  options.draft = DraftMode::kOff;
  start(options);
  Request r = request(40, 2, 50);
  r.session = 1;
  ask(r);
  EXPECT_EQ(engine_->stats().sessions, 0) << "kept for nobody";
}

TEST_F(VerifyTest, RightGuessesSavePasses) {
  start(drafting(make_tape, 7));
  const Request r = request(20, 2, 161);  // the prompt's pass gives one token, 20 passes eight each
  const CollectedReply reply = ask(r);
  EXPECT_EQ(reply.tokens, serial_reply(r, 161));
  const EngineStats stats = engine_->stats();
  EXPECT_EQ(stats.passes, 21);
  EXPECT_EQ(stats.generated_tokens, 161);
  const DraftUsage& usage = reply.usage.speculative;
  EXPECT_EQ(usage.drafter, "tape");
  EXPECT_EQ(usage.rounds, 20);
  EXPECT_EQ(usage.drafted, 140);
  EXPECT_EQ(usage.accepted, 140);
  EXPECT_EQ(usage.passes_avoided, 140);
  EXPECT_EQ(usage.zero_accept_rounds, 0);
  EXPECT_EQ(usage.accepted_per_pass(), 7.0);
  EXPECT_EQ(usage.acceptance_rate(), 1.0);
  EXPECT_EQ(usage.search.matches, 20);
  EXPECT_EQ(stats.draft_rounds, 20);
  EXPECT_EQ(stats.draft_tokens, 140);
  EXPECT_EQ(stats.draft_accepted_tokens, 140);
  EXPECT_EQ(stats.draft_passes_avoided, 140);
}

TEST_F(VerifyTest, WrongGuessesSaveNoneAndAreCounted) {
  start(drafting(adversary(0), 4));
  const Request r = request(20, 3, 40);
  const CollectedReply reply = ask(r);
  EXPECT_EQ(reply.tokens, serial_reply(r, 40));
  EXPECT_EQ(engine_->stats().passes, 40);
  const DraftUsage& usage = reply.usage.speculative;
  EXPECT_EQ(usage.rounds, 38);  // not beside the prompt, and not for a last token
  EXPECT_EQ(usage.accepted + usage.passes_avoided, 0);
  EXPECT_EQ(usage.zero_accept_rounds, usage.rounds);
  EXPECT_EQ(engine_->stats().draft_zero_accept_rounds, usage.rounds);
}

TEST_F(VerifyTest, ARequestMayDeclineDrafts) {
  start(drafting(make_tape));
  Request r = request(20, 2, 30);
  r.draft = false;
  const CollectedReply reply = ask(r);
  EXPECT_EQ(reply.tokens, serial_reply(r, 30));
  EXPECT_EQ(reply.usage.speculative.drafter, "");
  EXPECT_EQ(engine_->stats().draft_rounds, 0);
  EXPECT_EQ(engine_->stats().passes, 30);
}

// The tape goes on past the end, as a drafter would that does not know of it.
TEST_F(VerifyTest, AnEndOfSequenceTokenInsideAnAcceptedRunEndsTheReply) {
  const Request r = request(10, 4, 60);
  const Tokens whole = serial_reply(r, 60);
  for (const int64_t draft_max : {3, 8}) {
    for (size_t at = 20; at < 32; ++at) {
      const auto end = std::find(whole.begin(), whole.end(), whole[at]) + 1;
      model_ = make_fake_model(control_);
      model_->generation.eos_token_ids = {whole[at]};
      start(drafting(make_tape, draft_max));
      const CollectedReply reply = ask(r);
      EXPECT_EQ(reply.tokens, Tokens(whole.begin(), end));
      EXPECT_EQ(reply.finish, FinishReason::kStop);
      EXPECT_TRUE(reply.generated.back().is_end);
      EXPECT_EQ(reply.usage.completion_tokens, std::ssize(reply.tokens));
      EXPECT_EQ(engine_->stats().generated_tokens, std::ssize(reply.tokens));
      EXPECT_EQ(reply.usage.speculative.passes_avoided, std::ssize(reply.tokens) - engine_->stats().passes);
      Request ignoring = r;
      ignoring.ignore_eos = true;
      EXPECT_EQ(ask(ignoring).tokens, whole);
      engine_.reset();
    }
  }
}

TEST_F(VerifyTest, AStopStringAcrossAcceptedTokensEndsTheReplyWhereSerialDoes) {
  Request r = request(10, 4, 40);
  const Tokens whole = serial_reply(r, 40);
  std::string text;
  for (const int32_t token : whole) text += static_cast<char>(token);
  for (size_t from = 4; from < 30; ++from) {
    r.stop = {"never in it", text.substr(from, 3)};
    CollectedReply replies[2];
    for (const bool is_drafted : {false, true}) {
      model_ = make_fake_model(control_);
      model_->tokenizer = Tokenizer::parse(toy_tokenizer_json()).value();
      start(is_drafted ? drafting(make_tape) : EngineOptions());
      replies[is_drafted] = ask(r);
      engine_.reset();
    }
    EXPECT_EQ(replies[1].text, replies[0].text);
    EXPECT_EQ(replies[1].text, text.substr(0, text.find(r.stop[1])));
    EXPECT_EQ(replies[1].tokens, replies[0].tokens);
    EXPECT_EQ(replies[1].finish, FinishReason::kStop);
    EXPECT_EQ(replies[1].usage.completion_tokens, replies[0].usage.completion_tokens);
  }
}

TEST_F(VerifyTest, LogprobsAndObserversSeeEachTokenOnceAsSerially) {
  struct Observer : PassObserver {
    void on_token(RequestId, int64_t pos, int32_t token, std::span<const float> logits) override {
      seen.push_back({pos, token, {logits.begin(), logits.end()}});
    }
    using Row = std::tuple<int64_t, int32_t, std::vector<float>>;
    std::vector<Row> seen;
  } observers[2];
  Request r = request(10, 3, 50);
  r.num_logprobs = 3;
  CollectedReply replies[2];
  for (const bool is_drafted : {false, true}) {
    EngineOptions options = is_drafted ? drafting(adversary(-1), 5) : EngineOptions();
    options.observer = &observers[is_drafted];
    start(options);
    replies[is_drafted] = ask(r);
  }
  EXPECT_GT(replies[1].usage.speculative.accepted, 10);
  EXPECT_EQ(observers[1].seen, observers[0].seen);
  ASSERT_EQ(replies[1].generated.size(), 50u);
  for (size_t i = 0; i < 50; ++i) {
    const GeneratedToken &serial = replies[0].generated[i], &drafted = replies[1].generated[i];
    EXPECT_EQ(drafted.logprob, serial.logprob);
    ASSERT_EQ(drafted.top_logprobs.size(), 3u);
    for (size_t j = 0; j < 3; ++j) {
      EXPECT_EQ(drafted.top_logprobs[j].token, serial.top_logprobs[j].token);
      EXPECT_EQ(drafted.top_logprobs[j].logprob, serial.top_logprobs[j].logprob);
    }
  }
}

TEST_F(VerifyTest, AnEventCarriesWhatOnePassGave) {
  start(drafting(make_tape, 4));
  std::mutex mutex;
  std::vector<size_t> sizes;
  ReplyCollector collector;
  EventSink collect = collector.sink();
  const Request r = request(10, 2, 21);
  engine_
      ->submit(r,
               [&](Event&& event) {
                 {
                   const std::lock_guard lock(mutex);
                   sizes.push_back(event.tokens.size());
                 }
                 collect(std::move(event));
               })
      .value();
  EXPECT_EQ(collector.wait().tokens, serial_reply(r, 21));
  const std::lock_guard lock(mutex);
  EXPECT_EQ(sizes, (std::vector<size_t>{1, 5, 5, 5, 5}));
}

TEST_F(VerifyTest, DraftsAreCutToThePagesThereAre) {
  EngineOptions options = drafting(adversary(-1), 8);
  options.kv_memory_bytes = memory_of_pages(3, options);
  start(options);
  for (const int64_t num_tokens : {100, 140, 171}) {  // the longest fills all three pages
    const Request r = request(21, 2, num_tokens);
    EXPECT_EQ(ask(r).tokens, serial_reply(r, num_tokens));
  }
  EXPECT_EQ(engine_->stats().preemptions, 0) << "a draft took a page that was not there";
  EXPECT_GT(engine_->stats().draft_rounds, 50);
}

// The second request guesses into the last free page long before it needs it. The first needs it sooner, and
// has ended by the time the second does: held for guesses, the page would cost a preemption.
TEST_F(VerifyTest, NoPageIsHeldForGuesses) {
  for (const bool is_drafted : {false, true}) {
    EngineOptions options = is_drafted ? drafting(adversary(0), 8) : EngineOptions();
    options.kv_memory_bytes = memory_of_pages(3, options);
    hold_passes();
    start(options);
    Request first = request(50, 2, 19);
    const Request second = request(44, 4, 50);
    first.draft = false;  // or it would have taken the page in time
    ReplyCollector a, b;
    submit(first, a);
    submit(second, b);
    release_passes();
    EXPECT_EQ(a.wait().tokens, serial_reply(first, 19));
    EXPECT_EQ(b.wait().tokens, serial_reply(second, 50));
    EXPECT_EQ(engine_->stats().preemptions, 0) << "drafted " << is_drafted;
  }
}

TEST_F(VerifyTest, CancellingBetweenAnyPassesLeavesEveryoneElseAlone) {
  const Request cancelled = request(50, 3, 60), other = request(40, 5, 60);
  for (int64_t at = 0; at < 20; ++at) {
    RequestId id = 0;
    control_.num_passes = 0;
    hold_passes();
    in_pass_ = [&](const Pass&) {
      if (control_.num_passes == at) engine_->cancel(id);
    };
    start(drafting(adversary(-1), 6));
    ReplyCollector first, second;
    id = submit(cancelled, first);
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
}

// Passes that commit accepted rows are counted too, and can fail as others do.
TEST_F(VerifyTest, AFailedPassOrCommitFailsItsRequestsAndTheEngineGoesOn) {
  int num_failed = 0;
  for (int64_t at = 0; at < 14; ++at) {
    control_.num_passes = 0;
    control_.end_pass = [at](int64_t pass_idx) {
      return pass_idx == at ? make_error(StatusCode::kInternal, "device fault in pass {}", at) : Status();
    };
    start(drafting(adversary(-1), 3));
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

TEST_F(VerifyTest, AnUndrawableRowInsideAnAcceptedRunFailsAfterTheTokensBeforeIt) {
  const Request r = request(13, 2, 40);
  for (int64_t pos = 13; pos < 25; ++pos) {
    control_.nan_pos = pos;
    start(drafting(make_tape, 6));
    const CollectedReply reply = ask(r);
    EXPECT_EQ(reply.finish, FinishReason::kError);
    EXPECT_EQ(reply.tokens, serial_reply(r, pos - 12));
    EXPECT_EQ(reply.status.message(),
              fmt::format("request 1: the model produced NaN logits at position {}", pos));
  }
}

TEST_F(VerifyTest, DraftMaxOutOfRangeIsNamed) {
  model_ = make_fake_model(control_);
  EngineOptions options;
  options.draft_max = 0;
  EXPECT_EQ(Engine::create(model_, options).status().message(), "draft_max is 0, expected 1 to 64");
  options.draft_max = 65;
  EXPECT_EQ(Engine::create(model_, options).status().message(), "draft_max is 65, expected 1 to 64");
}

TEST_F(VerifyTest, LookupIsTheDrafterWhereNoOtherIsGiven) {
  EngineOptions options;
  options.draft = DraftMode::kLookup;
  start(options);
  const Request r = request(30, 2, 80);
  const CollectedReply reply = ask(r);
  EXPECT_EQ(reply.tokens, serial_reply(r, 80));
  EXPECT_EQ(reply.usage.speculative.drafter, "lookup");
  EXPECT_EQ(reply.usage.speculative.search.searches, 79 - reply.usage.speculative.passes_avoided - 1);
}

}  // namespace
}  // namespace tensorfold
