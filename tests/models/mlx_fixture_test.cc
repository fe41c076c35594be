// Packed checkpoints against mlx-lm, on the tiny MLX folders of tests/golden/models
// (tools/fixtures/mlx_fixture.py): testing.md, oracle 4. mlx-lm quantized, named and stacked what is read
// here.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/models/golden_fixture.h"
#include "tests/support/test_paths.h"

namespace tensorfold {
namespace {

class MlxFixture : public GoldenFixture {};
/// Those in bf16: mlx-lm runs an f16 checkpoint with f16 activations, three bits finer than ours.
class MlxBf16Fixture : public GoldenFixture {};

TEST_P(MlxFixture, InF32LogitsAgreeWithThoseOfTheDequantizedWeights) {
  load({.compute_f32 = true});
  expect_agreement(run_prompt());
}

TEST_P(MlxBf16Fixture, InBf16LogitsAreNoFurtherFromF32ThanMlxLmsOwnRun) {
  load({});
  ASSERT_EQ(model_->config.dtype, DType::kBF16);
  expect_no_further(run_prompt(), read_f32(*file_, "native_rms").at(0));
}

/// How many matrices have each format, by the manifest that loading uses.
std::map<std::string, int> formats_of(const std::string& folder) {
  const HfConfig config = read_hf_config(folder).value();
  const Checkpoint checkpoint = Checkpoint::open(folder).value();
  WeightTable table(config.model_type, checkpoint, config.quantization);
  EXPECT_TRUE(make_model({config, table, {}}).ok()) << table.status().message();
  std::map<std::string, int> formats;
  for (const LinearBinding& linear : table.manifest().linears) {
    const LinearSpec& spec = linear.spec;
    std::string format = to_string(spec);
    formats[format.substr(0, format.find(" ["))]++;
  }
  return formats;
}

TEST(MlxFormats, EveryMatrixIsReadInTheFormatThatMlxLmChose) {
  const std::string root = std::string(kSourceDir) + "/tests/golden/models/";
  using Formats = std::map<std::string, int>;
  EXPECT_EQ(formats_of(root + "llama/mlx_4bit"), (Formats{{"affine 4-bit g32 bf16", 1 + 2 * 7}}));
  // Only o_proj has an input that is a multiple of 32.
  EXPECT_EQ(formats_of(root + "llama/mlx_partly_packed"),
            (Formats{{"affine 4-bit g32 bf16", 3}, {"bf16", 2 + 3 * 6}}));
  // Inputs of 96 (o_proj, down_proj) are no multiples of 64.
  EXPECT_EQ(formats_of(root + "qwen3/mlx_8bit_f16"),
            (Formats{{"affine 8-bit g64 f16", 1 + 2 * 5}, {"f16", 2 * 2}}));
  EXPECT_EQ(formats_of(root + "gemma3/mlx_8bit"), (Formats{{"affine 8-bit g32 bf16", 1 + 3 * 7}}));
  // A dense layer and one of 6 experts, whose router mlx-lm leaves as it is.
  EXPECT_EQ(formats_of(root + "glm4_moe/mlx_4bit"),
            (Formats{{"affine 4-bit g32 bf16", 2 + 2 * 4 + 3 + 3 * 6 + 3}, {"bf16", 1}}));
  // Four layers of 6 experts; embedding, head and attention; routers, which mlx-lm gives 8 bits.
  EXPECT_EQ(
      formats_of(root + "gpt_oss/mlx_mxfp4_4bit"),
      (Formats{{"mxfp4", 4 * 3 * 6}, {"affine 4-bit g64 bf16", 2 + 4 * 4}, {"affine 8-bit g64 bf16", 4}}));
  // Embedding and head, Mamba-2, attention, latent projections, a shared expert and 5 others; the router
  // stays.
  EXPECT_EQ(formats_of(root + "nemotron_h/mlx_4bit"),
            (Formats{{"affine 4-bit g32 bf16", 2 + 2 + 4 + 2 + 2 + 2 * 5}, {"bf16", 1}}));
  // Embedding and head, a delta net of 7 (q, k and v apart), attention, two MLPs; inputs of 96 stay.
  EXPECT_EQ(formats_of(root + "qwen3_5/mlx_8bit"),
            (Formats{{"affine 8-bit g64 bf16", 2 + 7 + 4 + 2 * 2}, {"bf16", 2}}));
  // The same with 5 experts and a shared one in both layers; router and shared gate have 8 bits.
  EXPECT_EQ(formats_of(root + "qwen3_5_moe/mlx_4bit"),
            (Formats{{"affine 4-bit g32 bf16", 2 + 7 + 4 + 2 * 3 * 6}, {"affine 8-bit g64 bf16", 2 * 2}}));
  // Two delta nets, whose out_proj stays; attention; a dense layer and two of 5 experts and a shared one.
  EXPECT_EQ(formats_of(root + "qwen3_next/mlx_4bit"),
            (Formats{{"affine 4-bit g32 bf16", 2 + 2 * 6 + 4 + 3 + 2 * 3 * 6},
                     {"affine 8-bit g64 bf16", 2 * 2},
                     {"bf16", 2}}));
  // Of each format's entries in mlx_fixture.py: two MoE layers of 6 experts and a dense one.
  EXPECT_EQ(
      formats_of(root + "qwen3_moe/mlx_mixed"),
      (Formats{{"affine 8-bit g64 bf16", 2},                      // routers
               {"affine 3-bit g32 bf16", 3},                      // q_proj
               {"affine 6-bit g64 bf16", 3},                      // v_proj
               {"affine 5-bit g32 bf16", 1},                      // lm_head
               {"affine 2-bit g32 bf16", 2 * 6},                  // experts' up_proj
               {"affine 4-bit g32 bf16", 1 + 3 * 2 + 24 + 3}}));  // embedding; k, o; gate, down; dense MLP
}

INSTANTIATE_TEST_SUITE_P(Golden, MlxFixture,
                         testing::Values("gemma3/mlx_4bit", "gemma3/mlx_8bit", "glm4_moe/mlx_4bit",
                                         "glm4_moe/mlx_8bit", "gpt_oss/mlx_mxfp4_4bit",
                                         "gpt_oss/mlx_mxfp4_8bit", "llama/mlx_4bit",
                                         "llama/mlx_partly_packed", "nemotron_h/mlx_4bit",
                                         "nemotron_h/mlx_8bit", "qwen3/mlx_8bit_f16", "qwen3_5/mlx_4bit",
                                         "qwen3_5/mlx_8bit", "qwen3_5_moe/mlx_4bit", "qwen3_5_moe/mlx_8bit",
                                         "qwen3_moe/mlx_mixed", "qwen3_next/mlx_4bit", "qwen3_next/mlx_8bit"),
                         GoldenFixture::kName);
INSTANTIATE_TEST_SUITE_P(Golden, MlxBf16Fixture,
                         testing::Values("gemma3/mlx_4bit", "gemma3/mlx_8bit", "glm4_moe/mlx_4bit",
                                         "glm4_moe/mlx_8bit", "gpt_oss/mlx_mxfp4_4bit",
                                         "gpt_oss/mlx_mxfp4_8bit", "llama/mlx_4bit",
                                         "llama/mlx_partly_packed", "nemotron_h/mlx_4bit",
                                         "nemotron_h/mlx_8bit", "qwen3_5/mlx_4bit", "qwen3_5/mlx_8bit",
                                         "qwen3_5_moe/mlx_4bit", "qwen3_5_moe/mlx_8bit",
                                         "qwen3_moe/mlx_mixed", "qwen3_next/mlx_4bit", "qwen3_next/mlx_8bit"),
                         GoldenFixture::kName);

}  // namespace
}  // namespace tensorfold
