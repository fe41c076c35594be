// route: every instruction set equals the reference; softmax, order and ties by plain loops.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "tests/ops/op_test_support.h"

namespace tensorfold::test {
namespace {

class RouteOnEveryIsa : public EveryIsa {};

TEST_P(RouteOnEveryIsa, EqualsTheReference) {
  Random random(1);
  for (const int64_t n : {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 60, 64, 128, 257}) {
    for (const int64_t k : {int64_t{1}, std::min<int64_t>(n, 8), n}) {
      for (const int64_t rows : {0, 1, 40}) {
        for (const bool normalize : {false, true}) {
          Array logits(DType::kF32, rows, n, {2, 1});
          for (int64_t t = 0; t < rows; ++t) {  // quarter steps: many ties
            for (int64_t e = 0; e < n; ++e) logits.set(t, e, std::round(4.0f * random.normal()) / 4.0f);
          }
          if (rows == 40) sprinkle_specials(logits, random);
          Array ids(DType::kI32, rows, k), weights(DType::kF32, rows, k);
          reference().route({.expert_ids = ids.view(),
                             .expert_weights = weights.view(),
                             .router_logits = logits.view(),
                             .normalize = normalize});
          for (auto& ops : backends()) {
            Array cpu_ids(DType::kI32, rows, k, {1, 1}), cpu_weights(DType::kF32, rows, k, {3, 1});
            ops->route({.expert_ids = cpu_ids.view(),
                        .expert_weights = cpu_weights.view(),
                        .router_logits = logits.view(),
                        .normalize = normalize});
            expect_same(cpu_ids, ids, fmt::format("ids, {} of {}, {} rows", k, n, rows));
            expect_same(cpu_weights, weights, fmt::format("weights, {} of {}, {} rows", k, n, rows));
          }
        }
      }
    }
  }
}

TF_INSTANTIATE_FOR_EVERY_ISA(RouteOnEveryIsa);

TEST(RouteReference, TakesTheLargestOfASoftmaxLowestIndexFirst) {
  auto reference = make_reference_ops();
  Random random(2);
  constexpr int64_t kRows = 20, kExperts = 33, kChosen = 5;
  Array logits(DType::kF32, kRows, kExperts), weights(DType::kF32, kRows, kChosen);
  Array ids(DType::kI32, kRows, kChosen);
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t e = 0; e < kExperts; ++e) logits.set(t, e, std::round(2.0f * random.normal()));
  }
  for (const bool normalize : {false, true}) {
    reference->route({.expert_ids = ids.view(),
                      .expert_weights = weights.view(),
                      .router_logits = logits.view(),
                      .normalize = normalize});
    for (int64_t t = 0; t < kRows; ++t) {
      double sum = 0, chosen = 0;
      for (int64_t e = 0; e < kExperts; ++e) sum += std::exp(static_cast<double>(logits.get(t, e)));
      std::vector<int32_t> order(kExperts);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return logits.get(t, a) > logits.get(t, b); });
      for (int64_t j = 0; j < kChosen; ++j) chosen += std::exp(static_cast<double>(logits.get(t, order[j])));
      for (int64_t j = 0; j < kChosen; ++j) {
        EXPECT_EQ(ids.view().row<int32_t>(t)[j], order[j]);
        const double expected =
            std::exp(static_cast<double>(logits.get(t, order[j]))) / (normalize ? chosen : sum);
        // exp within 1.1 ulp in numerator and sums, seven additions, two divisions.
        EXPECT_NEAR(weights.get(t, j), expected, 14 * 0x1p-23 * expected);
      }
    }
  }
}

TEST(RouteReference, ARowWithNaNIsNaNAndStillNamesExperts) {
  auto reference = make_reference_ops();
  Array logits(DType::kF32, 1, 8), ids(DType::kI32, 1, 3), weights(DType::kF32, 1, 3);
  for (int64_t e = 0; e < 8; ++e) logits.set(0, e, e == 5 ? NAN : static_cast<float>(e));
  reference->route({.expert_ids = ids.view(),
                    .expert_weights = weights.view(),
                    .router_logits = logits.view(),
                    .normalize = true});
  for (int32_t j = 0; j < 3; ++j) {
    EXPECT_EQ(ids.view().row<int32_t>(0)[j], j);
    EXPECT_TRUE(std::isnan(weights.get(0, j)));
  }
}

}  // namespace
}  // namespace tensorfold::test
