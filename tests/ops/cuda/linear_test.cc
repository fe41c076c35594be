// linear() on CUDA: right within a derived bound, and a row's bits independent of rows, kernel and company.
#include "ops/cuda/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "tests/ops/cuda/cuda_test_util.h"

namespace tensorfold::cuda {
namespace {

class CudaLinearTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!have_device()) GTEST_SKIP() << "no sm_90 device";
  }
};

LinearSpec affine4(int64_t out, int64_t in, int group) {
  return {.out = out, .in = in, .format = WeightFormat::kAffine, .dtype = DType::kBF16, .bits = 4, .group_size = group};
}
LinearSpec dense(int64_t out, int64_t in) {
  return {.out = out, .in = in, .format = WeightFormat::kFloat, .dtype = DType::kBF16, .bits = 16, .group_size = 0};
}

/// A matrix on the device, packed.
struct DeviceMatrix {
  RandomMatrix host;
  DeviceArray<std::byte> packed;
  DeviceMatrix(const LinearSpec& spec, uint32_t seed) : host(spec, seed), packed(pack(host)) {}
  static std::vector<std::byte> pack(const RandomMatrix& m) {
    std::vector<std::byte> bytes(static_cast<size_t>(packed_bytes(m.spec)));
    pack_linear(m.spec, m.source(), bytes);
    return bytes;
  }
  LinearWeight weight(const float* bias = nullptr) const {
    return {.spec = host.spec, .data = packed.data(), .bias = bias};
  }
};

int64_t padded(int64_t in) { return (in + 127) / 128 * 128; }

/// Rows of x with the padding that linear() reads.
std::vector<bf16> make_x(int64_t rows, int64_t in, uint32_t seed) {
  std::vector<bf16> x = random_bf16(static_cast<size_t>(rows * padded(in)), seed);
  return x;
}

View x_view(const DeviceArray<bf16>& x, int64_t first_row, int64_t rows, int64_t in) {
  View v(x.data() + first_row * padded(in), DType::kBF16, {rows, in});
  v.row_stride = padded(in);
  return v;
}

std::vector<float> run(const DeviceMatrix& m, View x, LinearKernel kernel) {
  DeviceArray<float> out(static_cast<size_t>(x.num_rows() * m.host.spec.out));
  const LinearCall call{.out = View(out.data(), DType::kF32, {x.num_rows(), m.host.spec.out}), .weight = m.weight()};
  linear(nullptr, x, {&call, 1}, kernel);
  cuda_check(cudaDeviceSynchronize());
  EXPECT_TRUE(out.guards_intact());
  return out.download();
}

const LinearSpec kSpecs[] = {
    affine4(16, 64, 64),     affine4(48, 512, 64),   affine4(100, 576, 64),  affine4(129, 1536, 32),
    affine4(257, 5120, 64),  affine4(320, 1024, 128), affine4(64, 640, 128), affine4(5120, 2048, 64),
    affine4(33, 96, 32),     dense(16, 64),          dense(130, 1000),       dense(512, 4096),
};

TEST_F(CudaLinearTest, IsTheProductWithinTheRoundingOfItsSteps) {
  uint32_t seed = 1;
  for (const LinearSpec& spec : kSpecs) {
    const DeviceMatrix m(spec, seed++);
    constexpr int64_t kRows = 5;
    const std::vector<bf16> x_host = make_x(kRows, spec.in, seed++);
    const DeviceArray<bf16> x(x_host);
    for (LinearKernel kernel : {LinearKernel::kDecode, LinearKernel::kWide}) {
      const std::vector<float> got = run(m, x_view(x, 0, kRows, spec.in), kernel);
      double spread = 0;
      for (int64_t t = 0; t < kRows; ++t) {
        for (int64_t o = 0; o < spec.out; ++o) {
          double sum = 0, magnitude = 0;
          for (int64_t k = 0; k < spec.in; ++k) {
            const double product = m.host.value(o, k) * to_float(x_host[static_cast<size_t>(t * padded(spec.in) + k)]);
            sum += product;
            magnitude += std::abs(product);
          }
          spread = std::max(spread, std::abs(sum));
          // Each of the in/16 steps and 8 tree additions rounds once, at worst by truncation (2^-23 of the partial
          // sum's bound), and inside a step products are aligned to the largest with 24 bits: one more unit.
          const double bound = magnitude * std::ldexp(static_cast<double>(spec.in) / 16 + 8, -22);
          ASSERT_NEAR(got[static_cast<size_t>(t * spec.out + o)], sum, bound)
              << to_string(spec) << " row " << t << " output " << o << " kernel " << static_cast<int>(kernel);
        }
      }
      ASSERT_GT(spread, 0.1);
    }
  }
}

