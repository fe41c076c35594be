// linear_chain(): to the bit what the launches that it stands for give, in every byte of memory that they
// write.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "ops/cuda/chain_recorder.h"
#include "ops/cuda/elementwise.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/norms.h"
#include "tests/ops/cuda/cuda_test_util.h"
#include "tests/ops/random_linear.h"

namespace tensorfold::cuda {
namespace {

/// Sizes of a layer like a hybrid model's, between two ops that are no products.
struct Sizes {
  int64_t hidden = 1152, intermediate = 2944, mixed = 640;
  int64_t odd = 100;  ///< Of a last output with a short tile.
};

struct Case {
  LinearSpec format;  ///< Of any size.
  Sizes sizes = {};
  MlpActivation activation = {.kind = MlpActivation::Kind::kSilu};
  int layers = 2;
};

std::string name_of(const Case& c, int64_t rows) {
  return to_string(c.format) + ", " + std::to_string(c.layers) + " layers, " + std::to_string(rows) + " rows";
}

/// A matrix on the device.
class DeviceMatrix {
 public:
  DeviceMatrix(LinearSpec spec, int64_t out, int64_t in, uint32_t seed)
      : spec_(sized(spec, out, in)), packed_(pack(spec_, seed)) {}
  LinearWeight weight(const float* bias = nullptr) const {
    return {.spec = spec_, .data = packed_.data(), .bias = bias};
  }

 private:
  static LinearSpec sized(LinearSpec spec, int64_t out, int64_t in) {
    spec.out = out, spec.in = in;
    return spec;
  }
  /// Its values repeat after some rows: a large matrix of its own would take minutes to draw.
  static std::vector<std::byte> pack(const LinearSpec& spec, uint32_t seed) {
    const RandomMatrix host(sized(spec, std::min<int64_t>(spec.out, 512), spec.in), seed);
    std::vector<std::byte> part(static_cast<size_t>(packed_bytes(host.spec)));
    pack_linear(host.spec, host.source(), part);
    std::vector<std::byte> bytes(static_cast<size_t>(packed_bytes(spec)));
    for (size_t at = 0; at < bytes.size(); at += part.size())
      std::memcpy(bytes.data() + at, part.data(), std::min(part.size(), bytes.size() - at));
    return bytes;
  }

  LinearSpec spec_;
  DeviceArray<std::byte> packed_;
};

std::vector<float> random_floats(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = normal(random);
  return values;
}

/// Where a run of a model keeps its activations: one piece of memory, the same in every run, so that all of
/// it can be compared.
class Memory {
 public:
  explicit Memory(std::byte* base) : base_(base) {}
  /// [rows, columns], with some elements between the rows.
  View array(DType dtype, int64_t rows, int64_t columns) {
    View view(base_ + at_, dtype, {rows, columns});
    view.row_stride = (columns + 7) / 8 * 8 + 24;
    at_ += (rows * view.row_stride * dtype_bytes(dtype) + 255) / 256 * 256;
    return view;
  }
  int64_t size() const { return at_; }

 private:
  std::byte* base_;
  int64_t at_ = 0;
};

/// Layers of: o_proj onto the residual; norm, gate and up, activation, down onto the residual; norm, and
/// three products, of which the first, rounded, is the next layer's o_proj's x.
class Model {
 public:
  explicit Model(const Case& c)
      : case_(c),
        o_(c.format, c.sizes.hidden, c.sizes.mixed, 1),
        gate_(c.format, c.sizes.intermediate, c.sizes.hidden, 2),
        up_(c.format, c.sizes.intermediate, c.sizes.hidden, 3),
        down_(c.format, c.sizes.hidden, c.sizes.intermediate, 4),
        mix_(c.format, c.sizes.mixed, c.sizes.hidden, 5),
        other_(c.format, c.sizes.odd, c.sizes.hidden, 6),
        norm_weights_(random_floats(2 * c.sizes.hidden, 7)),
        bias_(random_floats(std::max(c.sizes.intermediate, c.sizes.hidden), 8)) {}

  /// One pass's ops.
  template <class Sink>
  void forward(Sink& sink, Memory memory, int64_t rows) const {
    const Arrays a = arrays(memory, rows);
    const auto norm = [&](int which) {
      const View weight(reinterpret_cast<std::byte*>(norm_weights_.data() + which * case_.sizes.hidden),
                        DType::kF32, {case_.sizes.hidden});
      sink.rms_norm(rms_norm_launch(a.x, a.h, weight, {.eps = 1e-6f}));
    };
    const auto linear = [&](View x, std::vector<LinearCall> calls) {
      sink.linear(linear_launches(x, calls, LinearKernel::kDecode));
    };
    const bool has_gate = case_.activation.has_gate();
    for (int layer = 0; layer < case_.layers; ++layer) {
      linear(a.mixed, {{.out = a.h, .weight = o_.weight(), .accumulate = true}});
      norm(0);
      std::vector<LinearCall> gate_up = {{.out = a.up, .weight = up_.weight(bias_.data())}};
      if (has_gate) gate_up.insert(gate_up.begin(), {.out = a.gate, .weight = gate_.weight(bias_.data())});
      linear(a.x, gate_up);
      sink.mlp_activation(
          mlp_activation_launch(a.product, has_gate ? a.gate : View{}, a.up, case_.activation));
      linear(a.product, {{.out = a.h, .weight = down_.weight(bias_.data()), .accumulate = true}});
      norm(1);
      linear(a.x, {{.out = a.mixed, .weight = mix_.weight()},
                   {.out = a.other, .weight = other_.weight(bias_.data())},
                   {.out = a.sum, .weight = other_.weight(), .accumulate = true}});
    }
  }
  int64_t memory_bytes(int64_t rows) const {
    Memory memory(nullptr);
    arrays(memory, rows);
    return memory.size();
  }
  /// Where the residual begins: the first array.
  int64_t hidden() const { return case_.sizes.hidden; }

