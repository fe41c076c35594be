// A small model as drafter, on toy checkpoints whose embeddings have rows beyond the tokenizer (padding). The
// rows that two toys of one seed share have the same values, so the small model is the large one but for
// padding, and right each time it sees the same tokens.
#include <gtest/gtest.h>

#include "base/hash.h"
#include "engine/engine.h"
#include "tests/support/reply_collector.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/toy_model.h"

namespace tensorfold {
namespace {

/// A target and its drafter, of these vocabularies.
class PaddedDrafts {
 public:
  PaddedDrafts(int64_t target_tokens, int64_t small_tokens) {
    EXPECT_TRUE(write_toy_model({.vocab_size = target_tokens}, target_.path()).ok());
    EXPECT_TRUE(write_toy_model({.vocab_size = small_tokens}, small_.path()).ok());
    auto loaded = load_model(target_.path(), {.num_threads = 1, .draft_folder = small_.path()});
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    if (loaded.ok()) model_ = std::move(*loaded);
  }

  CollectedReply ask(Request request, DraftMode mode) const {
    EngineOptions options;
    options.draft = mode;
    options.draft_confidence = 0;
    options.draft_max = 4;
    const auto engine = Engine::create(model_, options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    ReplyCollector collector;
    EXPECT_TRUE((*engine)->submit(std::move(request), collector.sink()).ok());
    return collector.wait();
  }

 private:
  TemporaryFolder target_, small_;
  std::shared_ptr<LoadedModel> model_;
};

/// 40 tokens, every fourth of them one from first_padding to end.
Request padded_request(int64_t first_padding, int64_t end, float temperature) {
  Request request;
  for (int64_t i = 0; i < 40; ++i) {
    const auto word = static_cast<int64_t>(mix64(static_cast<uint64_t>(i)) >> 1);
    request.prompt.push_back(static_cast<int32_t>(i % 4 == 1 ? first_padding + word % (end - first_padding)
                                                             : word % (kToyVocabSize - 1)));
  }
  request.max_tokens = 40;
  request.ignore_eos = true;
  request.sampling.temperature = temperature;
  return request;
}

TEST(DraftModelOfAPaddedVocabulary, IsRightWhereAPromptHasPaddingThatBothModelsHave) {
  for (const auto& [target_tokens, small_tokens] : {std::pair<int64_t, int64_t>{320, 288}, {288, 320}}) {
    const PaddedDrafts drafts(target_tokens, small_tokens);
    for (const float temperature : {0.0f, 1.0f}) {
      const Request request = padded_request(kToyVocabSize, 288, temperature);
      const CollectedReply serial = drafts.ask(request, DraftMode::kOff);
      const CollectedReply drafted = drafts.ask(request, DraftMode::kModel);
      ASSERT_EQ(serial.tokens.size(), 40u);
      EXPECT_EQ(drafted.tokens, serial.tokens);
      const DraftUsage& usage = drafted.usage.speculative;
      EXPECT_GE(usage.drafted, 30);
      EXPECT_EQ(usage.accepted, usage.drafted) << target_tokens << " tokens and " << small_tokens;
      for (const int32_t token : drafted.tokens) EXPECT_LT(token, kToyVocabSize);
    }
  }
}

// It sees another token in their place, so some of its guesses are wrong, and no reply is.
TEST(DraftModelOfAPaddedVocabulary, GoesOnWhereAPromptHasPaddingThatItLacks) {
  const PaddedDrafts drafts(320, 288);
  int64_t num_wrong = 0;
  for (const float temperature : {0.0f, 1.0f}) {
    const Request request = padded_request(288, 320, temperature);
    const CollectedReply serial = drafts.ask(request, DraftMode::kOff);
    const CollectedReply drafted = drafts.ask(request, DraftMode::kModel);
    ASSERT_EQ(serial.tokens.size(), 40u);
    EXPECT_EQ(drafted.tokens, serial.tokens);
    EXPECT_EQ(drafted.finish, FinishReason::kLength);
    EXPECT_GT(drafted.usage.speculative.drafted, 30);
    num_wrong += drafted.usage.speculative.drafted - drafted.usage.speculative.accepted;
  }
  EXPECT_GT(num_wrong, 0) << "the prompts have no token that it lacks";
}

}  // namespace
}  // namespace tensorfold
