// gated_rms_norm: every instruction set equals the reference; the reference is rms_norm and silu in the
// stated order.
#include <fmt/format.h>

#include "tests/ops/op_test_support.h"

namespace tensorfold::test {
namespace {

using Order = GatedRmsNormCall::Order;
constexpr Order kOrders[] = {Order::kNormThenGate, Order::kGateThenNorm};

/// Inputs of `groups` groups of `size` elements a row.
struct Inputs {
  int64_t size;
  Array x, gate, weight;

  Inputs(int64_t rows, int64_t groups, int64_t size, bool one_weight, Placement placement, uint64_t seed)
      : size(size),
        x(DType::kF32, rows, groups * size, placement),
        gate(DType::kF32, rows, groups * size, {2, placement.shift}),
        weight(DType::kF32, 1, one_weight ? size : groups * size, {0, placement.shift}) {
    Random random(seed);
    for (Array* array : {&x, &gate, &weight}) array->fill(random, 3.0f);
  }
  View weight_vector() const { return View(weight.view().data, DType::kF32, {weight.columns()}); }
  GatedRmsNormCall call(const Array& out, Order order) const {
    return {.out = out.view(),
            .x = x.view(),
            .gate = gate.view(),
            .weight = weight_vector(),
            .group_size = size,
            .eps = 1e-5f,
            .order = order};
  }
};

class GatedRmsNormOnEveryIsa : public EveryIsa {};

TEST_P(GatedRmsNormOnEveryIsa, EqualsTheReference) {
  uint64_t seed = 1;
  for (const int64_t size : edge_sizes()) {
    if (size == 0) continue;
    for (const int64_t groups : {1, 3}) {
      for (const int64_t rows : {0, 1, 7}) {
        for (const Placement& placement : kPlacements) {
          Inputs in(rows, groups, size, seed % 2 == 0, placement, seed);
          ++seed;
          Random random(seed);
          if (rows == 7) sprinkle_specials(seed % 4 < 2 ? in.x : in.gate, random);
          for (const Order order : kOrders) {
            for (const DType dtype : {DType::kF32, DType::kBF16}) {
              Array expected(dtype, rows, groups * size);
              reference().gated_rms_norm(in.call(expected, order));
              for (auto& ops : backends()) {
                Array out(dtype, rows, groups * size, placement);
                ops->gated_rms_norm(in.call(out, order));
                expect_same(out, expected,
                            fmt::format("order {}, {} rows of {} groups of {}", static_cast<int>(order), rows,
                                        groups, size));
              }
            }
          }
        }
      }
    }
  }
}

TF_INSTANTIATE_FOR_EVERY_ISA(GatedRmsNormOnEveryIsa);

TEST(GatedRmsNormReference, IsItsFormulaInBothOrders) {
  auto reference = make_reference_ops();
  for (const bool one_weight : {false, true}) {
    const int64_t size = 50, groups = 3;
    const Inputs in(5, groups, size, one_weight, {}, 3);
    for (const Order order : kOrders) {
      Array out(DType::kF32, 5, groups * size);
      reference->gated_rms_norm(in.call(out, order));
      for (int64_t t = 0; t < 5; ++t) {
        for (int64_t g = 0; g < groups; ++g) {
          const auto gate = [&](int64_t i) {
            return in.gate.get(t, i) / (1 + std::exp(-double{in.gate.get(t, i)}));
          };
          const auto normed = [&](int64_t i) {
            return in.x.get(t, i) * (order == Order::kGateThenNorm ? gate(i) : 1.0);
          };
          double squares = 0;
          for (int64_t i = g * size; i < (g + 1) * size; ++i) squares += normed(i) * normed(i);
          const double inverse = 1 / std::sqrt(squares / static_cast<double>(size) + 1e-5);
          for (int64_t i = g * size; i < (g + 1) * size; ++i) {
            const double expected = normed(i) * inverse * in.weight.get(0, one_weight ? i - g * size : i) *
                                    (order == Order::kNormThenGate ? gate(i) : 1.0);
            // As rms_norm's, with silu_f32's 3 ulp (of 2 roundings each) and its product: once on the element
            // and, in the second order, once more through the sum.
            const double roundings = 0.5 * (static_cast<double>(size) / 32 + 1 + 5 + 3) + 4 + 2 * 7;
            ASSERT_NEAR(out.get(t, i), expected, roundings * 0x1p-24 * std::fabs(expected))
                << "order " << static_cast<int>(order) << ", row " << t << ", element " << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tensorfold::test
