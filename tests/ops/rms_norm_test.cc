// rms_norm: every instruction set equals the reference; the reference equals its formula in double.
#include <fmt/format.h>

#include "tests/ops/op_test_support.h"

namespace tensorfold::test {
namespace {

class RmsNormOnEveryIsa : public EveryIsa {};

TEST_P(RmsNormOnEveryIsa, EqualsTheReference) {
  Random random(1);
  for (const int64_t n : edge_sizes()) {
    for (const int64_t rows : {0, 1, 5}) {
      for (const Placement& placement : kPlacements) {
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          Array x(DType::kF32, rows, n, placement), weight(DType::kF32, 1, n, {0, placement.shift});
          x.fill(random, 3.0f);
          weight.fill(random);
          if (rows == 5) sprinkle_specials(x, random);
          Array expected(dtype, rows, n);
          reference().rms_norm(expected.view(), x.view(), weight.view(), {.eps = 1e-5f});
          for (auto& ops : backends()) {
            Array out(dtype, rows, n, placement);
            ops->rms_norm(out.view(), x.view(), weight.view(), {.eps = 1e-5f});
            expect_same(out, expected, fmt::format("{} rows of {}", rows, n));
          }
        }
      }
    }
  }
}

TEST_P(RmsNormOnEveryIsa, MayWriteOverItsInput) {
  Random random(2);
  Array weight(DType::kF32, 1, 577);
  weight.fill(random);
  Array x(DType::kF32, 40, 577);
  x.fill(random);
  Array expected(DType::kF32, 40, 577);
  reference().rms_norm(expected.view(), x.view(), weight.view(), {});
  for (auto& ops : backends()) {
    Array in_place = x;
    ops->rms_norm(in_place.view(), in_place.view(), weight.view(), {});
    expect_same(in_place, expected, "in place");
  }
}

TEST_P(RmsNormOnEveryIsa, AccumulatingEqualsTheReference) {
  Random random(4);
  for (const int64_t n : edge_sizes()) {
    for (const int64_t rows : {0, 1, 5}) {
      for (const Placement& placement : kPlacements) {
        Array x(DType::kF32, rows, n, placement), weight(DType::kF32, 1, n, {0, placement.shift});
        Array before(DType::kF32, rows, n, {2, placement.shift});
        for (Array* array : {&x, &weight, &before}) array->fill(random, 3.0f);
        if (rows == 5) sprinkle_specials(before, random);
        Array expected = before;
        reference().rms_norm(expected.view(), x.view(), weight.view(), {.eps = 1e-5f, .accumulate = true});
        for (auto& ops : backends()) {
          Array out = before;
          ops->rms_norm(out.view(), x.view(), weight.view(), {.eps = 1e-5f, .accumulate = true});
          expect_same(out, expected, fmt::format("{} rows of {}, accumulating", rows, n));
        }
      }
    }
  }
}

TF_INSTANTIATE_FOR_EVERY_ISA(RmsNormOnEveryIsa);

TEST(RmsNormReference, AccumulatingIsTheNormAddedInFp32) {
  Random random(5);
  auto reference = make_reference_ops();
  Array x(DType::kF32, 3, 100), weight(DType::kF32, 1, 100), norm = x, sum = x;
  x.fill(random);
  weight.fill(random);
  sum.fill(random, 2.0f);
  const Array before = sum;
  reference->rms_norm(norm.view(), x.view(), weight.view(), {});
  reference->rms_norm(sum.view(), x.view(), weight.view(), {.accumulate = true});
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t e = 0; e < 100; ++e) ASSERT_EQ(sum.get(t, e), before.get(t, e) + norm.get(t, e));
  }
}

TEST(RmsNormReference, IsItsFormula) {
  Random random(3);
  auto reference = make_reference_ops();
  for (const int64_t n : {1, 33, 576, 1000}) {
    Array x(DType::kF32, 3, n), weight(DType::kF32, 1, n), out(DType::kF32, 3, n);
    x.fill(random, 2.0f);
    weight.fill(random);
    reference->rms_norm(out.view(), x.view(), weight.view(), {.eps = 1e-6f});
    for (int64_t t = 0; t < 3; ++t) {
      double sum = 0;
      for (int64_t e = 0; e < n; ++e) sum += static_cast<double>(x.get(t, e)) * x.get(t, e);
      const double scale = 1 / std::sqrt(sum / static_cast<double>(n) + 1e-6);
      for (int64_t e = 0; e < n; ++e) {
        const double expected = x.get(t, e) * scale * weight.get(0, e);
        // A partial has n/32 terms and five halvings follow; then the reciprocal, the mean, eps, root,
        // quotient (half of the sum's error passes the root), two products.
        const double roundings = 0.5 * (static_cast<double>(n) / 32 + 5 + 3) + 4;
        ASSERT_NEAR(out.get(t, e), expected, roundings * 0x1p-24 * std::fabs(expected)) << n;
      }
    }
  }
}

}  // namespace
}  // namespace tensorfold::test
