// softcap: every instruction set equals the reference; the reference equals its formula in double.
#include <fmt/format.h>

#include "tests/ops/op_test_support.h"

namespace tensorfold::test {
namespace {

class SoftcapOnEveryIsa : public EveryIsa {};

TEST_P(SoftcapOnEveryIsa, EqualsTheReference) {
  Random random(1);
  std::vector<int64_t> sizes = edge_sizes();
  sizes.insert(sizes.end(), {8191, 8192, 8193, 20001});  // around a task's piece
  for (const int64_t n : sizes) {
    for (const int64_t rows : {0, 1, 3}) {
      for (const Placement& placement : kPlacements) {
        Array x(DType::kF32, rows, n, placement);
        x.fill(random, 20.0f);
        sprinkle_specials(x, random);
        Array expected = x;
        reference().softcap(expected.view(), 9.0f);
        for (auto& ops : backends()) {
          Array out = x;
          ops->softcap(out.view(), 9.0f);
          expect_same(out, expected, fmt::format("{} rows of {}", rows, n));
        }
      }
    }
  }
}

TF_INSTANTIATE_FOR_EVERY_ISA(SoftcapOnEveryIsa);

TEST(SoftcapReference, IsItsFormula) {
  Random random(2);
  auto reference = make_reference_ops();
  for (const float limit : {0.7f, 9.0f, 30.0f}) {
    Array x(DType::kF32, 2, 1000);
    x.fill(random, 2 * limit);
    Array out = x;
    reference->softcap(out.view(), limit);
    double largest = 0;
    for (int64_t t = 0; t < 2; ++t) {
      for (int64_t i = 0; i < 1000; ++i) {
        const double expected = limit * std::tanh(double{x.get(t, i)} / limit);
        // The quotient is off by half an ulp, which tanh does not enlarge relative to its value; tanh_f32 is
        // within 1.4 and the product adds half of one. An ulp is at most 2^-23 of the value.
        ASSERT_NEAR(out.get(t, i), expected, 2.5 * 0x1p-23 * std::fabs(expected)) << x.get(t, i);
        largest = std::max(largest, std::fabs(expected));
      }
    }
    ASSERT_GT(largest, 0.9 * limit) << "the inputs reach the cap";
    ASSERT_LE(largest, limit);
  }
}

}  // namespace
}  // namespace tensorfold::test
