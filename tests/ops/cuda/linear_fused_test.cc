// linear() that norms its rows itself: to the bit what the norm's own launch and linear()'s give.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "ops/cuda/linear.h"
#include "ops/cuda/norms.h"
#include "tests/ops/cuda/cuda_test_util.h"
#include "tests/ops/random_linear.h"

namespace tensorfold::cuda {
namespace {

constexpr int kMatrices = 4;

std::vector<float> random_floats(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = normal(random);
  return values;
}

LinearSpec affine(int64_t out, int64_t in, int bits, int group, DType dtype = DType::kBF16) {
  return affine_spec(out, in, bits, group, dtype);
}
LinearSpec dense(int64_t out, int64_t in, DType dtype = DType::kBF16) { return float_spec(out, in, dtype); }

template <class T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// Matrices of one format times one normed x: plain, with a bias, added to what is there, and rounded to
/// bf16.
class NormThenLinear {
 public:
  NormThenLinear(const LinearSpec& spec, int64_t max_rows)
      : spec_(spec),
        stride_(spec.in + 40),
        h_(random_floats(max_rows * stride_, 1)),
        norm_weight_(random_floats(spec.in, 2)),
        bias_(random_floats(spec.out, 3)),
        packed_(pack(spec)) {
    // NaN between the rows of the residual, which nothing may read.
    std::vector<float> h = h_.download();
    for (int64_t t = 0; t < max_rows; ++t) std::fill_n(h.begin() + t * stride_ + spec.in, 40, std::nanf(""));
    h_.upload(h);
  }

  struct Result {
    std::vector<bf16> normed;
    std::vector<float> outs;
    std::vector<bf16> rounded;
    bool guards_intact;
  };

  /// `is_fused`: the norm inside of the linear()'s launch. Runs twice in a row, as a pass of two layers
  /// would.
  Result run(int64_t rows, bool is_fused) const {
    DeviceArray<bf16> normed(static_cast<size_t>(rows * (spec_.in + 8)));
    DeviceArray<float> outs(static_cast<size_t>(3 * rows * spec_.out));
    DeviceArray<bf16> rounded(static_cast<size_t>(rows * spec_.out));
    normed.upload(std::vector<bf16>(normed.size(), bf16{0x7fff}));
    outs.upload(std::vector<float>(outs.size(), 2.5f));
    View h(h_.data(), DType::kF32, {rows, spec_.in}), x(normed.data(), DType::kBF16, {rows, spec_.in});
    h.row_stride = stride_, x.row_stride = spec_.in + 8;
    const auto out = [&](int64_t i) {
      return View(outs.data() + i * rows * spec_.out, DType::kF32, {rows, spec_.out});
    };
    const LinearWeight plain{.spec = spec_, .data = packed_.data()};
    const LinearWeight biased{.spec = spec_, .data = packed_.data(), .bias = bias_.data()};
    const std::array<LinearCall, kMatrices> calls = {
        LinearCall{.out = out(0), .weight = plain}, LinearCall{.out = out(1), .weight = biased},
        LinearCall{.out = out(2), .weight = biased, .accumulate = true},
        LinearCall{.out = View(rounded.data(), DType::kBF16, {rows, spec_.out}), .weight = plain}};
    const RmsNormLaunch norm =
        rms_norm_launch(x, h, View(norm_weight_.data(), DType::kF32, {spec_.in}), {.eps = 1e-6f});
    std::vector<LinearLaunch> launches = linear_launches(x, calls, LinearKernel::kDecode);
    EXPECT_EQ(launches.size(), 1u);
    EXPECT_TRUE(can_fuse_norm(launches[0], norm));
    for (int layer = 0; layer < 2; ++layer) {
      if (is_fused) {
        LinearLaunch launch = launches[0];
        fuse_norm(launch, norm);
        launch.x = nullptr;  // Not read.
        launch_linear(nullptr, launch);
      } else {
        launch_rms_norm(nullptr, norm);
        launch_linear(nullptr, launches[0]);
      }
    }
    cuda_check(cudaDeviceSynchronize());
    return {normed.download(), outs.download(), rounded.download(),
            normed.guards_intact() && outs.guards_intact() && rounded.guards_intact()};
  }

 private:
  static std::vector<std::byte> pack(const LinearSpec& spec) {
    const RandomMatrix host(spec, 5);
    std::vector<std::byte> bytes(static_cast<size_t>(packed_bytes(spec)));
    pack_linear(spec, host.source(), bytes);
    return bytes;
  }

