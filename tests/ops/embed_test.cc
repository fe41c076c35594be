// embed(): rows of the packed table, to the bit on every instruction set, and equal to the checkpoint's own.
#include <gtest/gtest.h>

#include "ops/reference/packed_matrix.h"
#include "tests/ops/random_linear.h"

namespace tensorfold {
namespace {

constexpr int64_t kVocabSize = 75;
/// The first and last rows of the table and of its panels, some twice.
constexpr int32_t kTokens[] = {0, 74, 31, 32, 63, 64, 0, 17, 74};
constexpr int64_t kNumTokens = std::size(kTokens);
/// sqrt(2560), as Gemma 3 of that hidden size has it, rounded to bf16.
constexpr float kScale = 50.5f;

class EmbedTest : public CpuIsaTest {};
TF_INSTANTIATE_FOR_EVERY_ISA(EmbedTest);

TEST_P(EmbedTest, EqualsTheReferenceInEveryFormat) {
  const std::unique_ptr<Ops> ops = make_ops(2), reference = make_reference_ops();
  for (Values values : {Values::kUsual, Values::kTiny, Values::kBitPatterns}) {
    for (const LinearSpec& spec : all_specs(kVocabSize, 3)) {
      const RandomLinear table(spec, 1, *ops, values);
      for (DType dtype : {DType::kF32, DType::kBF16}) {
        for (const float scale : {1.0f, kScale}) {
          const GuardedMatrix out(dtype, kNumTokens, spec.in), expected(dtype, kNumTokens, spec.in);
          ops->embed(out.view(), table.weight(), kTokens, scale);
          reference->embed(expected.view(), table.weight(), kTokens, scale);
          ASSERT_TRUE(same_bits(out.view(), expected.view())) << to_string(spec) << " times " << scale;
          out.check_guards();
          expected.check_guards();
        }
      }
    }
  }
}

TEST_P(EmbedTest, TakesMoreRowsThanOneTask) {
  const std::unique_ptr<Ops> ops = make_ops(3), reference = make_reference_ops();
  const LinearSpec spec = affine_spec(kVocabSize, 576, 8, 32, DType::kF16);
  const RandomLinear table(spec, 2, *ops);
  std::vector<int32_t> tokens;
  for (int32_t t = 0; t < 200; ++t) tokens.push_back(t * 7 % static_cast<int32_t>(kVocabSize));
  const GuardedMatrix out(DType::kF32, 200, spec.in), expected(DType::kF32, 200, spec.in);
  ops->embed(out.view(), table.weight(), tokens, 1.0f);
  reference->embed(expected.view(), table.weight(), tokens, 1.0f);
  EXPECT_TRUE(same_bits(out.view(), expected.view()));
  out.check_guards();
}

// One fp32 rounding of scale * q + bias, which double holds exactly for bf16 and f16 scales.
TEST(EmbedReferenceTest, IsTheRoundedElementOfTheCheckpoint) {
  const std::unique_ptr<Ops> ops = make_reference_ops();
  for (const LinearSpec& spec : all_specs(kVocabSize, 2)) {
    const RandomLinear table(spec, 3, *ops);
    const reference::PackedMatrix packed(spec, table.weight().data);
    const GuardedMatrix out(DType::kF32, kNumTokens, spec.in);
    ops->embed(out.view(), table.weight(), kTokens, 1.0f);
    for (int64_t t = 0; t < kNumTokens; ++t) {
      for (int64_t e = 0; e < spec.in; ++e) {
        double expected = packed.element(kTokens[t], 0);
        if (spec.format == WeightFormat::kFloat) {
          expected = packed.element(kTokens[t], e);
        } else {
          const int64_t group = e / spec.group_size;
          expected = static_cast<double>(packed.scale(kTokens[t], group)) * packed.unscaled(kTokens[t], e);
          if (spec.format == WeightFormat::kAffine) expected += packed.bias(kTokens[t], group);
        }
        const double ulp = expected == 0.0 ? 0.0 : std::ldexp(1.0, std::ilogb(expected) - 23);
        ASSERT_NEAR(out.view().row<float>(t)[e], expected, ulp / 2 * 1.0001) << to_string(spec);
      }
    }
  }
}

// The product is rounded once in fp32, and to bf16 after that.
TEST(EmbedReferenceTest, ScalesTheElementInFp32) {
  const std::unique_ptr<Ops> ops = make_reference_ops();
  for (const LinearSpec& spec :
       {float_spec(kVocabSize, 70, DType::kBF16), affine_spec(kVocabSize, 64, 4, 32, DType::kF16)}) {
    const RandomLinear table(spec, 4, *ops);
    const GuardedMatrix plain(DType::kF32, kNumTokens, spec.in), scaled(DType::kF32, kNumTokens, spec.in);
    const GuardedMatrix rounded(DType::kBF16, kNumTokens, spec.in);
    ops->embed(plain.view(), table.weight(), kTokens, 1.0f);
    ops->embed(scaled.view(), table.weight(), kTokens, kScale);
    ops->embed(rounded.view(), table.weight(), kTokens, kScale);
    for (int64_t t = 0; t < kNumTokens; ++t) {
      for (int64_t e = 0; e < spec.in; ++e) {
        const float product = plain.view().row<float>(t)[e] * kScale;
        ASSERT_EQ(scaled.view().row<float>(t)[e], product) << to_string(spec);
        ASSERT_EQ(to_float(rounded.view().row<bf16>(t)[e]), to_float(to_bf16(product))) << to_string(spec);
      }
    }
  }
}

}  // namespace
}  // namespace tensorfold
