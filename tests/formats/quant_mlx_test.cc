// formats/quant_mlx.h against the vectors of specs/mlx-quantization.md §2 and §4, and against itself bit by
// bit.
#include "formats/quant_mlx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "tests/support/test_paths.h"

namespace tensorfold {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kAllBits[] = {2, 3, 4, 5, 6, 8};

std::vector<std::byte> pack(const std::vector<uint8_t>& values, int bits) {
  std::vector<std::byte> row(values.size() * bits / 8);
  pack_row(values, bits, row);
  return row;
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (std::byte byte : bytes) text += fmt::format("{:02x}", static_cast<int>(byte));
  return text;
}

TEST(QuantMlxTest, PacksTheVectorsOfTheSpecification) {
  const std::vector<uint8_t> kOctet{0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(hex(pack({0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3}, 2)), "e4e4e4e4");
  EXPECT_EQ(hex(pack(kOctet, 3)), "88c6fa");
  EXPECT_EQ(hex(pack(kOctet, 4)), "10325476");
  EXPECT_EQ(hex(pack({31, 0, 17, 5, 30, 9, 2, 21}, 5)), "1fc4e293a8");
  EXPECT_EQ(hex(pack(kOctet, 5)), "2088418a39");
  EXPECT_EQ(hex(pack({63, 0, 42, 21, 1, 2, 3, 4}, 6)), "3fa056813010");
  EXPECT_EQ(hex(pack({1, 2, 3, 250, 0, 0, 0, 0}, 8)), "010203fa00000000");
}

/// The rule itself, one bit at a time: bit k of value i is bit i*bits + k of the row.
uint32_t value_by_bits(std::span<const std::byte> row, int bits, int64_t i) {
  uint32_t value = 0;
  for (int k = 0; k < bits; ++k) {
    const int64_t bit = i * bits + k;
    value |= (static_cast<uint32_t>(row[bit / 8]) >> (bit % 8) & 1) << k;
  }
  return value;
}

TEST(QuantMlxTest, EveryReaderOfAPackedRowAgreesWithTheRule) {
  std::mt19937 random(7);
  for (int bits : kAllBits) {
    for (size_t size : {size_t{0}, size_t{32}, size_t{96}, size_t{576}}) {
      std::vector<std::byte> row(size * bits / 8);
      for (std::byte& byte : row) byte = static_cast<std::byte>(random());
      std::vector<uint8_t> values(size + 2, 0xee);  // One guard byte on each side.
      unpack_row(row, bits, std::span(values).subspan(1, size));
      EXPECT_EQ(values.front(), 0xee);
      EXPECT_EQ(values.back(), 0xee);
      values = {values.begin() + 1, values.end() - 1};
      for (size_t i = 0; i < size; ++i) {
        ASSERT_EQ(values[i], value_by_bits(row, bits, i)) << bits << " bits, value " << i;
        ASSERT_EQ(packed_value(row, bits, i), values[i]) << bits << " bits, value " << i;
      }
      EXPECT_EQ(hex(pack(values, bits)), hex(row)) << bits;
    }
  }
}

TensorInfo tensor(DType dtype, std::vector<int64_t> shape) {
  TensorInfo info;
  info.name = "t";
  info.dtype = dtype;
  info.shape = std::move(shape);
  return info;
}

/// describe_affine of a module made of three tensors.
Result<AffineTensor> describe(const TensorInfo& weight, const TensorInfo& scales, const TensorInfo* biases,
                              const ModuleQuantization& expected) {
  return describe_affine({.name = "m", .weight = &weight, .scales = &scales, .biases = biases}, expected);
}

/// A float tensor of a checkpoint.
std::vector<float> read_floats(const Checkpoint& checkpoint, const std::string& name) {
  const TensorInfo* info = checkpoint.find(name);
  if (info == nullptr || info->dtype != DType::kF32) return {};
  std::vector<float> values(info->num_elements());
  EXPECT_TRUE(checkpoint.read(name, std::as_writable_bytes(std::span(values))).ok());
  return values;
}

struct Quantized {
  std::vector<uint8_t> values;
  std::vector<float> scales;
  std::vector<float> biases;
};

Quantized quantize(const std::vector<float>& weights, int bits, int group_size) {
  Quantized q;
  q.values.resize(weights.size());
  q.scales.resize(weights.size() / group_size);
  q.biases.resize(weights.size() / group_size);
  quantize_row(weights, bits, group_size, {q.values, q.scales, q.biases});
  return q;
}

TEST(QuantMlxTest, QuantizesTheVectorsOfTheSpecification) {
  std::vector<float> weights(64);
  for (int i = 0; i < 32; ++i) weights[i] = (i - 20) / 16.0f;
  for (int i = 0; i < 32; ++i) weights[32 + i] = (i - 10) / 16.0f;
  const Quantized q = quantize(weights, 4, 32);
  EXPECT_EQ(hex(pack(q.values, 4)),
            "002122434465668788a9aacbccedeeff"
            "efdecdbcabaa99887766554433221100");
  EXPECT_THAT(q.scales, ElementsAre(0.125f, -0.13125f));
  EXPECT_THAT(q.biases, ElementsAre(-1.25f, 1.3125f));
}

// The golden file is MLX's own output (tools/fixtures/mlx_quantize.py), every width and group size.
TEST(QuantMlxTest, QuantizesAndPacksAsMlxDoes) {
  const auto golden =
      Checkpoint::open_file(std::string(kSourceDir) + "/tests/golden/formats/mlx_quantize.safetensors");
  ASSERT_TRUE(golden.ok()) << golden.status().message();
  const std::vector<float> weights = read_floats(*golden, "w");
  ASSERT_EQ(weights.size(), 512u);
  for (int bits : kAllBits) {
    for (int group_size : {32, 64, 128}) {
      const std::string name = fmt::format("{}.{}", bits, group_size);
      const TensorInfo* packed = golden->find(name + ".weight");
      const auto described =
          describe(*packed, *golden->find(name + ".scales"), golden->find(name + ".biases"),
                   {.group_size = group_size, .bits = bits});
      ASSERT_TRUE(described.ok()) << described.status().message();
      EXPECT_EQ(described->in, 256);
      std::vector<std::byte> expected(packed->bytes);
      ASSERT_TRUE(golden->read(packed->name, expected).ok());
      const Quantized q =
          quantize(weights, bits, group_size);  // Both rows at once: groups do not cross them.
      EXPECT_EQ(hex(pack(q.values, bits)), hex(expected)) << name;
      EXPECT_EQ(q.scales, read_floats(*golden, name + ".scales")) << name;
      EXPECT_EQ(q.biases, read_floats(*golden, name + ".biases")) << name;
    }
  }
}

/// Errors of one group that quantize_row has to keep small.
void check_group(std::span<const float> weights, std::span<const uint8_t> values, float scale, float bias) {
  const auto [lo, hi] = std::minmax_element(weights.begin(), weights.end());
  const float edge = std::fabs(*lo) > std::fabs(*hi) ? *lo : *hi;
  for (size_t i = 0; i < weights.size(); ++i) {
    const float back = scale * values[i] + bias;
    const float error = std::fabs(back - weights[i]);
    // Half a step for rounding. The edge sits on a whole step, at least half of all steps from zero, which
    // moves the scale by up to 1/n of itself, so the other end may be cut by up to one step.
    EXPECT_LE(error, std::fabs(scale) * (1 + 1e-5f)) << weights[i];
    if (weights[i] == 0.0f) {
      EXPECT_LE(error, std::fabs(edge) * 1e-6f);
    }
    if (weights[i] == edge) {
      EXPECT_EQ(back, edge);
    }
  }
}

TEST(QuantMlxTest, QuantizingKeepsZeroAndTheLargerEndAndTheRestWithinAStep) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (int bits : kAllBits) {
    for (int group_size : {32, 64, 128}) {
      std::vector<float> weights(2 * group_size);
      for (float& w : weights) w = normal(random);
      weights[3] = 0.0f;
      const Quantized q = quantize(weights, bits, group_size);
      for (int group = 0; group < 2; ++group) {
        check_group(std::span(weights).subspan(group * group_size, group_size),
                    std::span(q.values).subspan(group * group_size, group_size), q.scales[group],
                    q.biases[group]);
      }
    }
  }
}

TEST(QuantMlxTest, TiesOfTheEdgeGoToTheEvenStep) {
  std::vector<float> weights(32, 0.0f);
  weights[0] = 2.5f;  // 2 bits: step -(2.5 + 0.5) / 3 = -1, so the edge is -2.5 steps from zero.
  weights[1] = -0.5f;
  EXPECT_THAT(quantize(weights, 2, 32).scales, ElementsAre(-1.25f));
}

TEST(QuantMlxTest, GroupsWithoutSpreadStayFinite) {
  for (float value : {0.0f, 1.0f, -1.0f, 1e-9f}) {
    const Quantized q = quantize(std::vector<float>(32, value), 4, 32);
    EXPECT_TRUE(std::isfinite(q.scales[0]) && q.scales[0] != 0.0f) << value;
    EXPECT_NEAR(q.scales[0] * q.values[0] + q.biases[0], value, 1e-7) << value;
  }
}

TEST(QuantMlxTest, DescribesAModuleOfEveryWidth) {
  for (int bits : kAllBits) {
    for (int group_size : {32, 64, 128}) {
      const int64_t in = 384;
      const TensorInfo weight = tensor(DType::kU32, {5, 7, in * bits / 32});
      const TensorInfo scales = tensor(DType::kF16, {5, 7, in / group_size});
      const auto described = describe(weight, scales, &scales, {.group_size = group_size, .bits = bits});
      ASSERT_TRUE(described.ok()) << described.status().message();
      EXPECT_THAT(described->batch_shape, ElementsAre(5));
      EXPECT_EQ(described->out, 7);
      EXPECT_EQ(described->in, in);
      EXPECT_EQ(described->bits, bits);
      EXPECT_EQ(described->scale_dtype, DType::kF16);
      EXPECT_EQ(described->row_bytes(), in * bits / 8);
      EXPECT_EQ(described->groups_per_row(), in / group_size);
    }
  }
}

TEST(QuantMlxTest, AWidthMissingFromTheConfigComesFromTheShapes) {
  const TensorInfo weight = tensor(DType::kU32, {8, 64 * 8 / 32});
  const TensorInfo scales = tensor(DType::kBF16, {8, 1});
  const auto described = describe(weight, scales, &scales, {.group_size = 64, .bits = 4});
  ASSERT_TRUE(described.ok());
  EXPECT_EQ(described->bits, 8);
}

TEST(QuantMlxTest, TensorsThatDoNotBelongTogetherAreRefusedWithTheirShapes) {
  const TensorInfo weight = tensor(DType::kU32, {8, 8});
  const TensorInfo scales = tensor(DType::kBF16, {8, 1});
  const ModuleQuantization expected{.group_size = 64, .bits = 4};
  ASSERT_TRUE(describe(weight, scales, &scales, expected).ok());
  const TensorInfo kBadWeights[] = {tensor(DType::kI32, {8, 8}), tensor(DType::kU32, {9, 8}),
                                    tensor(DType::kU32, {8, 9}), tensor(DType::kU32, {8, 14}),
                                    tensor(DType::kU32, {8, 0}), tensor(DType::kU32, {8}),
                                    tensor(DType::kU32, {1, 8, 8}),
                                    // Times 32 this is 256 modulo 2^64: four bits.
                                    tensor(DType::kU32, {8, (int64_t{1} << 59) + 8})};
  for (const TensorInfo& bad : kBadWeights) {
    const Status status = describe(bad, scales, &scales, expected).status();
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << to_string(bad);
    EXPECT_THAT(status.message(), HasSubstr("m: weight " + to_string(bad) + ", scales BF16 [8, 1]"));
  }
  const TensorInfo kBadScales[] = {tensor(DType::kU8, {8, 1}), tensor(DType::kBF16, {8, 0}),
                                   tensor(DType::kBF16, {7, 1}), tensor(DType::kBF16, {8, int64_t{1} << 60})};
  for (const TensorInfo& bad : kBadScales) {
    EXPECT_EQ(describe(weight, bad, &bad, expected).status().code(), StatusCode::kCorrupt) << to_string(bad);
  }
  for (const TensorInfo& bad :
       {tensor(DType::kF16, {8, 1}), tensor(DType::kBF16, {8, 2}), tensor(DType::kBF16, {8})}) {
    EXPECT_EQ(describe(weight, scales, &bad, expected).status().code(), StatusCode::kCorrupt)
        << to_string(bad);
  }
  const TensorInfo vector = tensor(DType::kU32, {8});
  const TensorInfo vector_scales = tensor(DType::kBF16, {1});
  EXPECT_EQ(describe(vector, vector_scales, &vector_scales, expected).status().code(), StatusCode::kCorrupt);
}

TEST(QuantMlxTest, OtherLayoutsAreRefusedByName) {
  const TensorInfo weight = tensor(DType::kU32, {8, 8});
  const TensorInfo scales = tensor(DType::kU8, {8, 2});
  const Status status = describe(weight, scales, nullptr, {QuantMode::kMxfp4, 32, 4}).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(), "m: packed as mxfp4, which is not read yet");
  EXPECT_EQ(describe(weight, scales, nullptr, {QuantMode::kAffine, 64, 4}).status().code(),
            StatusCode::kUnsupported);
}

}  // namespace
}  // namespace tensorfold
