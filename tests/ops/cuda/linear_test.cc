// linear() on CUDA: right within a derived bound, and a row's bits independent of rows, kernel and company.
#include "ops/cuda/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "tests/ops/cuda/cuda_test_util.h"
#include "tests/ops/random_linear.h"

namespace tensorfold::cuda {
namespace {

using enum LinearTuning::Tile;

/// A way to compute a product. Layouts without tiles of few rows take kFew as kMany.
struct Way {
  LinearKernel kernel;
  LinearTuning tuning = {};
  bool draws = false;  ///< LinearLaunch::drawn_tiles

  std::string name() const {
    if (kernel == LinearKernel::kDecode) return draws ? "decode, tiles drawn" : "decode";
    if (kernel == LinearKernel::kShort) return "short";
    return std::string(tuning.wide_tile == kFew ? "few/" : "wide/") + std::to_string(tuning.wide_split) +
           "x" + std::to_string(tuning.wide_share);
  }
  void launch(CUstream_st* stream, View x, std::span<const LinearCall> calls) const {
    for (LinearLaunch& launch : linear_launches(x, calls, kernel)) {
      launch.tuning = tuning;
      if (draws) {
        static DeviceArray<int32_t> drawn(1);
        cuda_check(cudaMemsetAsync(drawn.data(), 0, sizeof(int32_t), stream));
        launch.drawn_tiles = drawn.data();
      }
      launch_linear(stream, launch);
    }
  }
};
constexpr Way kDecode{LinearKernel::kDecode};
constexpr Way kWays[] = {kDecode,
                         {.kernel = LinearKernel::kDecode, .draws = true},
                         {LinearKernel::kShort},
                         {LinearKernel::kWide, {1, 1, kMany}},
                         {LinearKernel::kWide, {1, 2, kMany}},
                         {LinearKernel::kWide, {2, 1, kMany}},
                         {LinearKernel::kWide, {4, 1, kMany}},
                         {LinearKernel::kWide, {1, 1, kFew}},
                         {LinearKernel::kWide, {1, 2, kFew}},
                         {LinearKernel::kWide, {2, 1, kFew}},
                         {LinearKernel::kWide, {4, 1, kFew}}};

class CudaLinearTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!have_device()) GTEST_SKIP() << "no sm_90 device";
  }
};

LinearSpec affine(int64_t out, int64_t in, int bits, int group, DType dtype = DType::kBF16) {
  return affine_spec(out, in, bits, group, dtype);
}
LinearSpec dense(int64_t out, int64_t in, DType dtype = DType::kBF16) { return float_spec(out, in, dtype); }

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

/// Rows of x with NaN between and behind them, which nothing may read.
struct DeviceX {
  int64_t in, stride;
  std::vector<bf16> host;
  DeviceArray<bf16> device;
  DeviceX(int64_t rows, int64_t columns, uint32_t seed)
      : in(columns), stride(columns + 24), host(make(rows, columns, seed)), device(host) {}
  static std::vector<bf16> make(int64_t rows, int64_t columns, uint32_t seed) {
    const std::vector<bf16> values = random_bf16(static_cast<size_t>(rows * columns), seed);
    std::vector<bf16> x(static_cast<size_t>(rows * (columns + 24)), bf16{0x7fff});
    for (int64_t t = 0; t < rows; ++t)
      std::copy_n(values.begin() + t * columns, columns, x.begin() + t * (columns + 24));
    return x;
  }
  float value(int64_t row, int64_t column) const {
    return to_float(host[static_cast<size_t>(row * stride + column)]);
  }
  View rows(int64_t first, int64_t count) const {
    View v(device.data() + first * stride, DType::kBF16, {count, in});
    v.row_stride = stride;
    return v;
  }
};

std::vector<float> run(const DeviceMatrix& m, View x, const Way& way) {
  DeviceArray<float> out(static_cast<size_t>(x.num_rows() * m.host.spec.out));
  const LinearCall call{.out = View(out.data(), DType::kF32, {x.num_rows(), m.host.spec.out}),
                        .weight = m.weight()};
  way.launch(nullptr, x, {&call, 1});
  cuda_check(cudaDeviceSynchronize());
  EXPECT_TRUE(out.guards_intact());
  return out.download();
}

