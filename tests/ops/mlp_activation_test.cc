// mlp_activation: every instruction set equals the reference; the reference equals its formula in double.
#include <fmt/format.h>

#include "tests/ops/op_test_support.h"

namespace tensorfold::test {
namespace {

constexpr MlpActivation kActivations[] = {
    {MlpActivation::Kind::kSilu},
    {MlpActivation::Kind::kGeluTanh},
    {MlpActivation::Kind::kClampedSilu, 1.702f, 7.0f},
    {MlpActivation::Kind::kRelu2},
};

class MlpActivationOnEveryIsa : public EveryIsa {};

TEST_P(MlpActivationOnEveryIsa, EqualsTheReference) {
  Random random(1);
  for (const int64_t n : edge_sizes()) {
    for (const int64_t rows : {0, 1, 11}) {
      for (const Placement& placement : kPlacements) {
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          Array gate(DType::kF32, rows, n, placement), up(DType::kF32, rows, n, {1, placement.shift});
          gate.fill(random, 20.0f);
          up.fill(random);
          if (rows == 11) sprinkle_specials(gate, random);
          Array expected(dtype, rows, n);
          for (const MlpActivation& activation : kActivations) {
            reference().mlp_activation(expected.view(), gate.view(), up.view(), activation);
            for (auto& ops : backends()) {
              Array out(dtype, rows, n, placement);
              ops->mlp_activation(out.view(), gate.view(), up.view(), activation);
              expect_same(out, expected,
                          fmt::format("kind {}, {} rows of {}", static_cast<int>(activation.kind), rows, n));
            }
          }
        }
      }
    }
  }
}

TF_INSTANTIATE_FOR_EVERY_ISA(MlpActivationOnEveryIsa);

TEST(MlpActivationReference, SiluIsItsFormula) {
  Random random(2);
  auto reference = make_reference_ops();
  Array gate(DType::kF32, 4, 1000), up(DType::kF32, 4, 1000), out(DType::kF32, 4, 1000);
  gate.fill(random, 10.0f);
  up.fill(random);
  reference->mlp_activation(out.view(), gate.view(), up.view(), {});
  for (int64_t t = 0; t < 4; ++t) {
    for (int64_t i = 0; i < 1000; ++i) {
      const double g = gate.get(t, i), expected = g / (1 + std::exp(-g)) * up.get(t, i);
      // silu_f32 is within 3 ulp, an ulp being at most 2^-23 of the value; the product adds half of one.
      ASSERT_NEAR(out.get(t, i), expected, 3.5 * 0x1p-23 * std::fabs(expected)) << g;
    }
  }
}

}  // namespace
}  // namespace tensorfold::test
