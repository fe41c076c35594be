// Real weights: SmolLM2-135M-Instruct as tools/smollm2_to_mlx.py writes it, against what mlx-lm computes with
// the same weights in fp32 (tools/fixtures/smollm2_fixture.py). Skipped by name where the folder is missing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "engine/evaluate.h"
#include "engine/loaded_model.h"
#include "formats/file.h"
#include "tests/support/test_model.h"
#include "tests/support/test_paths.h"

namespace tensorfold {
namespace {

const std::string kGolden = std::string(kSourceDir) + "/tests/golden/models/smollm2";

class SmolLm2 : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(TENSORFOLD_SMOLLM2 "/config.json"))
      GTEST_SKIP() << "no SmolLM2-135M-Instruct at " << TENSORFOLD_SMOLLM2
                   << " (tools/smollm2_to_mlx.py writes it)";
    expected_ =
        std::make_unique<Checkpoint>(Checkpoint::open_file(kGolden + "/expected.safetensors").value());
  }

  std::shared_ptr<LoadedModel> load(bool compute_f32) {
    auto loaded = load_model(TENSORFOLD_SMOLLM2, {.compute_f32 = compute_f32});
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    return loaded.ok() ? *loaded : nullptr;
  }

  double expected_nll() const {
    double sum = 0;
    const std::vector<float> nll = read_f32(*expected_, "nll");
    for (float x : nll) sum += x;
    return sum / static_cast<double>(nll.size());
  }

  std::unique_ptr<Checkpoint> expected_;
};

TEST_F(SmolLm2, TextAndChatAreEncodedAsByTransformers) {
  const auto model = load(false);
  const std::string text = read_text_file(posix_file_system(), kGolden + "/text.txt", 1 << 20).value();
  EXPECT_EQ(model->tokenizer->encode(text, true), read_i32(*expected_, "text_ids"));
  ASSERT_NE(model->chat, nullptr);
  Json message = Json::object();
  message.set("role", "user");
  message.set("content", expected_->metadata().at("prompt"));
  const ChatTemplate::Input input = {.messages = Json::Array{message},
                                     .tools = {},
                                     .documents = {},
                                     .add_generation_prompt = true,
                                     .kwargs = {},
                                     .special_tokens = model->chat->special_tokens,
                                     .now = {}};
  const std::string prompt = model->chat->pick(false).render(input).value();
  EXPECT_EQ(model->tokenizer->encode(prompt, false), read_i32(*expected_, "prompt_ids"));
}

TEST_F(SmolLm2, PerplexityEqualsMlxLms) {
  const std::vector<int32_t> ids = read_i32(*expected_, "text_ids");
  for (bool compute_f32 : {true, false}) {
    const auto model = load(compute_f32);
    const Result<Evaluation> result = evaluate(*model, ids, {});
    ASSERT_TRUE(result.ok()) << result.status().message();
    const double ratio = std::exp(result->mean_nll - expected_nll());
    std::printf("%s: perplexity %.5f, mlx-lm's in fp32 %.5f (%+.5f %%)\n", compute_f32 ? "f32" : "bf16",
                result->perplexity, std::exp(expected_nll()), 100 * (ratio - 1));
    EXPECT_NEAR(ratio, 1.0, 1e-3);
  }
}

TEST_F(SmolLm2, GreedyReplyEqualsMlxLms) {
  const std::vector<int32_t> prompt = read_i32(*expected_, "prompt_ids"),
                             greedy = read_i32(*expected_, "greedy");
  const auto num_tokens = static_cast<int64_t>(greedy.size());
  for (bool compute_f32 : {true, false}) {
    const auto model = load(compute_f32);
    const auto limit = static_cast<int64_t>(prompt.size()) + num_tokens;
    const auto runner =
        SequenceRunner::create({*model->model, *model->ops, *model->weights}, {limit, limit}).value();
    const std::vector<int32_t> tokens = greedy_tokens(*runner, prompt, num_tokens).value();
    EXPECT_EQ(tokens, greedy);
    EXPECT_THAT(model->tokenizer->decode(tokens, true), testing::HasSubstr("Paris"));
  }
}

}  // namespace
}  // namespace tensorfold
