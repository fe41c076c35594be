// route on CUDA: equal, bit for bit, to the definition with CUDA's number of partial sums; rows with a NaN by
// their rule.
#include "ops/cuda/route.h"

#include <fmt/format.h>

#include <set>

#include "ops/reference/reference_ops.h"
#include "tests/ops/cuda/device_copy.h"

namespace tensorfold::test {
namespace {

using CudaRoute = OnCudaDevice;

constexpr int kCudaPartials = 256;
constexpr RouterScoring kScorings[] = {RouterScoring::kSoftmax, RouterScoring::kSoftmaxOfChosen,
                                       RouterScoring::kSigmoid};

/// What a call says besides its logits.
struct Router {
  RouterScoring scoring = RouterScoring::kSoftmax;
  int64_t num_groups = 1, groups_kept = 1;
  bool has_correction = false;
  float scale = 1.0f;
};

/// Logits in quarter steps: many ties.
Array tied_logits(Random& random, int64_t rows, int64_t n) {
  Array logits(DType::kF32, rows, n, {2, 1});
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t e = 0; e < n; ++e) logits.set(t, e, std::round(4.0f * random.normal()) / 4.0f);
  }
  return logits;
}

/// All weights are NaN, and the experts different ones that exist. Such rows are then made equal, since which
/// experts they name is each backend's own.
void check_nan_row(Array& ids, Array& weights, Array& expected_ids, int64_t t, int64_t n,
                   const std::string& what) {
  std::set<int32_t> named;
  for (int64_t j = 0; j < ids.columns(); ++j) {
    EXPECT_TRUE(std::isnan(weights.get(t, j))) << what << ", row " << t;
    named.insert(ids.view().row<int32_t>(t)[j]);
    expected_ids.view().row<int32_t>(t)[j] = ids.view().row<int32_t>(t)[j];
  }
  EXPECT_EQ(std::ssize(named), ids.columns()) << what << ", row " << t;
  EXPECT_TRUE(*named.begin() >= 0 && *named.rbegin() < n) << what << ", row " << t;
}

void check(const Array& logits, int64_t k, const Router& router) {
  const int64_t rows = logits.rows(), n = logits.columns();
  Random random(3);
  Array correction(DType::kF32, 1, n);  // in eighths: ties too
  for (int64_t e = 0; e < n; ++e) correction.set(0, e, std::round(8.0f * random.normal()) / 8.0f);
  const DeviceInput device_logits(logits), device_correction(correction);
  for (const bool normalize : {false, true}) {
    Array ids(DType::kI32, rows, k, {1, 1}), weights(DType::kF32, rows, k, {3, 1});
    const DeviceCopy device_ids(ids), device_weights(weights);
    RouteCall call{.expert_ids = ids.view(),
                   .expert_weights = weights.view(),
                   .router_logits = logits.view(),
                   .scoring = router.scoring,
                   .normalize = normalize,
                   .scale = router.scale,
                   .num_groups = router.num_groups,
                   .groups_kept = router.groups_kept};
    if (router.has_correction) call.correction_bias = View(correction.view().data, DType::kF32, {n});
    ReferenceOps(kCudaPartials).route(call);
    call.expert_ids = device_ids.view();
    call.expert_weights = device_weights.view();
    call.router_logits = device_logits.view();
    if (router.has_correction) call.correction_bias = View(device_correction.view().data, DType::kF32, {n});
    cuda::launch_route(nullptr, cuda::route_launch(call));
    finish_launches();
    Array got_ids = device_ids.download(), got_weights = device_weights.download();
    const std::string what =
        fmt::format("{} of {} in {} of {} groups, scoring {}, correction {}, normalize {}, {} rows", k, n,
                    router.groups_kept, router.num_groups, static_cast<int>(router.scoring),
                    router.has_correction, normalize, rows);
    for (int64_t t = 0; t < rows; ++t) {
      if (std::isnan(weights.get(t, 0))) check_nan_row(got_ids, got_weights, ids, t, n, what);
    }
    expect_same(got_ids, ids, what + ": ids");
    expect_same(got_weights, weights, what + ": weights");
  }
}

