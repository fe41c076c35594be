// route: every instruction set equals the reference; softmax, order and ties by plain loops.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "tests/ops/op_test_support.h"

namespace tensorfold::test {
namespace {

/// What a call says besides its logits.
struct Router {
  RouterScoring scoring = RouterScoring::kSoftmax;
  int64_t num_groups = 1, groups_kept = 1;
  bool has_correction = false;
  float scale = 1.0f;
};

constexpr RouterScoring kScorings[] = {RouterScoring::kSoftmax, RouterScoring::kSoftmaxOfChosen,
                                       RouterScoring::kSigmoid};

/// Logits in quarter steps: many ties.
Array tied_logits(Random& random, int64_t rows, int64_t n) {
  Array logits(DType::kF32, rows, n, {2, 1});
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t e = 0; e < n; ++e) logits.set(t, e, std::round(4.0f * random.normal()) / 4.0f);
  }
  return logits;
}

class RouteOnEveryIsa : public EveryIsa {
 protected:
  void check(const Array& logits, int64_t k, const Router& router) {
    const int64_t rows = logits.rows(), n = logits.columns();
    Random random(3);
    Array correction(DType::kF32, 1, n);  // in eighths: ties too
    for (int64_t e = 0; e < n; ++e) correction.set(0, e, std::round(8.0f * random.normal()) / 8.0f);
    for (const bool normalize : {false, true}) {
      RouteCall call{.expert_ids = {},
                     .expert_weights = {},
                     .router_logits = logits.view(),
                     .scoring = router.scoring,
                     .normalize = normalize,
                     .scale = router.scale,
                     .num_groups = router.num_groups,
                     .groups_kept = router.groups_kept};
      if (router.has_correction) call.correction_bias = View(correction.view().data, DType::kF32, {n});
      Array ids(DType::kI32, rows, k), weights(DType::kF32, rows, k);
      call.expert_ids = ids.view();
      call.expert_weights = weights.view();
      reference().route(call);
      for (auto& ops : backends()) {
        Array cpu_ids(DType::kI32, rows, k, {1, 1}), cpu_weights(DType::kF32, rows, k, {3, 1});
        call.expert_ids = cpu_ids.view();
        call.expert_weights = cpu_weights.view();
        ops->route(call);
        const std::string what = fmt::format(
            "{} of {} in {} of {} groups, scoring {}, correction {}, {} rows", k, n, router.groups_kept,
            router.num_groups, static_cast<int>(router.scoring), router.has_correction, rows);
        expect_same(cpu_ids, ids, what + ": ids");
        expect_same(cpu_weights, weights, what + ": weights");
      }
    }
  }
};

TEST_P(RouteOnEveryIsa, EqualsTheReference) {
  Random random(1);
  for (const int64_t n : {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 60, 64, 128, 255, 256, 257, 512}) {
    for (const int64_t k : {int64_t{1}, std::min<int64_t>(n, 8), std::min<int64_t>(n, 70), n}) {
      if (k > 100 && n > 257) continue;
      for (const int64_t rows : {0, 1, 40}) {
        Array logits = tied_logits(random, rows, n);
        if (rows == 40) sprinkle_specials(logits, random);
        for (const RouterScoring scoring : kScorings) check(logits, k, {.scoring = scoring, .scale = 2.5f});
        check(logits, k, {.scoring = RouterScoring::kSigmoid, .has_correction = true});
      }
    }
  }
}

TEST_P(RouteOnEveryIsa, EqualsTheReferenceInGroups) {
  Random random(4);
  constexpr int64_t kShapes[][4] = {// experts, groups, groups kept, k
                                    {8, 8, 3, 3},   {16, 4, 2, 5},  {60, 4, 1, 15},  {64, 8, 4, 8},
                                    {256, 8, 4, 8}, {160, 1, 1, 8}, {512, 16, 3, 10}};
  for (const auto& [n, num_groups, groups_kept, k] : kShapes) {
    for (const bool has_correction : {false, true}) {
      for (const bool with_specials : {false, true}) {
        Array logits = tied_logits(random, 30, n);
        if (with_specials) sprinkle_specials(logits, random);
        check(logits, k, {RouterScoring::kSigmoid, num_groups, groups_kept, has_correction, 1.5f});
      }
    }
  }
}

// Everything that a comparison takes for equal is a tie, and -infinity is chosen last, not left out.
TEST_P(RouteOnEveryIsa, EqualsTheReferenceOnZerosDenormalsAndInfinities) {
  constexpr uint32_t kValues[] = {0u,          0x80000000u, 1u,          0x807fffffu,
                                  0xff800000u, 0xff7fffffu, 0x7f800000u, 0x00800000u};
  Random random(5);
  for (const int64_t n : {8, 40, 300}) {
    Array logits(DType::kF32, 20, n);
    for (int64_t t = 0; t < 20; ++t) {
      for (int64_t e = 0; e < n; ++e)
        logits.set(t, e, bits_as<float>(kValues[random.below(std::size(kValues))]));
    }
    for (const RouterScoring scoring : kScorings) check(logits, n < 100 ? n : 60, {.scoring = scoring});
  }
}

// NaN in the last place, the first, or all but one.
TEST_P(RouteOnEveryIsa, EqualsTheReferenceOnRowsWithNaN) {
  Random random(6);
  for (const int64_t n : {5, 33, 256}) {
    Array logits = tied_logits(random, 4, n);
    logits.set(0, n - 1, NAN);
    logits.set(1, 0, NAN);
    for (int64_t e = 0; e < n; ++e) {
      if (e != n / 2) logits.set(2, e, NAN);
      logits.set(3, e, NAN);
    }
    for (const RouterScoring scoring : kScorings) check(logits, 5, {.scoring = scoring});
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

/// The k best indices of x by (value descending, index ascending).
std::vector<int32_t> best_indices(const std::vector<double>& x, int64_t k) {
  std::vector<int32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return x[a] > x[b]; });
  order.resize(static_cast<size_t>(k));
  return order;
}