/// Shapes that models have and awkward ones, in the formats whose speed matters.
const LinearSpec kSpecs[] = {
    affine(16, 64, 4, 64),
    affine(48, 512, 4, 64),
    affine(100, 576, 4, 64),
    affine(129, 1536, 4, 32),
    affine(257, 5120, 4, 64),
    affine(320, 1024, 4, 128),
    affine(64, 640, 4, 128),
    affine(5120, 2048, 4, 64),
    affine(4260, 2880, 4, 64),  // An odd number of tiles; more chunks than registers hold of two.
    affine(13000, 320, 4, 64),  // More tiles than multiprocessors take at once.
    affine(33, 96, 4, 32),
    affine(300, 4096, 8, 64),
    affine(77, 576, 8, 64),
    affine(96, 2880, 6, 64),
    mxfp4_spec(130, 2880),
    mxfp4_spec(40, 32),
    dense(16, 64),
    dense(130, 1000),
    dense(512, 4096),
    dense(32, 2880, DType::kF32),
    dense(20, 8),
};

/// Every format, at one shape with a short last tile, short segments and, but for groups of 32, a short last
/// unit.
std::vector<LinearSpec> every_format() {
  std::vector<LinearSpec> specs;
  for (const LinearSpec& spec : all_specs(50, 17)) {
    specs.push_back(spec);
    if (spec.format == WeightFormat::kFloat) specs.back().in = 1048;
  }
  return specs;
}
std::vector<LinearSpec> all_test_specs() {
  std::vector<LinearSpec> specs = every_format();
  specs.insert(specs.end(), std::begin(kSpecs), std::end(kSpecs));
  return specs;
}

/// How far a sum of products with the given total magnitude may be from the real number. Each of the in/16
/// steps (times its parts) and 8 tree additions rounds once, at worst by truncation (2^-23 of the partial
/// sum's bound), and inside a step products are aligned to the largest with 24 bits: one more unit.
double bound_of(const LinearSpec& spec, double magnitude) {
  const double parts = spec.format == WeightFormat::kFloat ? dtype_bytes(spec.dtype) : 1;
  return magnitude * std::ldexp(parts * static_cast<double>(spec.in) / 16 + 8, -22);
}

TEST_F(CudaLinearTest, IsTheProductWithinTheRoundingOfItsSteps) {
  constexpr int64_t kRows = 5;
  uint32_t seed = 1;
  for (const LinearSpec& spec : all_test_specs()) {
    const DeviceMatrix m(spec, seed++);
    const DeviceX x(kRows, spec.in, seed++);
    std::vector<double> sums(static_cast<size_t>(kRows * spec.out)), magnitudes(sums.size());
    double spread = 0;
    for (int64_t o = 0; o < spec.out; ++o) {
      for (int64_t k = 0; k < spec.in; ++k) {
        const double w = m.host.value(o, k);
        // Where the integer is kept, scale * q and bias are summed apart: both count.
        double parts = std::abs(w);
        if (layout_of(spec).keeps_integers())
          parts = std::abs(static_cast<double>(m.host.scale(o, k)) * m.host.integer(o, k)) +
                  std::abs(m.host.bias(o, k));
        for (int64_t t = 0; t < kRows; ++t) {
          sums[static_cast<size_t>(t * spec.out + o)] += w * x.value(t, k);
          magnitudes[static_cast<size_t>(t * spec.out + o)] += parts * std::abs(x.value(t, k));
        }
      }
      spread = std::max(spread, std::abs(sums[static_cast<size_t>(o)]));
    }
    ASSERT_GT(spread, spec.in > 32 ? 0.1 : 0.01) << to_string(spec);
    for (const Way& way : kWays) {
      const std::vector<float> got = run(m, x.rows(0, kRows), way);
      for (size_t i = 0; i < got.size(); ++i) {
        if (std::abs(got[i] - sums[i]) <= bound_of(spec, magnitudes[i])) continue;
        ADD_FAILURE() << to_string(spec) << " element " << i << " " << way.name() << ": " << got[i]
                      << ", expected " << sums[i] << " within " << bound_of(spec, magnitudes[i]);
        break;
      }
    }
  }
}