 private:
  struct Arrays {
    View h, x, gate, up, product, mixed, other, sum;
  };
  Arrays arrays(Memory& memory, int64_t rows) const {
    const Sizes& s = case_.sizes;
    return {memory.array(DType::kF32, rows, s.hidden),        memory.array(DType::kBF16, rows, s.hidden),
            memory.array(DType::kF32, rows, s.intermediate),  memory.array(DType::kF32, rows, s.intermediate),
            memory.array(DType::kBF16, rows, s.intermediate), memory.array(DType::kBF16, rows, s.mixed),
            memory.array(DType::kF32, rows, s.odd),           memory.array(DType::kF32, rows, s.odd)};
  }

  Case case_;
  DeviceMatrix o_, gate_, up_, down_, mix_, other_;
  DeviceArray<float> norm_weights_, bias_;
};

/// Ops as launches of their own.
struct Separate {
  LaunchList& list;
  void rms_norm(const RmsNormLaunch& launch) { list.add<launch_rms_norm>(launch); }
  void linear(const std::vector<LinearLaunch>& launches) {
    for (const LinearLaunch& launch : launches) list.add<launch_linear>(launch);
  }
  void mlp_activation(const MlpActivationLaunch& launch) { list.add<launch_mlp_activation>(launch); }
};

/// Passes: memory with the same numbers at first, and the launches.
class Passes {
 public:
  Passes(const Model& model, int64_t rows)
      : model_(model),
        rows_(rows),
        memory_(first_values(static_cast<size_t>(model.memory_bytes(rows)))),
        barrier_(std::vector<uint32_t>{0}) {}

  LaunchList separate() const {
    LaunchList list;
    Separate sink{list};
    model_.forward(sink, Memory(memory_.data()), rows_);
    return list;
  }
  LaunchList chained(ChainTuning tuning = {}) const {
    LaunchList list;
    ChainRecorder recorder(list, barrier_.data(), tuning);
    model_.forward(recorder, Memory(memory_.data()), rows_);
    recorder.flush();
    EXPECT_FALSE(list == separate());
    return list;
  }
  std::vector<std::byte> result() const {
    cuda_check(cudaGetLastError());
    cuda_check(cudaDeviceSynchronize());
    EXPECT_TRUE(memory_.guards_intact());
    return memory_.download();
  }
  std::vector<float> residual() const {
    std::vector<float> h(static_cast<size_t>(model_.hidden()));
    cuda_check(cudaMemcpy(h.data(), memory_.data(), h.size() * sizeof(float), cudaMemcpyDeviceToHost));
    return h;
  }

 private:
  /// Small numbers, as bf16 and as fp32.
  static std::vector<std::byte> first_values(size_t bytes) {
    std::vector<std::byte> values(bytes);
    const std::vector<bf16> random = random_bf16(bytes / 2, 11, 0.5f);
    std::memcpy(values.data(), random.data(), bytes / 2 * 2);
    return values;
  }

