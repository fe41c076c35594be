// The families against Hugging Face transformers, on the tiny checkpoints of tests/golden/models
// (tools/fixtures/transformers_fixture.py): testing.md, oracle 3.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/models/golden_fixture.h"

namespace tensorfold {
namespace {

class TransformersFixture : public GoldenFixture {
 protected:
  int64_t context_tokens() const { return read_i32(*file_, "context").at(0); }
};

TEST_P(TransformersFixture, InF32LogitsAgreeToOneTenThousandthOfTheirSpread) {
  load({.compute_f32 = true, .context_tokens = context_tokens()});
  expect_agreement(run_prompt());
}

TEST_P(TransformersFixture, InF32GreedyTextIsTheSame) {
  const std::vector<int32_t> greedy = read_i32(*file_, "greedy");
  const auto num_tokens = static_cast<int64_t>(greedy.size());
  load({.compute_f32 = true, .context_tokens = context_tokens()}, num_tokens);
  const Result<std::vector<int32_t>> tokens = greedy_tokens(*runner_, expected_.input_ids, num_tokens);
  ASSERT_TRUE(tokens.ok()) << tokens.status().message();
  EXPECT_EQ(*tokens, greedy);
}

TEST_P(TransformersFixture, InBf16LogitsAreNoFurtherFromF32ThanTheReferencesOwnBf16) {
  load({.context_tokens = context_tokens()});
  expect_no_further(run_prompt(), read_f32(*file_, "bf16_rms").at(0));
}

INSTANTIATE_TEST_SUITE_P(
    Golden, TransformersFixture,
    testing::Values("gemma3/untied_softcap_f32", "gemma3/windowed", "gemma3/wrapper",
                    "gemma3/wrapper_modules", "glm4_moe/grouped_qk_norm", "glm4_moe/mtp",
                    "glm4_moe/tied_stacked_f32", "gpt_oss/all_experts_f32", "gpt_oss/mxfp4",
                    "gpt_oss/windowed", "llama/tied", "llama/llama3_biases", "llama/yarn_f16_sharded",
                    "llama/linear_f32", "llama/dynamic", "llama/longrope", "llama/longrope_short",
                    "nemotron_h/all_kinds", "nemotron_h/latent_clamped_f32", "nemotron_h/mtp",
                    "qwen2/sliding", "qwen2/tied_sharded", "qwen3/tied", "qwen3/yarn_mixed_window",
                    "qwen3_5/tied", "qwen3_5/wrapper_mtp", "qwen3_5/yarn_f32", "qwen3_5_moe/per_expert",
                    "qwen3_5_moe/wrapper_mtp", "qwen3_moe/normalized", "qwen3_moe/sparse_step",
                    "qwen3_next/mixed", "qwen3_next/stacked_tied_f32"),
    GoldenFixture::kName);

}  // namespace
}  // namespace tensorfold