TEST_F(CudaLinearTest, ARowsBitsDependOnNeitherRowsNorKernel) {
  constexpr int64_t kRows = 300;
  uint32_t seed = 100;
  for (const LinearSpec& spec : all_test_specs()) {
    const DeviceMatrix m(spec, seed++);
    const DeviceX x(kRows, spec.in, seed++);
    // Each row alone, all in flight at once.
    DeviceArray<float> alone_out(static_cast<size_t>(kRows * spec.out));
    for (int64_t t = 0; t < kRows; ++t) {
      const LinearCall call{.out = View(alone_out.data() + t * spec.out, DType::kF32, {1, spec.out}),
                            .weight = m.weight()};
      linear(nullptr, x.rows(t, 1), {&call, 1}, LinearKernel::kDecode);
    }
    cuda_check(cudaDeviceSynchronize());
    ASSERT_TRUE(alone_out.guards_intact());
    const std::vector<float> alone = alone_out.download();
    for (const Way& way : kWays) {
      for (int64_t rows : {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 300}) {
        const int64_t first = (rows * 7) % (kRows - rows + 1);
        const std::vector<float> got = run(m, x.rows(first, rows), way);
        if (std::memcmp(got.data(), alone.data() + first * spec.out, got.size() * sizeof(float)) == 0)
          continue;
        ADD_FAILURE() << to_string(spec) << ", " << rows << " rows, " << way.name();
        break;
      }
    }
  }
}

/// The definition where integers are kept, for x of small integers: then d and xs are exact whatever their
/// order, and the rest is fp32 in the order of arithmetic.md.
float exact_product(const RandomMatrix& m, const DeviceX& x, int64_t row, int64_t output) {
  const int64_t group = m.spec.group_size, unit = std::max<int64_t>(64, group);
  const int64_t segment = unit * ((m.spec.in + 8 * unit - 1) / (8 * unit));
  float s[8] = {};
  for (int64_t begin = 0; begin < m.spec.in; begin += group) {
    float d = 0, xs = 0;
    for (int64_t k = begin; k < begin + group; ++k) {
      d += x.value(row, k) * static_cast<float>(m.integer(output, k));
      xs += x.value(row, k);
    }
    float& acc = s[begin / segment];
    acc = std::fma(m.scale(output, begin), d, std::fma(m.bias(output, begin), xs, acc));
  }
  return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

TEST_F(CudaLinearTest, WhereIntegersAreKeptScaleAndBiasMultiplyAGroupsSums) {
  constexpr int64_t kRows = 9;  // kShort takes all but the last.
  for (const LinearSpec& spec : every_format()) {
    if (!layout_of(spec).keeps_integers()) continue;
    const DeviceMatrix m(spec, 11);
    DeviceX x(kRows, spec.in, 12);
    for (bf16& v : x.host) {
      if (v.bits != 0x7fff) v = to_bf16(std::round(4.0f * to_float(v)));
    }
    x.device.upload(x.host);
    for (const Way& way : kWays) {
      const int64_t num_rows = way.kernel == LinearKernel::kShort ? kMaxShortRows : kRows;
      const std::vector<float> got = run(m, x.rows(0, num_rows), way);
      for (int64_t t = 0; t < num_rows; ++t) {
        for (int64_t o = 0; o < spec.out; ++o) {
          ASSERT_EQ(got[static_cast<size_t>(t * spec.out + o)], exact_product(m.host, x, t, o))
              << to_string(spec) << " row " << t << " output " << o << " " << way.name();
        }
      }
    }
  }
}

/// Weights rounded to bf16 show one by one: x has a single one in each row.
TEST_F(CudaLinearTest, AWeightIsTheOneThatItsFormatDefines) {
  for (const LinearSpec& spec : every_format()) {
    const DeviceMatrix m(spec, 21);
    const int64_t rows = std::min<int64_t>(spec.in, 200);
    DeviceX x(rows, spec.in, 22);
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t k = 0; k < spec.in; ++k)
        x.host[static_cast<size_t>(t * x.stride + k)] = to_bf16(k == t * 37 % spec.in ? 1.0f : 0.0f);
    }
    x.device.upload(x.host);
    const std::vector<float> got = run(m, x.rows(0, rows), kDecode);
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t o = 0; o < spec.out; ++o) {
        // Where the integer is kept: fma(scale, q, bias * 1).
        const float expected = layout_of(spec).keeps_integers()
                                   ? m.host.element(o, t * 37 % spec.in)
                                   : static_cast<float>(m.host.value(o, t * 37 % spec.in));
        ASSERT_EQ(got[static_cast<size_t>(t * spec.out + o)], expected)
            << to_string(spec) << " row " << t << " output " << o;
      }
    }
  }
}

