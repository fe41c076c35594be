// rope_table: every instruction set equals the reference, which equals the C library's sine and cosine.
#include <fmt/format.h>

#include "tests/ops/op_test_support.h"

namespace tensorfold::test {
namespace {

std::vector<double> frequencies(int64_t n) {
  std::vector<double> inv_freq(n);
  for (int64_t j = 0; j < n; ++j) inv_freq[j] = pow_f64(500000.0, -static_cast<double>(j) / static_cast<double>(n));
  return inv_freq;
}

class RopeTableOnEveryIsa : public EveryIsa {};

TEST_P(RopeTableOnEveryIsa, EqualsTheReference) {
  Random random(1);
  for (const int64_t n : {0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 32, 33, 64, 128}) {
    const std::vector<double> inv_freq = frequencies(n);
    for (const int64_t rows : {0, 1, 2, 300}) {
      std::vector<int32_t> positions(rows);
      for (int32_t& p : positions) p = static_cast<int32_t>(random.below(rows == 300 ? 2147483647 : 5000));
      Array expected_cos(DType::kF32, rows, n), expected_sin(DType::kF32, rows, n);
      reference().rope_table(expected_cos.view(), expected_sin.view(), positions, inv_freq, 1.25);
      for (auto& ops : backends()) {
        for (const Placement& placement : kPlacements) {
          Array cos(DType::kF32, rows, n, placement), sin(DType::kF32, rows, n, placement);
          ops->rope_table(cos.view(), sin.view(), positions, inv_freq, 1.25);
          expect_same(cos, expected_cos, fmt::format("cos, {} rows of {}", rows, n));
          expect_same(sin, expected_sin, fmt::format("sin, {} rows of {}", rows, n));
        }
      }
    }
  }
}

TF_INSTANTIATE_FOR_EVERY_ISA(RopeTableOnEveryIsa);

TEST(RopeTableReference, IsTheRoundedSineAndCosine) {
  auto reference = make_reference_ops();
  const std::vector<double> inv_freq = frequencies(32);
  std::vector<int32_t> positions;
  for (int32_t p = 0; p < 200000; p = p * 3 / 2 + 1) positions.push_back(p);
  const int64_t rows = static_cast<int64_t>(positions.size());
  Array cos(DType::kF32, rows, 32), sin(DType::kF32, rows, 32);
  reference->rope_table(cos.view(), sin.view(), positions, inv_freq, 1.0);
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t j = 0; j < 32; ++j) {
      const double angle = positions[t] * inv_freq[j];
      // One rounding to f32 of a value that is right to an ulp of f64.
      EXPECT_EQ(cos.get(t, j), static_cast<float>(std::cos(angle))) << angle;
      EXPECT_EQ(sin.get(t, j), static_cast<float>(std::sin(angle))) << angle;
    }
  }
}

}  // namespace
}  // namespace tensorfold::test
