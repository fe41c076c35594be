// The engine on the fake model: replies whatever the company, limits, cancellation, faults and shutdown.
#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <latch>
#include <thread>

#include "engine/pass.h"
#include "engine/sampler.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/toy_model.h"

namespace tensorfold {
namespace {

using testing::HasSubstr;

using EngineTest = EngineFixture;

TEST_F(EngineTest, AReplyDependsOnItsOwnTokensWhateverTheOptionsAndTheCompany) {
  std::vector<EngineOptions> cases;
  for (const int64_t pass_tokens : {1, 7, 64, 512}) {
    for (const int64_t max_sequences : {1, 3, 16}) {
      EngineOptions options;
      options.pass_tokens = pass_tokens;
      options.max_sequences = max_sequences;
      cases.push_back(options);
      options.kv_memory_bytes = memory_of_pages(5, options);
      cases.push_back(options);
    }
  }
  int64_t num_preemptions = 0;
  for (const EngineOptions& options : cases) {
    hold_passes();
    start(options);
    std::vector<Request> requests;
    std::vector<ReplyCollector> collectors(20);
    for (uint64_t i = 0; i < 20; ++i) {
      const auto n = static_cast<int64_t>(i);
      requests.push_back(request(1 + n * 37 % 150, i, 1 + n * 29 % 150));
      submit(requests.back(), collectors[i]);
    }
    release_passes();
    for (uint64_t i = 0; i < 20; ++i) {
      const CollectedReply reply = collectors[i].wait();
      EXPECT_EQ(reply.tokens, serial_reply(requests[i], requests[i].max_tokens));
      EXPECT_EQ(reply.finish, FinishReason::kLength);
      EXPECT_EQ(reply.usage.prompt_tokens, std::ssize(requests[i].prompt));
      EXPECT_EQ(reply.usage.completion_tokens, requests[i].max_tokens);
    }
    const EngineStats stats = engine_->stats();
    EXPECT_EQ(stats.kv_pages_used, 0);
    EXPECT_EQ(stats.running + stats.queued, 0);
    num_preemptions += stats.preemptions;
    EXPECT_LE(control_.max_rows, std::max(options.pass_tokens, options.max_sequences));
    control_.max_rows = 0;
  }
  EXPECT_GT(num_preemptions, 20) << "the company was not dense enough";
}

TEST_F(EngineTest, StatisticsCountPromptsOnceAndEveryGeneratedToken) {
  EngineOptions options;
  options.kv_memory_bytes = memory_of_pages(4, options);
  hold_passes();
  start(options);
  ReplyCollector first, second;
  submit(request(100, 1, 60), first);
  submit(request(50, 2, 100), second);
  release_passes();
  first.wait();
  second.wait();
  const EngineStats stats = engine_->stats();
  EXPECT_GT(stats.preemptions, 0);
  EXPECT_EQ(stats.prompt_tokens, 150);
  EXPECT_EQ(stats.generated_tokens, 160);
  EXPECT_EQ(stats.kv_pages_total, 4);
  EXPECT_EQ(stats.passes, control_.num_passes);
}

TEST_F(EngineTest, TheSeedOfTheRequestCounts) {
  start({});
  Request r = request(10, 1, 20);
  EXPECT_EQ(ask(r).tokens, serial_reply(r, 20));
  const std::vector<int32_t> by_default = ask(r).tokens;
  r.sampling.seed = 5;
  EXPECT_EQ(ask(r).tokens, serial_reply(r, 20));
  EXPECT_NE(ask(r).tokens, by_default);
  r.sampling.seed = default_seed(r.prompt);
  EXPECT_EQ(ask(r).tokens, by_default);
}

TEST_F(EngineTest, AnEndOfSequenceTokenEndsTheReplyAndIsCounted) {
  start({});
  const Request r = request(10, 4, 20);
  const std::vector<int32_t> whole = ask(r).tokens;
  const int32_t eos = whole[7];
  const auto end = std::find(whole.begin(), whole.end(), eos) + 1;
  engine_.reset();
  model_->generation.eos_token_ids = {eos, kFakeVocabSize + 5};
  engine_ = Engine::create(model_, {}).value();

  const CollectedReply reply = ask(r);
  EXPECT_EQ(reply.tokens, std::vector<int32_t>(whole.begin(), end));
  EXPECT_EQ(reply.finish, FinishReason::kStop);
  EXPECT_EQ(reply.usage.completion_tokens, std::ssize(reply.tokens));
  Request ignoring = r;
  ignoring.ignore_eos = true;
  EXPECT_EQ(ask(ignoring).tokens, whole);
}

/// The text of tokens of the fake model under the toy tokenizer, where they are single bytes.
std::string bytes_of(std::span<const int32_t> tokens) {
  std::string text;
  for (const int32_t token : tokens) text += static_cast<char>(token);
  return text;
}

TEST_F(EngineTest, AStopStringEndsTheReplyBeforeIt) {
  start({});
  engine_.reset();
  model_->tokenizer = Tokenizer::parse(toy_tokenizer_json()).value();
  engine_ = Engine::create(model_, {}).value();
  Request r = request(10, 4, 40);
  const std::vector<int32_t> whole = serial_reply(r, 40);
  const std::string text = bytes_of(whole);
  EXPECT_EQ(ask(r).text, text);

  const std::string stop = text.substr(20, 3);
  const size_t start = text.find(stop);
  r.stop = {"never in it", stop};
  const CollectedReply reply = ask(r);
  EXPECT_EQ(reply.text, text.substr(0, start));
  EXPECT_EQ(reply.tokens, std::vector<int32_t>(whole.begin(), whole.begin() + static_cast<long>(start) + 3));
  EXPECT_EQ(reply.finish, FinishReason::kStop);
  EXPECT_EQ(reply.usage.completion_tokens, std::ssize(reply.tokens));

  // What was held back as a possible beginning is part of a reply that ends by length.
  r.stop = {text.substr(38, 2) + "more"};
  ASSERT_EQ(text.find(r.stop[0]), std::string::npos);
  EXPECT_EQ(ask(r).text, text);
}

TEST_F(EngineTest, TheTokenizersEndOfSequenceTokenEndsReplies) {
  start({});
  engine_.reset();
  model_->tokenizer = Tokenizer::parse(toy_tokenizer_json(), R"({"eos_token": "!"})").value();
  engine_ = Engine::create(model_, {}).value();
  const Request r = request(10, 4, 200);
  const std::vector<int32_t> whole = serial_reply(r, 200);
  const auto eos = std::find(whole.begin(), whole.end(), '!');
  ASSERT_NE(eos, whole.end());
  const CollectedReply reply = ask(r);
  EXPECT_EQ(reply.tokens, std::vector<int32_t>(whole.begin(), eos + 1));
  EXPECT_EQ(reply.text, bytes_of({whole.begin(), eos}));
  EXPECT_TRUE(reply.generated.back().is_end);
}

TEST_F(EngineTest, TokensThatTheTokenizerDoesNotKnowAreNeverDrawn) {
  constexpr int32_t kKnown = 30;
  start({});
  Request r = request(10, 4, 200);
  r.num_logprobs = 3;
  EXPECT_TRUE(std::ranges::any_of(ask(r).tokens, [](int32_t token) { return token >= kKnown; }));
  engine_.reset();
  std::string vocab;
  for (int i = 0; i < kKnown; ++i)
    vocab += fmt::format("{}\"{}\": {}", i == 0 ? "" : ", ", static_cast<char>('A' + i), i);
  std::ranges::replace(vocab, '\\', '~');
  model_->tokenizer =
      Tokenizer::parse(R"({"model": {"type": "BPE", "vocab": {)" + vocab + R"(}, "merges": []}})").value();
  engine_ = Engine::create(model_, {}).value();
  const CollectedReply reply = ask(r);
  EXPECT_EQ(reply.tokens.size(), 200u);
  for (const GeneratedToken& token : reply.generated) {
    EXPECT_LT(token.token, kKnown);
    for (const auto& top : token.top_logprobs) EXPECT_LT(top.token, kKnown);
  }
}

TEST_F(EngineTest, AReplyEndsWhereTheContextIsFull) {
  EngineOptions options;
  options.context_tokens = 70;
  start(options);
  const Request open = request(60, 2, -1);
  EXPECT_EQ(ask(open).tokens, serial_reply(open, 10));
  const CollectedReply reply = ask(request(69, 2, 500));
  EXPECT_EQ(reply.tokens.size(), 1u);
  EXPECT_EQ(reply.finish, FinishReason::kLength);
}

TEST_F(EngineTest, TheContextIsTheModelsOrWhatKvMemoryHolds) {
  start({});
  EXPECT_EQ(engine_->context_tokens(), kFakeMaxPositions);
  EngineOptions options;
  options.kv_memory_bytes = memory_of_pages(3, options);
  start(options);
  EXPECT_EQ(engine_->context_tokens(), 192);
  EXPECT_EQ(ask(request(191, 2, -1)).tokens.size(), 1u);
}

TEST_F(EngineTest, AContextThatKvMemoryCannotHoldIsRefusedAtTheStart) {
  EngineOptions options;
  options.context_tokens = 194;  // one more than three pages and the newest token
  options.kv_memory_bytes = memory_of_pages(3, options);
  const Status status = Engine::create(make_fake_model(control_), options).status();
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(status.message(),
            "a context of 194 tokens does not fit: KV memory holds 192 tokens; give it more, or ask for a "
            "context of "
            "192");
}

TEST_F(EngineTest, ZeroTokensAreAReply) {
  start({});
  const CollectedReply reply = ask(request(5, 2, 0));
  EXPECT_TRUE(reply.tokens.empty());
  EXPECT_EQ(reply.finish, FinishReason::kLength);
  EXPECT_EQ(reply.usage.prompt_tokens, 5);
  EXPECT_EQ(control_.num_passes, 0);
}

TEST_F(EngineTest, RefusalsNameTheValueAndTheLimit) {
  EngineOptions options;
  options.context_tokens = 193;
  options.kv_memory_bytes = memory_of_pages(3, options);
  start(options);
  const auto refusal = [&](const Request& r) {
    const Status status =
        engine_->submit(r, [](Event&&) { FAIL() << "a refused request got an event"; }).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_EQ(refusal(request(0, 1, 5)), "the prompt has no tokens");
  Request r = request(3, 1, 5);
  r.prompt[1] = 50;
  EXPECT_EQ(refusal(r), "prompt token 1 is 50, expected 0 to 49");
  r.prompt[1] = -1;
  EXPECT_EQ(refusal(r), "prompt token 1 is -1, expected 0 to 49");
  EXPECT_EQ(refusal(request(193, 1, 5)),
            "the prompt has 193 tokens, which leaves no room for a reply in a context of 193 tokens");
  EXPECT_EQ(refusal(request(194, 1, 0)),
            "the prompt has 194 tokens, which leaves no room for a reply in a context of 193 tokens");
  EXPECT_EQ(refusal(request(3, 1, -2)), "max_tokens is -2, expected 0 or more");
  r = request(3, 1, 5);
  r.num_logprobs = 21;
  EXPECT_EQ(refusal(r), "logprobs is 21, expected 0 to 20");
  r = request(3, 1, 5);
  r.sampling.top_p = 0;
  EXPECT_EQ(refusal(r), "top_p is 0, expected more than 0 and at most 1");
  r = request(3, 1, 5);
  r.stop = {"x"};
  EXPECT_EQ(refusal(r), "stop strings need a tokenizer; this model has none");

  // What just fits is not refused, and ends where it must.
  EXPECT_EQ(ask(request(100, 1, 94)).tokens.size(), 93u);
  EXPECT_EQ(ask(request(100, 1, -1)).tokens.size(), 93u);
}

TEST_F(EngineTest, OptionsOutOfRangeAreNamed) {
  model_ = make_fake_model(control_);
  const auto refusal = [&](auto change) {
    EngineOptions options;
    change(options);
    return Engine::create(model_, options).status().message();
  };
  EXPECT_EQ(refusal([](EngineOptions& o) { o.max_sequences = 0; }), "max_sequences is 0, expected 1 or more");
  EXPECT_EQ(refusal([](EngineOptions& o) { o.pass_tokens = -1; }), "pass_tokens is -1, expected 0 or more");
  EXPECT_EQ(refusal([](EngineOptions& o) { o.max_queued = -1; }), "max_queued is -1, expected 0 or more");
  EXPECT_EQ(refusal([](EngineOptions& o) { o.kv_memory_bytes = -1; }),
            "kv_memory_bytes is -1, expected 0 or more");
  EXPECT_EQ(refusal([](EngineOptions& o) { o.context_tokens = kFakeMaxPositions + 1; }),
            "context_tokens is 131073, the model was made for 131072 (max_position_embeddings)");
  EXPECT_EQ(refusal([](EngineOptions& o) { o.kv_memory_bytes = kFakePageBytes - 1; }),
            "KV memory of 2047 bytes is too little: a sequence takes 64 bytes of state and 2048 a page of 64 "
            "tokens");
}

TEST_F(EngineTest, AFullQueueRefusesUntilARequestHasEnded) {
  hold_passes();
  EngineOptions options;
  options.max_sequences = 1;
  options.max_queued = 2;
  options.draft = DraftMode::kLookup;
  options.session_tokens = 1000;
  start(options);
  std::vector<ReplyCollector> collectors(4);
  for (size_t i = 0; i < 3; ++i) submit(request(5, i, 3), collectors[i]);
  Request refused = request(5, 9, 3);
  refused.session = 1;
  const Status busy = engine_->submit(refused, collectors[3].sink()).status();
  EXPECT_EQ(engine_->stats().sessions, 0) << "nothing is kept of a refused request";
  EXPECT_EQ(busy.code(), StatusCode::kBusy);
  EXPECT_EQ(busy.message(), "3 requests are running or waiting, which is the limit");
  release_passes();
  collectors[0].wait();
  submit(request(5, 9, 3), collectors[3]);
  for (ReplyCollector& collector : collectors) EXPECT_EQ(collector.wait().tokens.size(), 3u);
}

TEST_F(EngineTest, CancellingAtAnyPassEndsTheRequestThereAndNoOther) {
  const Request cancelled = request(150, 3, 30), other = request(40, 5, 60);
  for (int64_t at = 0; at < 40; ++at) {
    RequestId id = 0;
    control_.num_passes = 0;
    hold_passes();
    in_pass_ = [&](const Pass&) {
      if (control_.num_passes == at) engine_->cancel(id);
    };
    EngineOptions options;
    options.pass_tokens = 32;
    start(options);
    ReplyCollector first, second;
    id = submit(cancelled, first);
    submit(other, second);
    release_passes();
    const CollectedReply reply = first.wait();
    const std::vector<int32_t> whole = serial_reply(cancelled, 30);
    ASSERT_LE(reply.tokens.size(), whole.size());
    EXPECT_TRUE(std::equal(reply.tokens.begin(), reply.tokens.end(), whole.begin()));
    EXPECT_EQ(reply.finish, reply.tokens.size() == 30 ? FinishReason::kLength : FinishReason::kCancelled);
    EXPECT_EQ(reply.usage.completion_tokens, std::ssize(reply.tokens));
    EXPECT_LE(std::ssize(reply.tokens), at + 1) << "a pass ran after the one that was cancelled";
    EXPECT_EQ(second.wait().tokens, serial_reply(other, 60));
    EXPECT_EQ(first.peek().num_events_after_finish, 0);
    EXPECT_EQ(engine_->stats().kv_pages_used, 0);
    in_pass_ = nullptr;  // the engine is idle
    EXPECT_EQ(ask(cancelled).tokens, whole) << "asked again";
    engine_.reset();
  }
}

TEST_F(EngineTest, AWaitingRequestCanBeCancelled) {
  hold_passes();
  EngineOptions options;
  options.max_sequences = 1;
  start(options);
  ReplyCollector first, second;
  submit(request(5, 1, 3), first);
  const RequestId waiting = submit(request(5, 2, 3), second);
  engine_->cancel(waiting);
  engine_->cancel(waiting);
  engine_->cancel(12345);
  release_passes();
  EXPECT_EQ(second.wait().finish, FinishReason::kCancelled);
  EXPECT_TRUE(second.peek().tokens.empty());
  EXPECT_EQ(first.wait().tokens.size(), 3u);
  engine_->cancel(waiting);
  EXPECT_EQ(ask(request(5, 3, 3)).tokens.size(), 3u);
  EXPECT_EQ(second.peek().num_events_after_finish, 0);
}

TEST_F(EngineTest, ASinkMayCancelItsRequest) {
  start({});
  ReplyCollector collector;
  std::atomic<RequestId> id{0};
  std::latch known(1);
  EventSink collect = collector.sink();
  const Result<RequestId> submitted = engine_->submit(request(5, 2, 1000), [&](Event&& event) {
    known.wait();
    if (!event.finish) engine_->cancel(id);
    collect(std::move(event));
  });
  id = submitted.value();
  known.count_down();
  EXPECT_EQ(collector.wait().finish, FinishReason::kCancelled);
  EXPECT_EQ(collector.peek().tokens.size(), 1u);
}

TEST_F(EngineTest, ANaNLogitFailsItsRequestByNameAndNoOther) {
  start({});
  std::vector<ReplyCollector> good(2);
  ReplyCollector bad;
  submit(request(30, 1, 20), good[0]);
  Request poisoned = request(13, 2, 20);
  poisoned.prompt[12] = kFakeNanToken;
  const RequestId id = submit(poisoned, bad);
  submit(request(40, 3, 20), good[1]);
  const CollectedReply reply = bad.wait();
  EXPECT_EQ(reply.finish, FinishReason::kError);
  EXPECT_EQ(reply.status.code(), StatusCode::kInternal);
  EXPECT_EQ(reply.status.message(),
            fmt::format("request {}: the model produced NaN logits at position 12", id));
  EXPECT_TRUE(reply.tokens.empty());
  EXPECT_EQ(good[0].wait().tokens, serial_reply(request(30, 1, 20), 20));
  EXPECT_EQ(good[1].wait().tokens, serial_reply(request(40, 3, 20), 20));
}

TEST_F(EngineTest, LogitsWithoutAFiniteOneFailTheirRequest) {
  start({});
  Request poisoned = request(3, 2, 20);
  poisoned.prompt[2] = kFakeInfiniteToken;
  EXPECT_EQ(ask(poisoned).status.message(), "request 1: the model produced no finite logit at position 2");
}

TEST_F(EngineTest, AFailedPassFailsItsRequestsAndTheEngineGoesOn) {
  for (int64_t at = 0; at < 8; ++at) {
    control_.num_passes = 0;
    control_.end_pass = [&](int64_t pass_idx) {
      return pass_idx == at ? make_error(StatusCode::kInternal, "device fault in pass {}", at) : Status();
    };
    EngineOptions options;
    options.max_sequences = 2;
    options.pass_tokens = 16;
    start(options);
    std::vector<ReplyCollector> collectors(3);
    for (size_t i = 0; i < 3; ++i) submit(request(40, i, 6), collectors[i]);
    int num_failed = 0;
    for (size_t i = 0; i < 3; ++i) {
      const CollectedReply reply = collectors[i].wait();
      const std::vector<int32_t> whole = serial_reply(request(40, i, 6), 6);
      if (reply.finish != FinishReason::kError) {
        EXPECT_EQ(reply.tokens, whole);
        continue;
      }
      ++num_failed;
      EXPECT_EQ(reply.status.message(), fmt::format("request {}: device fault in pass {}", i + 1, at));
      EXPECT_TRUE(std::equal(reply.tokens.begin(), reply.tokens.end(), whole.begin()));
      EXPECT_LT(reply.tokens.size(), whole.size());
    }
    EXPECT_GE(num_failed, 1);
    EXPECT_LE(num_failed, 2);
    EXPECT_EQ(engine_->stats().kv_pages_used, 0);
    EXPECT_EQ(ask(request(40, 7, 6)).tokens, serial_reply(request(40, 7, 6), 6));
    engine_.reset();
  }
}

TEST_F(EngineTest, APageThatCannotBeClearedFailsWhoRunsAndTheEngineGoesOn) {
  start({});
  control_.device.fail_zero = true;
  const CollectedReply reply = ask(request(5, 1, 3));
  EXPECT_EQ(reply.finish, FinishReason::kError);
  EXPECT_EQ(reply.status.message(), "request 1: clearing a page failed on purpose");
  control_.device.fail_zero = false;
  EXPECT_EQ(ask(request(5, 1, 3)).tokens, serial_reply(request(5, 1, 3), 3));
}

TEST_F(EngineTest, AnyRefusedAllocationFailsTheStartCleanly) {
  int num_refused = 0;
  for (int at = 1;; ++at) {
    model_ = make_fake_model(control_);
    control_.device.num_allocations = 0;
    control_.device.refuse_allocation_at = at;
    const int live = control_.device.num_live;
    const Result<std::unique_ptr<Engine>> engine = Engine::create(model_, {});
    if (engine.ok()) break;
    ++num_refused;
    EXPECT_EQ(engine.status().code(), StatusCode::kOutOfMemory);
    EXPECT_THAT(engine.status().message(), HasSubstr("refused on purpose"));
    EXPECT_EQ(control_.device.num_live, live);
  }
  EXPECT_EQ(num_refused, 4) << "KV memory, recurrent states, scratch, logits";
}

TEST_F(EngineTest, DestroyingTheEngineCancelsEverything) {
  EngineOptions options;
  options.max_sequences = 3;
  for (int round = 0; round < 10; ++round) {
    start(options);
    std::vector<ReplyCollector> collectors(12);
    for (size_t i = 0; i < 12; ++i) submit(request(100, i, -1), collectors[i]);  // each 131,000 passes
    if (round % 2 == 1) collectors[0].wait_for_tokens(static_cast<size_t>(round));
    engine_.reset();
    for (ReplyCollector& collector : collectors) {
      EXPECT_EQ(collector.peek().finish, FinishReason::kCancelled);
      EXPECT_EQ(collector.peek().num_events_after_finish, 0);
    }
  }
}

TEST_F(EngineTest, LogprobsAreThoseOfTheRowThatDrewTheToken) {
  start({});
  Request r = request(10, 2, 5);
  r.num_logprobs = 3;
  const CollectedReply reply = ask(r);
  std::vector<int32_t> tokens = r.prompt;
  ASSERT_EQ(reply.generated.size(), 5u);
  for (const GeneratedToken& generated : reply.generated) {
    const TokenLogprobs logprobs = token_logprobs(fake_logits(tokens), generated.token, 3);
    EXPECT_EQ(generated.logprob, logprobs.chosen);
    ASSERT_EQ(generated.top_logprobs.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(generated.top_logprobs[i].token, logprobs.top[i].token);
      EXPECT_EQ(generated.top_logprobs[i].logprob, logprobs.top[i].logprob);
    }
    EXPECT_EQ(generated.top_logprobs[0].token, generated.token) << "greedy";
    tokens.push_back(generated.token);
  }
  r.num_logprobs = -1;
  EXPECT_EQ(ask(r).tokens, reply.tokens);
  EXPECT_TRUE(ask(r).generated[0].top_logprobs.empty());
}

TEST_F(EngineTest, TheObserverSeesEveryTokenOnceWithItsLogits) {
  struct Observer : PassObserver {
    void on_token(RequestId id, int64_t pos, int32_t token, std::span<const float> logits) override {
      seen[id].push_back({pos, token, {logits.begin(), logits.end()}});
    }
    struct Row {
      int64_t pos;
      int32_t token;
      std::vector<float> logits;
    };
    std::map<RequestId, std::vector<Row>> seen;
  } observer;
  EngineOptions options;
  options.observer = &observer;
  options.kv_memory_bytes = memory_of_pages(4, options);
  hold_passes();
  start(options);
  std::vector<Request> requests = {request(60, 1, 100), request(61, 2, 100)};
  std::vector<ReplyCollector> collectors(2);
  for (size_t i = 0; i < 2; ++i) submit(requests[i], collectors[i]);
  release_passes();
  for (ReplyCollector& collector : collectors) collector.wait();
  EXPECT_GT(engine_->stats().preemptions, 0);
  engine_.reset();
  for (size_t i = 0; i < 2; ++i) {
    std::vector<int32_t> tokens = requests[i].prompt;
    ASSERT_EQ(observer.seen[i + 1].size(), 100u);
    for (const Observer::Row& row : observer.seen[i + 1]) {
      EXPECT_EQ(row.pos, std::ssize(tokens));
      EXPECT_EQ(row.logits, fake_logits(tokens));
      tokens.push_back(row.token);
    }
  }
}

TEST_F(EngineTest, SettingsThatTheSamplerLacksAreNamedOnceInTheLog) {
  model_ = make_fake_model(control_);
  model_->generation.ignored = {"repetition_penalty = 1.1", "typical_p = 0.9"};
  testing::internal::CaptureStderr();
  engine_ = Engine::create(model_, {}).value();
  ask(request(5, 1, 3));
  ask(request(5, 1, 3));
  const std::string log = testing::internal::GetCapturedStderr();
  const std::string line = "fake: generation_config.json asks for repetition_penalty = 1.1, typical_p = 0.9";
  EXPECT_THAT(log, HasSubstr(line));
  EXPECT_EQ(log.find(line), log.rfind(line));
}

TEST_F(EngineTest, ManyThreadsMaySubmitCancelAndLook) {
  EngineOptions options;
  options.kv_memory_bytes = memory_of_pages(8, options);
  options.max_sequences = 4;
  start(options);
  std::vector<std::thread> threads;
  for (uint64_t thread_idx = 0; thread_idx < 4; ++thread_idx) {
    threads.emplace_back([&, thread_idx] {
      for (uint64_t i = 0; i < 25; ++i) {
        const Request r = request(static_cast<int64_t>(1 + i * 13 % 100), thread_idx * 100 + i, 20);
        ReplyCollector collector;
        const RequestId id = submit(r, collector);
        if (i % 3 == 0) engine_->cancel(id);
        EXPECT_GE(engine_->stats().kv_pages_total, engine_->stats().kv_pages_used);
        const CollectedReply reply = collector.wait();
        const std::vector<int32_t> whole = serial_reply(r, 20);
        EXPECT_TRUE(std::equal(reply.tokens.begin(), reply.tokens.end(), whole.begin()));
        EXPECT_TRUE(i % 3 == 0 || reply.tokens.size() == 20);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tensorfold