/// Calls of four formats, five in all, so that they need several launches; one output beside the other, the
/// third with a bias, the fourth added to what is there, the fifth in bf16.
TEST_F(CudaLinearTest, CallsOfSeveralFormatsBiasesAndResidualsAreThoseOfSeparateOnes) {
  constexpr int64_t kIn = 640, kMostRows = 37;
  const LinearSpec specs[] = {affine(130, kIn, 4, 64), affine(16, kIn, 4, 64), affine(200, kIn, 8, 64),
                              dense(24, kIn), mxfp4_spec(48, kIn)};
  std::vector<std::unique_ptr<DeviceMatrix>> matrices;
  for (const LinearSpec& spec : specs) matrices.push_back(std::make_unique<DeviceMatrix>(spec, 7 + spec.out));
  const DeviceX x(kMostRows, kIn, 5);
  std::vector<float> bias_host(200);
  for (size_t i = 0; i < bias_host.size(); ++i) bias_host[i] = 0.37f * static_cast<float>(i) - 9.0f;
  const DeviceArray<float> bias(bias_host);

  for (const Way& way : kWays) {
    const int64_t num_rows = way.kernel == LinearKernel::kShort ? 5 : kMostRows;
    constexpr int64_t kWidth = 130 + 16 + 200 + 24;
    DeviceArray<float> out(static_cast<size_t>(num_rows * kWidth));
    out.upload(std::vector<float>(out.size(), 2.5f));
    DeviceArray<bf16> out_bf16(static_cast<size_t>(num_rows * 48));
    const View all(out.data(), DType::kF32, {num_rows, kWidth});
    const LinearCall calls[] = {
        {.out = all.columns(0, 130), .weight = matrices[0]->weight()},
        {.out = all.columns(130, 16), .weight = matrices[1]->weight()},
        {.out = all.columns(146, 200), .weight = matrices[2]->weight(bias.data())},
        {.out = all.columns(346, 24), .weight = matrices[3]->weight(bias.data()), .accumulate = true},
        {.out = View(out_bf16.data(), DType::kBF16, {num_rows, 48}), .weight = matrices[4]->weight()},
    };
    const std::vector<LinearLaunch> launches = linear_launches(x.rows(0, num_rows), calls, way.kernel);
    ASSERT_EQ(launches.size(), 4u);
    EXPECT_EQ(launches[0].num_calls, 2);
    way.launch(nullptr, x.rows(0, num_rows), calls);
    cuda_check(cudaDeviceSynchronize());
    EXPECT_TRUE(out.guards_intact() && out_bf16.guards_intact());
    const std::vector<float> got = out.download();
    const std::vector<bf16> got_bf16 = out_bf16.download();
    int64_t column = 0;
    for (int c = 0; c < 5; ++c) {
      const std::vector<float> plain = run(*matrices[c], x.rows(0, num_rows), kDecode);
      for (int64_t t = 0; t < num_rows; ++t) {
        for (int64_t o = 0; o < specs[c].out; ++o) {
          float expected = plain[static_cast<size_t>(t * specs[c].out + o)];
          if (c == 2 || c == 3) expected += bias_host[static_cast<size_t>(o)];
          if (c == 3) expected = 2.5f + expected;
          if (c == 4) {
            ASSERT_EQ(got_bf16[static_cast<size_t>(t * 48 + o)], to_bf16(expected)) << t << " " << o;
          } else {
            ASSERT_EQ(got[static_cast<size_t>(t * kWidth + column + o)], expected)
                << c << " " << t << " " << o;
          }
        }
      }
      if (c < 4) column += specs[c].out;
    }
  }
}

