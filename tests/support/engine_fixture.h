// The engine on the fake model, as its tests share it: requests, the replies that they must get, and passes
// that wait until the company is complete.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <latch>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "engine/sampler.h"
#include "tests/support/fake_model.h"
#include "tests/support/reply_collector.h"

namespace tensorfold {

/// Bytes of one page of the fake model, two layers with keys and values of 64 words, and of its state.
inline constexpr int64_t kFakePageBytes = 2 * 2 * 512;
inline constexpr int64_t kFakeSlotBytes = 64;

/// The limit that leaves this many pages beside the states of all sequences.
inline int64_t memory_of_pages(int64_t num_pages, const EngineOptions& options) {
  return num_pages * kFakePageBytes + options.max_sequences * kFakeSlotBytes;
}

/// What the fake model replies, whoever drafts.
inline std::vector<int32_t> serial_reply(const Request& r, int64_t num_tokens) {
  const uint64_t seed = r.sampling.seed ? *r.sampling.seed : default_seed(r.prompt);
  return fake_reply(r.prompt, num_tokens, sample_row(r.sampling, seed, 0));
}

/// Tokens of a reply that a drafter of a test knows.
inline constexpr int64_t kTapeTokens = 400;

class EngineFixture : public testing::Test {
 protected:
  EngineFixture() {
    control_.before_pass = [this](const Pass& pass) {
      if (gate_ != nullptr) gate_->wait();
      if (in_pass_) in_pass_(pass);
    };
  }
  ~EngineFixture() override {
    engine_.reset();
    model_.reset();
    EXPECT_EQ(control_.num_faults, 0) << "a row saw a wrong page, position or state";
    EXPECT_EQ(control_.device.num_live, 0) << "device memory leaked";
  }

  /// Drafts of `factory`, as many as it proposes.
  static EngineOptions drafting(DrafterFactory factory, int64_t draft_max = 8) {
    EngineOptions options;
    options.draft = DraftMode::kLookup;
    options.draft_max = draft_max;
    options.make_drafter = std::move(factory);
    return options;
  }

  /// An engine of model_, which is made where there is none.
  void start(const EngineOptions& options) {
    engine_.reset();
    if (model_ == nullptr) model_ = make_fake_model(control_);
    Result<std::unique_ptr<Engine>> engine = Engine::create(model_, options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(engine).value();
  }

  /// Keeps passes from running until release_passes(), so that what was submitted before is company for
  /// certain. While the engine is idle.
  void hold_passes() { gate_ = std::make_unique<std::latch>(1); }
  void release_passes() { gate_->count_down(); }

  RequestId submit(const Request& request, ReplyCollector& collector) {
    Result<RequestId> id = engine_->submit(request, collector.sink());
    EXPECT_TRUE(id.ok()) << id.status().message();
    return id.ok() ? *id : 0;
  }

  CollectedReply ask(const Request& request) {
    ReplyCollector collector;
    submit(request, collector);
    return collector.wait();
  }

  /// Greedy where the seed is even.
  static Request request(int64_t num_prompt_tokens, uint64_t prompt_seed, int64_t max_tokens) {
    Request r;
    r.prompt = fake_prompt(num_prompt_tokens, prompt_seed);
    r.max_tokens = max_tokens;
    r.sampling.temperature = prompt_seed % 2 == 0 ? 0.0f : 1.0f;
    return r;
  }

  FakeModelControl control_;
  std::unique_ptr<std::latch> gate_;
  std::function<void(const Pass&)> in_pass_;  ///< Of each pass, once it may run; may be empty.
  std::shared_ptr<LoadedModel> model_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace tensorfold
