// mlp_activation, sigmoid_mul and add_gated: every instruction set equals the reference; the reference equals
// its formula in double.
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
          if (rows == 11) {
            sprinkle_specials(gate, random);
            sprinkle_specials(up, random);
          }
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

/// Queries with a gate after each head's: a head of the gate lies `stride` elements after the one before.
TEST_P(MlpActivationOnEveryIsa, SigmoidMulEqualsTheReference) {
  Random random(3);
  constexpr int64_t kHeads[][3] = {{1, 1, 1},     {3, 5, 5},     {2, 16, 32}, {3, 33, 70},
                                   {1, 300, 300}, {2, 256, 512}, {4, 64, 128}};
  for (const auto& [num_heads, head_dim, stride] : kHeads) {
    for (const int64_t rows : {0, 1, 40}) {
      for (const Placement& placement : kPlacements) {
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          Array x(dtype, rows, num_heads * head_dim, placement);
          Array gate(DType::kF32, rows, (num_heads - 1) * stride + head_dim, {2, placement.shift});
          x.fill(random, 3.0f);
          gate.fill(random, 3.0f);
          if (rows == 40) {
            sprinkle_specials(x, random);
            sprinkle_specials(gate, random);
          }
          Array expected(dtype, rows, num_heads * head_dim);
          reference().sigmoid_mul(expected.view(), x.view(), gate.view(), head_dim, stride);
          for (auto& ops : backends()) {
            Array out(dtype, rows, num_heads * head_dim, placement), in_place = x;
            ops->sigmoid_mul(out.view(), x.view(), gate.view(), head_dim, stride);
            ops->sigmoid_mul(in_place.view(), in_place.view(), gate.view(), head_dim, stride);
            const std::string what =
                fmt::format("{} rows, {} heads of {}, gates {} apart", rows, num_heads, head_dim, stride);
            expect_same(out, expected, what);
            expect_same(in_place, expected, what + ", in place");
          }
        }
      }
    }
  }
}

TEST_P(MlpActivationOnEveryIsa, AddGatedEqualsTheReference) {
  Random random(4);
  for (const int64_t n : edge_sizes()) {
    for (const int64_t rows : {0, 1, 30}) {
      for (const Placement& placement : kPlacements) {
        Array x(DType::kF32, rows, n, {1, placement.shift}), gate(DType::kF32, rows, 1, {4, 1});
        Array before(DType::kF32, rows, n, placement);
        for (Array* array : {&x, &gate, &before}) array->fill(random, 3.0f);
        if (rows == 30) {
          sprinkle_specials(x, random);
          gate.set(3, 0, NAN);
          gate.set(4, 0, -INFINITY);
        }
        Array expected = before;
        reference().add_gated(expected.view(), x.view(), gate.view());
        for (auto& ops : backends()) {
          Array out = before;
          ops->add_gated(out.view(), x.view(), gate.view());
          expect_same(out, expected, fmt::format("{} rows of {}", rows, n));
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

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// Checks every element of out against formula(gate, up), within `ulps` of it.
template <class Formula>
void expect_formula(const MlpActivation& activation, double ulps, const Formula& formula) {
  Random random(5);
  Array gate(DType::kF32, 4, 1000), up(DType::kF32, 4, 1000), out(DType::kF32, 4, 1000);
  gate.fill(random, 5.0f);
  up.fill(random, 5.0f);
  make_reference_ops()->mlp_activation(out.view(), gate.view(), up.view(), activation);
  for (int64_t t = 0; t < 4; ++t) {
    for (int64_t i = 0; i < 1000; ++i) {
      const double expected = formula(double{gate.get(t, i)}, double{up.get(t, i)});
      ASSERT_NEAR(out.get(t, i), expected, ulps * 0x1p-23 * std::fabs(expected) + 0x1p-126)
          << "gate " << gate.get(t, i) << ", up " << up.get(t, i);
    }
  }
}

TEST(MlpActivationReference, ClampedSiluIsItsFormula) {
  // Two sums, three products: half an ulp each; the argument's rounding moves the sigmoid by |alpha g| times
  // that, at most 30 * 1.702 / 2; sigmoid_f32 within 2.5 ulp.
  expect_formula({MlpActivation::Kind::kClampedSilu, 1.702f, 7.0f}, 2.5 + 2.5 + 26,
                 [](double gate, double up) {
                   const double g = std::min(gate, 7.0), u = std::clamp(up, -7.0, 7.0);
                   return (u + 1) * (g * sigmoid(double{1.702f} * g));
                 });
}

TEST(MlpActivationReference, Relu2IsItsFormulaWithoutAGate) {
  expect_formula({MlpActivation::Kind::kRelu2}, 0.5, [](double, double up) {
    const double r = std::max(up, 0.0);
    return r * r;
  });
  Array up(DType::kF32, 1, 3), out(DType::kF32, 1, 3);
  for (int64_t i = 0; i < 3; ++i) up.set(0, i, static_cast<float>(i) - 1);
  make_reference_ops()->mlp_activation(out.view(), View(), up.view(), {MlpActivation::Kind::kRelu2});
  EXPECT_EQ(out.get(0, 0), 0.0f);
  EXPECT_EQ(out.get(0, 1), 0.0f);
  EXPECT_EQ(out.get(0, 2), 1.0f);
}

TEST(MlpActivationReference, GeluTanhIsItsFormula) {
  Random random(6);
  Array gate(DType::kF32, 4, 1000), up(DType::kF32, 4, 1000), out(DType::kF32, 4, 1000);
  gate.fill(random, 2.0f);
  up.fill(random);
  make_reference_ops()->mlp_activation(out.view(), gate.view(), up.view(), {MlpActivation::Kind::kGeluTanh});
  for (int64_t t = 0; t < 4; ++t) {
    for (int64_t i = 0; i < 1000; ++i) {
      const double g = gate.get(t, i), u = up.get(t, i);
      const double expected = 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * u;
      // Where 1 + tanh cancels, tanh's own rounding (within 1.4 ulp of 1, and its argument's) is left:
      // absolute.
      ASSERT_NEAR(out.get(t, i), expected, 4 * 0x1p-23 * (std::fabs(g * u) + std::fabs(expected))) << g;
    }
  }
}

TEST(MlpActivationReference, SigmoidMulAndAddGatedAreTheirFormulas) {
  Random random(7);
  auto reference = make_reference_ops();
  constexpr int64_t kRows = 3, kNumHeads = 3, kHeadDim = 20, kStride = 45;
  Array x(DType::kF32, kRows, kNumHeads * kHeadDim), gate(DType::kF32, kRows, kNumHeads * kStride), out = x;
  x.fill(random);
  gate.fill(random, 3.0f);
  reference->sigmoid_mul(out.view(), x.view(), gate.view(), kHeadDim, kStride);
  Array sum = x;
  reference->add_gated(sum.view(), x.view(), gate.view().columns(7, 1));
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t i = 0; i < kNumHeads * kHeadDim; ++i) {
      const double expected = x.get(t, i) * sigmoid(gate.get(t, i / kHeadDim * kStride + i % kHeadDim));
      ASSERT_NEAR(out.get(t, i), expected, 3 * 0x1p-23 * std::fabs(expected));
      const double added = x.get(t, i) + x.get(t, i) * sigmoid(gate.get(t, 7));
      ASSERT_NEAR(sum.get(t, i), added, 3 * 0x1p-23 * std::fabs(added));
    }
  }
}

}  // namespace
}  // namespace tensorfold::test