// Two or three tiles a block, of which one block has the last of one matrix and the first of the next.
class CudaShortBlocksTest : public CudaLinearTest, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Tiles, CudaShortBlocksTest, testing::Values(2, 3));
TEST_P(CudaShortBlocksTest, MaySpanMatrices) {
  constexpr int64_t kIn = 1024, kRows = 3;
  const int tiles = GetParam();
  const DeviceMatrix first(affine(16 * 132 + 5, kIn, 4, 64), 21),
      second(affine(tiles == 2 ? 16 * 140 : 16 * 401, kIn, 4, 64), 22);
  const DeviceX x(kRows, kIn, 23);
  const auto products = [&](LinearKernel kernel) {
    const int64_t width = first.host.spec.out + second.host.spec.out;
    const DeviceArray<float> out(static_cast<size_t>(kRows * width));
    const View all(out.data(), DType::kF32, {kRows, width});
    const LinearCall calls[] = {
        {.out = all.columns(0, first.host.spec.out), .weight = first.weight()},
        {.out = all.columns(first.host.spec.out, second.host.spec.out), .weight = second.weight()}};
    const std::vector<LinearLaunch> launches = linear_launches(x.rows(0, kRows), calls, kernel);
    EXPECT_EQ(launches.size(), 1u);
    EXPECT_TRUE(can_be_short(launches[0]) && short_block_tiles(launches[0].num_tiles) == tiles);
    EXPECT_EQ(launches[0].calls[1].first_tile % tiles, 1);
    launch_linear(nullptr, launches[0]);
    cuda_check(cudaDeviceSynchronize());
    EXPECT_TRUE(out.guards_intact());
    return out.download();
  };
  EXPECT_EQ(products(LinearKernel::kShort), products(LinearKernel::kDecode));
}

TEST_F(CudaLinearTest, ALaunchCanBeCapturedAndReplayed) {
  constexpr int64_t kRows = 3;
  for (const Way& way : kWays) {
    for (const LinearSpec& spec :
         {affine(100, 576, 6, 32), affine(64, 640, 2, 128), affine(100, 576, 4, 64)}) {
      const DeviceMatrix m(spec, 3);
      const DeviceX x(kRows, spec.in, 4);
      const std::vector<float> expected = run(m, x.rows(0, kRows), kDecode);
      DeviceArray<float> out(static_cast<size_t>(kRows * spec.out));
      const LinearCall call{.out = View(out.data(), DType::kF32, {kRows, spec.out}), .weight = m.weight()};
      cudaStream_t stream;
      cuda_check(cudaStreamCreate(&stream));
      cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      for (int i = 0; i < 3; ++i) way.launch(stream, x.rows(0, kRows), {&call, 1});
      cudaGraph_t graph;
      cudaGraphExec_t executable;
      cuda_check(cudaStreamEndCapture(stream, &graph));
      cuda_check(cudaGraphInstantiate(&executable, graph, 0));
      cuda_check(cudaGraphLaunch(executable, stream));
      cuda_check(cudaStreamSynchronize(stream));
      EXPECT_EQ(out.download(), expected) << to_string(spec);
      cuda_check(cudaGraphExecDestroy(executable));
      cuda_check(cudaGraphDestroy(graph));
      cuda_check(cudaStreamDestroy(stream));
    }
  }
}

TEST_F(CudaLinearTest, NoRowsAreNoLaunch) {
  const DeviceMatrix m(affine(16, 64, 4, 64), 1);
  const DeviceX x(1, 64, 1);
  const LinearCall call{.out = View(x.device.data(), DType::kF32, {0, 16}), .weight = m.weight()};
  EXPECT_TRUE(linear_launches(x.rows(0, 0), {&call, 1}).empty());
}

}  // namespace
}  // namespace tensorfold::cuda