  LinearSpec spec_;
  int64_t stride_;
  DeviceArray<float> h_, norm_weight_, bias_;
  DeviceArray<std::byte> packed_;
};

/// Widths below, at and off a partial's, a unit's and a segment's; the widest one that is fused; groups of
/// 128, whose padding reaches beyond the row; x that needs a cluster (16 rows of 6,144).
const LinearSpec kSpecs[] = {
    affine(48, 64, 4, 64),
    affine(100, 576, 4, 64),
    affine(257, 5120, 4, 64),
    affine(320, 1152, 4, 128),
    affine(2300, 6144, 4, 64),
    affine(33, 96, 4, 32),
    affine(300, 4096, 8, 64),
    affine(96, 2880, 6, 64),
    affine(40, 640, 4, 64, DType::kF16),
    mxfp4_spec(130, 2880),
    dense(130, 1000),
    dense(512, 4096),
    dense(20, 8),
    dense(32, 2880, DType::kF32),
};

TEST(CudaFusedNorm, GivesTheBitsOfTwoLaunches) {
  if (!have_device()) GTEST_SKIP() << "no sm_90 device";
  for (const LinearSpec& spec : kSpecs) {
    const NormThenLinear chain(spec, 32);
    for (const int64_t rows : {1, 2, 3, 4, 7, 8, 9, 16, 17, 32}) {
      const NormThenLinear::Result expected = chain.run(rows, false), got = chain.run(rows, true);
      EXPECT_TRUE(expected.guards_intact && got.guards_intact);
      // The inputs are not degenerate: bias and sum show.
      ASSERT_NE(expected.outs[0], expected.outs[static_cast<size_t>(rows * spec.out)]);
      EXPECT_TRUE(same_bytes(got.normed, expected.normed)) << to_string(spec) << ", " << rows << " rows";
      EXPECT_TRUE(same_bytes(got.outs, expected.outs)) << to_string(spec) << ", " << rows << " rows";
      EXPECT_TRUE(same_bytes(got.rounded, expected.rounded)) << to_string(spec) << ", " << rows << " rows";
    }
  }
}

/// What the host decides needs no device: nothing is read.
TEST(CudaFusedNorm, IsForTheRowsThatTheNormWritesAlone) {
  constexpr int64_t kRows = 2, kIn = 128;
  alignas(16) static std::array<float, kRows * kIn> h, out, weight;
  alignas(16) static std::array<bf16, kRows * kIn> x, other;
  const auto f32 = [](auto& array) { return View(array.data(), DType::kF32, {kRows, kIn}); };
  const View normed(x.data(), DType::kBF16, {kRows, kIn}),
      elsewhere(other.data(), DType::kBF16, {kRows, kIn});
  const View weights(weight.data(), DType::kF32, {kIn});
  const auto linear_of = [&](View from, View to, bool accumulate, LinearKernel kernel) {
    const LinearCall call{.out = to, .weight = {.spec = affine(kIn, kIn, 4, 64)}, .accumulate = accumulate};
    return linear_launches(from, {&call, 1}, kernel).at(0);
  };
  const LinearLaunch plain = linear_of(normed, f32(out), false, LinearKernel::kDecode);
  const RmsNormLaunch norm = rms_norm_launch(normed, f32(h), weights, {});
  EXPECT_TRUE(can_fuse_norm(plain, norm));
  EXPECT_FALSE(can_fuse_norm(linear_of(normed, f32(out), false, LinearKernel::kWide), norm));
  EXPECT_FALSE(can_fuse_norm(linear_of(elsewhere, f32(out), false, LinearKernel::kDecode), norm));
  EXPECT_FALSE(
      can_fuse_norm(linear_of(normed.rows(1, 1), f32(out).rows(1, 1), false, LinearKernel::kDecode), norm));
  EXPECT_FALSE(
      can_fuse_norm(linear_of(normed.rows(0, 1), f32(out).rows(0, 1), false, LinearKernel::kDecode), norm));
  EXPECT_FALSE(can_fuse_norm(plain, rms_norm_launch(f32(out), f32(h), weights, {})));
  // Sums onto the residual that other blocks are still reading.
  EXPECT_FALSE(can_fuse_norm(linear_of(normed, f32(h), true, LinearKernel::kDecode), norm));
  LinearLaunch fused = plain;
  fuse_norm(fused, norm);
  EXPECT_FALSE(can_fuse_norm(fused, norm));
}

TEST(CudaFusedNorm, IsForRowsThatRegistersHold) {
  alignas(16) static std::array<bf16, kMaxFusedNormColumns + 64> x;
  static std::array<float, kMaxFusedNormColumns + 64> h;
  static std::array<float, 16> out;
  for (const int64_t in : {kMaxFusedNormColumns, kMaxFusedNormColumns + 64}) {
    const View normed(x.data(), DType::kBF16, {1, in});
    const LinearCall call{.out = View(out.data(), DType::kF32, {1, 16}), .weight = {.spec = dense(16, in)}};
    const RmsNormLaunch norm =
        rms_norm_launch(normed, View(h.data(), DType::kF32, {1, in}), View(h.data(), DType::kF32, {in}), {});
    EXPECT_EQ(can_fuse_norm(linear_launches(normed, {&call, 1}).at(0), norm), in == kMaxFusedNormColumns);
  }
}

}  // namespace
}  // namespace tensorfold::cuda