TEST(RouteReference, SoftmaxOfTheChosenIsOverThemAlone) {
  auto reference = make_reference_ops();
  Random random(7);
  constexpr int64_t kRows = 20, kExperts = 32, kChosen = 4;
  const Array logits = tied_logits(random, kRows, kExperts);
  Array ids(DType::kI32, kRows, kChosen), weights(DType::kF32, kRows, kChosen);
  reference->route({.expert_ids = ids.view(),
                    .expert_weights = weights.view(),
                    .router_logits = logits.view(),
                    .scoring = RouterScoring::kSoftmaxOfChosen});
  for (int64_t t = 0; t < kRows; ++t) {
    std::vector<double> x;
    for (int64_t e = 0; e < kExperts; ++e) x.push_back(logits.get(t, e));
    const std::vector<int32_t> chosen = best_indices(x, kChosen);
    double sum = 0;
    for (const int32_t e : chosen) sum += std::exp(x[e]);
    for (int64_t j = 0; j < kChosen; ++j) {
      EXPECT_EQ(ids.view().row<int32_t>(t)[j], chosen[j]);
      const double expected = std::exp(x[chosen[j]]) / sum;
      EXPECT_NEAR(weights.get(t, j), expected, 14 * 0x1p-23 * expected);
    }
  }
}

// The groups are chosen by their two best corrected scores, the experts by theirs, and the weights are the
// uncorrected ones, normalized and scaled.
TEST(RouteReference, SigmoidChoosesByTheCorrectionAndWeighsWithoutIt) {
  auto reference = make_reference_ops();
  Random random(8);
  constexpr int64_t kRows = 50, kExperts = 24, kGroups = 4, kKept = 2, kSize = kExperts / kGroups,
                    kChosen = 5;
  Array logits(DType::kF32, kRows, kExperts), correction(DType::kF32, 1, kExperts);
  logits.fill(random);
  correction.fill(random, 0.5f);
  Array ids(DType::kI32, kRows, kChosen), weights(DType::kF32, kRows, kChosen);
  reference->route({.expert_ids = ids.view(),
                    .expert_weights = weights.view(),
                    .router_logits = logits.view(),
                    .scoring = RouterScoring::kSigmoid,
                    .normalize = true,
                    .scale = 2.5f,
                    .correction_bias = View(correction.view().data, DType::kF32, {kExperts}),
                    .num_groups = kGroups,
                    .groups_kept = kKept});
  int64_t rows_that_groups_change = 0;
  for (int64_t t = 0; t < kRows; ++t) {
    std::vector<double> p, q, group_scores;
    for (int64_t e = 0; e < kExperts; ++e) {
      p.push_back(1 / (1 + std::exp(-double{logits.get(t, e)})));
      q.push_back(p.back() + correction.get(0, e));
    }
    for (int64_t g = 0; g < kGroups; ++g) {
      const std::vector<double> group(q.begin() + g * kSize, q.begin() + (g + 1) * kSize);
      const std::vector<int32_t> two = best_indices(group, 2);
      group_scores.push_back(group[two[0]] + group[two[1]]);
    }
    const std::vector<int32_t> kept = best_indices(group_scores, kKept),
                               without_groups = best_indices(q, kChosen);
    for (int64_t e = 0; e < kExperts; ++e) {
      if (std::ranges::find(kept, e / kSize) == kept.end()) q[e] = -1e9;
    }
    const std::vector<int32_t> chosen = best_indices(q, kChosen);
    rows_that_groups_change += chosen != without_groups ? 1 : 0;
    double sum = 0;
    for (const int32_t e : chosen) sum += p[e];
    for (int64_t j = 0; j < kChosen; ++j) {
      EXPECT_EQ(ids.view().row<int32_t>(t)[j], chosen[j]) << "row " << t;
      const double expected = p[chosen[j]] / sum * 2.5;
      // sigmoid within 2.5 ulp above and below the line, five additions, the division and the scale.
      EXPECT_NEAR(weights.get(t, j), expected, 12 * 0x1p-23 * expected);
    }
  }
  EXPECT_GT(rows_that_groups_change, 10) << "the groups decide nothing";
}

// Expert 5 is NaN: by value it would not be among the chosen, and its row must not look sound for that.
TEST(RouteReference, ARowWithNaNIsNaNAndStillNamesExperts) {
  auto reference = make_reference_ops();
  for (const RouterScoring scoring : kScorings) {
    Array logits(DType::kF32, 1, 8), ids(DType::kI32, 1, 3), weights(DType::kF32, 1, 3);
    for (int64_t e = 0; e < 8; ++e) logits.set(0, e, e == 5 ? NAN : static_cast<float>(e));
    reference->route({.expert_ids = ids.view(),
                      .expert_weights = weights.view(),
                      .router_logits = logits.view(),
                      .scoring = scoring,
                      .normalize = true});
    std::set<int32_t> named;
    for (int32_t j = 0; j < 3; ++j) {
      named.insert(ids.view().row<int32_t>(0)[j]);
      EXPECT_TRUE(std::isnan(weights.get(0, j)));
    }
    EXPECT_EQ(named.size(), 3u);
    EXPECT_TRUE(*named.begin() >= 0 && *named.rbegin() < 8);
  }
}

}  // namespace
}  // namespace tensorfold::test