  const Model& model_;
  int64_t rows_;
  DeviceArray<std::byte> memory_;
  DeviceArray<uint32_t> barrier_;
};

class CudaLinearChain : public testing::Test {
 protected:
  void SetUp() override {
    if (!have_device()) GTEST_SKIP() << "no sm_90 device";
  }
  /// Three passes each way.
  static void expect_equal(const Case& c, const Model& model, int64_t rows, ChainTuning tuning = {}) {
    const Passes expected(model, rows), got(model, rows);
    const LaunchList separate = expected.separate(), chained = got.chained(tuning);
    for (int pass = 0; pass < 3; ++pass) {
      separate.run(nullptr);
      chained.run(nullptr);
      const std::vector<std::byte> expected_bytes = expected.result(), got_bytes = got.result();
      ASSERT_TRUE(got_bytes == expected_bytes)
          << name_of(c, rows) << ", cluster " << int{tuning.cluster} << ", pass " << pass
          << ": first difference at byte "
          << std::mismatch(got_bytes.begin(), got_bytes.end(), expected_bytes.begin()).first -
                 got_bytes.begin();
    }
    // The inputs are not degenerate.
    const std::vector<float> h = expected.residual();
    EXPECT_TRUE(std::isfinite(h[0]) && h[0] != h[1] && h[1] != h.back()) << name_of(c, rows);
  }
};

constexpr LinearSpec affine(int bits, int group) {
  return {.format = WeightFormat::kAffine, .dtype = DType::kBF16, .bits = bits, .group_size = group};
}
constexpr LinearSpec kFour = affine(4, 64);
constexpr LinearSpec kMxfp4{.format = WeightFormat::kMxfp4, .bits = 4, .group_size = 32};

TEST_F(CudaLinearChain, GivesTheBitsOfSeparateLaunchesForEveryNumberOfRows) {
  const Case c{.format = kFour};
  const Model model(c);
  for (int64_t rows = 1; rows <= kMaxChainRows; ++rows) expect_equal(c, model, rows);
}

TEST_F(CudaLinearChain, GivesTheBitsOfSeparateLaunchesInEveryLayout) {
  for (const LinearSpec& format :
       {affine(8, 64), affine(4, 32), affine(4, 128), affine(2, 64), affine(3, 64), affine(5, 128),
        affine(6, 32), kMxfp4, LinearSpec{}, LinearSpec{.dtype = DType::kF16}}) {
    const Case c{.format = format};
    const Model model(c);
    for (const int64_t rows : {1, 2, 5, 8, 9, 16}) expect_equal(c, model, rows);
  }
}

TEST_F(CudaLinearChain, GivesTheSameBitsInClusters) {
  for (const LinearSpec& format : {kFour, affine(8, 64), LinearSpec{}}) {
    const Case c{.format = format};
    const Model model(c);
    for (const uint8_t cluster : {1, 2, 4}) {
      for (const int64_t rows : {1, 3, 8, 16}) expect_equal(c, model, rows, {.cluster = cluster});
    }
  }
}

TEST_F(CudaLinearChain, WorksForSmallAndUnevenSizes) {
  // Segments and blocks without columns, more slots than tiles, one tile, the widest norm.
  const Sizes all_sizes[] = {
      {.hidden = 64, .intermediate = 64, .mixed = 64, .odd = 1},
      {.hidden = 192, .intermediate = 576, .mixed = 64, .odd = 17},
      {.hidden = 576, .intermediate = 1536, .mixed = 448, .odd = 16},
      {.hidden = kMaxChainNormColumns, .intermediate = 704, .mixed = 128, .odd = 3000}};
  for (const Sizes& sizes : all_sizes) {
    for (const int layers : {1, 2, 3}) {
      const Case c{.format = kFour, .sizes = sizes, .layers = layers};
      const Model model(c);
      for (const uint8_t cluster : {0, 2, 4}) {
        for (const int64_t rows : {1, 4, 8, 13}) expect_equal(c, model, rows, {.cluster = cluster});
      }
    }
  }
}

TEST_F(CudaLinearChain, ComputesEveryActivation) {
  using Kind = MlpActivation::Kind;
  for (const MlpActivation& activation :
       {MlpActivation{.kind = Kind::kSilu}, MlpActivation{.kind = Kind::kGeluTanh},
        MlpActivation{.kind = Kind::kClampedSilu, .alpha = 1.702f, .limit = 0.75f},
        MlpActivation{.kind = Kind::kRelu2}}) {
    const Case c{.format = kFour, .activation = activation};
    const Model model(c);
    for (const uint8_t cluster : {1, 2}) {
      for (const int64_t rows : {1, 8, 11}) expect_equal(c, model, rows, {.cluster = cluster});
    }
  }
}

TEST_F(CudaLinearChain, TakesTheRowsOfALargeModel) {
  const Case c{.format = kFour,
               .sizes = {.hidden = 5120, .intermediate = 17408, .mixed = 6144, .odd = 4200},
               .layers = 1};
  const Model model(c);
  for (const int64_t rows : {1, 8, 16}) expect_equal(c, model, rows);
  for (const uint8_t cluster : {1, 2, 4}) expect_equal(c, model, 1, {.cluster = cluster});
}

TEST_F(CudaLinearChain, CanBeReplayed) {
  const Case c{.format = kFour};
  const Model model(c);
  for (const int64_t rows : {1, 8}) {
    const Passes expected(model, rows), got(model, rows);
    const LaunchList separate = expected.separate(), chained = got.chained();
    cudaStream_t stream;
    cuda_check(cudaStreamCreate(&stream));
    cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < 3; ++i) chained.run(stream);
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cuda_check(cudaStreamEndCapture(stream, &graph));
    cuda_check(cudaGraphInstantiate(&executable, graph, 0));
    constexpr int kReplays = 50;
    for (int i = 0; i < kReplays; ++i) cuda_check(cudaGraphLaunch(executable, stream));
    for (int i = 0; i < 3 * kReplays; ++i) separate.run(nullptr);
    cuda_check(cudaStreamSynchronize(stream));
    EXPECT_TRUE(got.result() == expected.result()) << rows;
    cuda_check(cudaGraphExecDestroy(executable));
    cuda_check(cudaGraphDestroy(graph));
    cuda_check(cudaStreamDestroy(stream));
  }
}

}  // namespace
}  // namespace tensorfold::cuda