TEST_F(CudaLinearTest, ARowsBitsDependOnNeitherRowsNorKernel) {
  uint32_t seed = 100;
  for (const LinearSpec& spec : kSpecs) {
    const DeviceMatrix m(spec, seed++);
    constexpr int64_t kRows = 300;
    const DeviceArray<bf16> x(make_x(kRows, spec.in, seed++));
    std::vector<float> alone;
    for (int64_t t = 0; t < kRows; t += 1) {
      const std::vector<float> row = run(m, x_view(x, t, 1, spec.in), LinearKernel::kDecode);
      alone.insert(alone.end(), row.begin(), row.end());
    }
    for (LinearKernel kernel : {LinearKernel::kDecode, LinearKernel::kWide}) {
      for (int64_t rows : {1, 2, 7, 8, 9, 15, 16, 17, 64, 127, 128, 129, 300}) {
        const int64_t first = (rows * 7) % (kRows - rows + 1);
        const std::vector<float> got = run(m, x_view(x, first, rows, spec.in), kernel);
        ASSERT_EQ(std::memcmp(got.data(), alone.data() + first * spec.out, got.size() * sizeof(float)), 0)
            << to_string(spec) << ", " << rows << " rows, kernel " << static_cast<int>(kernel);
      }
    }
  }
}

TEST_F(CudaLinearTest, SharedLaunchesBiasesAndResidualsAreThoseOfSeparateOnes) {
  constexpr int64_t kIn = 640, kRows = 37;
  const int64_t outs[] = {130, 16, 200};
  std::vector<std::unique_ptr<DeviceMatrix>> matrices;
  for (int64_t out : outs) matrices.push_back(std::make_unique<DeviceMatrix>(affine4(out, kIn, 64), 7 + out));
  const DeviceArray<bf16> x(make_x(kRows, kIn, 5));
  const View xv = x_view(x, 0, kRows, kIn);
  std::vector<float> bias_host(200);
  for (size_t i = 0; i < bias_host.size(); ++i) bias_host[i] = 0.37f * static_cast<float>(i) - 9.0f;
  const DeviceArray<float> bias(bias_host);

  for (LinearKernel kernel : {LinearKernel::kDecode, LinearKernel::kWide}) {
    // One wide output with the three results side by side; the third adds to what is there.
    constexpr int64_t kWidth = 130 + 16 + 200;
    DeviceArray<float> out(kRows * kWidth);
    std::vector<float> before(kRows * kWidth, 2.5f);
    out.upload(before);
    const View all(out.data(), DType::kF32, {kRows, kWidth});
    const LinearCall calls[] = {
        {.out = all.columns(0, 130), .weight = matrices[0]->weight()},
        {.out = all.columns(130, 16), .weight = matrices[1]->weight(bias.data())},
        {.out = all.columns(146, 200), .weight = matrices[2]->weight(bias.data()), .accumulate = true},
    };
    linear(nullptr, xv, calls, kernel);
    cuda_check(cudaDeviceSynchronize());
    EXPECT_TRUE(out.guards_intact());
    const std::vector<float> got = out.download();
    int64_t column = 0;
    for (int c = 0; c < 3; ++c) {
      const std::vector<float> plain = run(*matrices[c], xv, LinearKernel::kDecode);
      for (int64_t t = 0; t < kRows; ++t) {
        for (int64_t o = 0; o < outs[c]; ++o) {
          float expected = plain[static_cast<size_t>(t * outs[c] + o)];
          if (c > 0) expected += bias_host[static_cast<size_t>(o)];
          if (c == 2) expected = 2.5f + expected;
          ASSERT_EQ(got[static_cast<size_t>(t * kWidth + column + o)], expected) << c << " " << t << " " << o;
        }
      }
      column += outs[c];
    }
  }
}

}  // namespace
}  // namespace tensorfold::cuda