TEST_F(CudaRoute, EqualsTheDefinition) {
  Random random(1);
  for (const int64_t n : {1, 2, 7, 31, 32, 33, 60, 64, 127, 128, 129, 160, 255, 256, 257, 511, 512}) {
    for (const int64_t k :
         std::set<int64_t>{1, std::min<int64_t>(n, 6), std::min<int64_t>(n, 16), std::min<int64_t>(n, 32)}) {
      for (const int64_t rows : {0, 1, 40}) {
        Array logits = tied_logits(random, rows, n);
        if (rows == 40) sprinkle_specials(logits, random);
        for (const RouterScoring scoring : kScorings) check(logits, k, {.scoring = scoring, .scale = 2.5f});
        check(logits, k, {.scoring = RouterScoring::kSigmoid, .has_correction = true});
      }
    }
  }
}

// Untied logits: the sums round, and a wrong order of theirs shows.
TEST_F(CudaRoute, EqualsTheDefinitionAtThePublishedSizes) {
  constexpr int64_t kShapes[][2] = {{256, 8}, {32, 4}, {128, 4}, {128, 6}, {512, 22}, {160, 8}};
  Random random(2);
  for (const auto& [n, k] : kShapes) {
    Array logits(DType::kF32, 700, n);
    logits.fill(random, 2.0f);
    for (const RouterScoring scoring : kScorings) check(logits, k, {.scoring = scoring, .scale = 1.5f});
    check(logits, k, {.scoring = RouterScoring::kSigmoid, .has_correction = true, .scale = 2.5f});
  }
}

TEST_F(CudaRoute, EqualsTheDefinitionInGroups) {
  Random random(4);
  constexpr int64_t kShapes[][4] = {// experts, groups, groups kept, k
                                    {8, 8, 3, 3},   {16, 4, 2, 5},  {60, 4, 1, 15},   {64, 8, 4, 8},
                                    {256, 8, 4, 8}, {160, 1, 1, 8}, {512, 16, 3, 10}, {512, 32, 5, 16}};
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
TEST_F(CudaRoute, EqualsTheDefinitionOnZerosDenormalsAndInfinities) {
  constexpr uint32_t kValues[] = {0u,          0x80000000u, 1u,          0x807fffffu,
                                  0xff800000u, 0xff7fffffu, 0x7f800000u, 0x00800000u};
  Random random(5);
  for (const int64_t n : {8, 40, 300}) {
    Array logits(DType::kF32, 20, n);
    for (int64_t t = 0; t < 20; ++t) {
      for (int64_t e = 0; e < n; ++e)
        logits.set(t, e, bits_as<float>(kValues[random.below(std::size(kValues))]));
    }
    for (const RouterScoring scoring : kScorings) check(logits, n < 100 ? n / 2 : 30, {.scoring = scoring});
  }
}

// NaN in the last place, the first, in all but one, in all.
TEST_F(CudaRoute, ARowWithNaNIsNaNAndStillNamesExperts) {
  Random random(6);
  for (const int64_t n : {5, 33, 256}) {
    Array logits = tied_logits(random, 5, n);
    logits.set(0, n - 1, NAN);
    logits.set(1, 0, NAN);
    for (int64_t e = 0; e < n; ++e) {
      if (e != n / 2) logits.set(2, e, NAN);
      logits.set(3, e, NAN);
    }
    for (const RouterScoring scoring : kScorings) check(logits, 5, {.scoring = scoring});
  }
}

TEST(CudaRouteLaunch, SaysWhatItDoesNotTake) {
  const auto message = [](int64_t num_experts, int64_t num_choices, int64_t num_groups) {
    return cuda::check_route(num_experts, num_choices, num_groups).message();
  };
  EXPECT_EQ(message(512, 32, 32), "");
  EXPECT_EQ(
      message(513, 8, 1),
      "a router of 513 experts in 1 groups, 8 a token: CUDA takes up to 512 in 32 groups, 32 a token; the "
      "CPU any number (--device cpu)");
  EXPECT_NE(message(512, 33, 1), "");
  EXPECT_NE(message(66, 2, 33), "");
}

}  // namespace
}  // namespace tensorfold::test
