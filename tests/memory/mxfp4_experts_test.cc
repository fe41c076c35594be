// MXFP4 experts from file to kernel: GPT-OSS as transformers writes it and what mlx-lm made of the same file
// load as the same bytes, and those are the numbers of the checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "formats/hf_config.h"
#include "memory/weight_table.h"
#include "memory/weights.h"
#include "ops/ops.h"
#include "ops/reference/packed_matrix.h"
#include "tests/support/test_paths.h"

namespace tensorfold {
namespace {

/// Of the fixtures gpt_oss/*mxfp4*.
constexpr int kNumLayers = 4;
constexpr int64_t kNumExperts = 6, kHiddenSize = 64, kIntermediateSize = 64;

/// The experts and routers of a fixture, packed for the cpu backend.
struct LoadedExperts {
  explicit LoadedExperts(const std::string& name) {
    const std::string folder = std::string(kSourceDir) + "/tests/golden/models/gpt_oss/" + name;
    Result<HfConfig> config = read_hf_config(folder);
    TF_CHECK(config.ok(), config.status().message());
    checkpoint = std::make_unique<Checkpoint>(std::move(Checkpoint::open(folder)).value());
    WeightTable table("gpt_oss", *checkpoint, config->quantization);
    for (int layer = 0; layer < kNumLayers; ++layer) {
      const std::string mlp = "layers." + std::to_string(layer) + ".mlp";
      experts.push_back(table.experts(layer, {.module = mlp,
                                              .num_experts = kNumExperts,
                                              .hidden_size = kHiddenSize,
                                              .intermediate_size = kIntermediateSize,
                                              .has_bias = true,
                                              .is_interleaved = true,
                                              .num_experts_per_tok = 1}));
      routers.push_back(table.linear(layer, {mlp + ".router", kNumExperts, kHiddenSize, true}));
    }
    TF_CHECK(table.status().ok(), table.status().message());
    ops = std::move(make_cpu_ops(1)).value();
    weights = std::move(Weights::load(*checkpoint, table.manifest(), *ops, cpu_device(), {.num_threads = 2}))
                  .value();
  }

  ExpertsWeight layer(int i) const { return weights->layer(i)[experts[static_cast<size_t>(i)]]; }

  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Weights> weights;
  std::vector<ExpertsId> experts;
  std::vector<LinearId> routers;
};

std::vector<std::byte> packed_bytes(const LoadedExperts& loaded, const LinearWeight& weight) {
  return {weight.data, weight.data + loaded.ops->packed_bytes(weight.spec)};
}

std::vector<float> bias(const LinearWeight& weight) { return {weight.bias, weight.bias + weight.spec.out}; }

TEST(Mxfp4Experts, PublishedBlocksAndMlxWordsLoadAsTheSameBytes) {
  const LoadedExperts published("mxfp4");
  for (const char* name : {"mlx_mxfp4_4bit", "mlx_mxfp4_8bit"}) {
    const LoadedExperts mlx(name);
    for (int i = 0; i < kNumLayers; ++i) {
      const ExpertsWeight a = published.layer(i), b = mlx.layer(i);
      for (const auto& [left, right] :
           {std::pair(a.gate_proj, b.gate_proj), {a.up_proj, b.up_proj}, {a.down_proj, b.down_proj}}) {
        for (size_t e = 0; e < kNumExperts; ++e) {
          EXPECT_EQ(left[e].spec.format, WeightFormat::kMxfp4);
          EXPECT_EQ(left[e].spec, right[e].spec);
          EXPECT_EQ(packed_bytes(published, left[e]), packed_bytes(mlx, right[e])) << name << ", layer " << i;
          EXPECT_EQ(bias(left[e]), bias(right[e])) << name << ", layer " << i;
        }
      }
      EXPECT_NE(packed_bytes(published, a.gate_proj[0]), packed_bytes(published, a.up_proj[0]));
    }
  }
}

// Its entry has sizes and no mode, under a section whose mode is mxfp4.
TEST(Mxfp4Experts, ARouterBesideThemIsAffine) {
  for (const char* name : {"mlx_mxfp4_4bit", "mlx_mxfp4_8bit"}) {
    const LoadedExperts mlx(name);
    const LinearSpec expected = {kNumExperts, kHiddenSize, WeightFormat::kAffine, DType::kBF16, 8, 64};
    EXPECT_EQ(mlx.weights->layer(2)[mlx.routers[2]].spec, expected);
  }
}

std::vector<uint8_t> tensor_bytes(const Checkpoint& checkpoint, const std::string& name) {
  const TensorInfo* tensor = checkpoint.find(name);
  TF_CHECK(tensor != nullptr, name);
  std::vector<uint8_t> bytes(static_cast<size_t>(tensor->bytes));
  TF_CHECK(checkpoint.read(name, std::as_writable_bytes(std::span(bytes))).ok(), name);
  return bytes;
}

/// Element [row, column] of a stack of rows of blocks, by the format's description.
double element(const std::vector<uint8_t>& blocks, const std::vector<uint8_t>& scales, int64_t row,
               int64_t column, int64_t in) {
  constexpr double kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const int64_t place = row * in + column;
  const int code = blocks[static_cast<size_t>(place / 2)] >> (place % 2 * 4) & 15;
  const double scale = std::ldexp(1.0, scales[static_cast<size_t>(place / 32)] - 127);
  return (code & 8 ? -1 : 1) * kMagnitudes[code & 7] * scale;
}

TEST(Mxfp4Experts, GateAndUpTakeTurnsInThePublishedRows) {
  const LoadedExperts published("mxfp4");
  const std::string prefix = "model.layers.3.mlp.experts.";
  const auto read = [&](const char* name) { return tensor_bytes(*published.checkpoint, prefix + name); };
  const auto both_blocks = read("gate_up_proj_blocks"), both_scales = read("gate_up_proj_scales");
  const auto down_blocks = read("down_proj_blocks"), down_scales = read("down_proj_scales");
  const ExpertsWeight experts = published.layer(3);
  const auto value = [](const LinearWeight& weight, int64_t row, int64_t column) {
    const reference::PackedMatrix packed(weight.spec, weight.data);
    return static_cast<double>(packed.unscaled(row, column)) * packed.scale(row, column / 32);
  };
  int num_nonzero = 0;
  for (int64_t e = 0; e < kNumExperts; ++e) {
    const auto expert = static_cast<size_t>(e);
    for (int64_t row = 0; row < 64; ++row) {
      for (int64_t column = 0; column < 64; ++column) {
        const int64_t gate_row = e * 128 + 2 * row;
        const double gate = element(both_blocks, both_scales, gate_row, column, kHiddenSize);
        ASSERT_EQ(value(experts.gate_proj[expert], row, column), gate) << e << ' ' << row << ' ' << column;
        ASSERT_EQ(value(experts.up_proj[expert], row, column),
                  element(both_blocks, both_scales, gate_row + 1, column, kHiddenSize));
        ASSERT_EQ(value(experts.down_proj[expert], row, column),
                  element(down_blocks, down_scales, e * 64 + row, column, kIntermediateSize));
        num_nonzero += gate != 0;
      }
    }
  }
  EXPECT_GT(num_nonzero, 10000);
}

}  // namespace
}  // namespace tensorfold
