// experts on CUDA: equal, bit for bit, to linear() of each expert's matrices, the definition of the
// activation between them, and fused multiply-adds in the order of choice; however rows fall to experts, and
// by each kernel.
#include "ops/cuda/experts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <optional>
#include <span>
#include <string>

#include "base/fp_env.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/route.h"
#include "ops/reference/reference_ops.h"
#include "tests/ops/cuda/cuda_test_util.h"

namespace tensorfold::cuda {
namespace {

class CudaExpertsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!have_device()) GTEST_SKIP() << "no sm_90 device";
  }
};

constexpr ExpertsKernel kKernels[] = {ExpertsKernel::kAuto, ExpertsKernel::kPairs, ExpertsKernel::kFewRows,
                                      ExpertsKernel::kManyRows};
constexpr MlpActivation kActivations[] = {
    {MlpActivation::Kind::kSilu},
    {MlpActivation::Kind::kGeluTanh},
    {MlpActivation::Kind::kClampedSilu, 1.702f, 0.5f},
    {MlpActivation::Kind::kRelu2},
};

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

LinearSpec affine(int bits, int64_t out, int64_t in, int group, DType scales = DType::kBF16) {
  return {.out = out,
          .in = in,
          .format = WeightFormat::kAffine,
          .dtype = scales,
          .bits = bits,
          .group_size = group};
}
LinearSpec affine4(int64_t out, int64_t in, int group) { return affine(4, out, in, group); }
LinearSpec mxfp4(int64_t out, int64_t in) {
  return {.out = out, .in = in, .format = WeightFormat::kMxfp4, .bits = 4, .group_size = 32};
}
LinearSpec dense(int64_t out, int64_t in, DType dtype = DType::kBF16) {
  return {.out = out, .in = in, .dtype = dtype, .bits = static_cast<int>(8 * dtype_bytes(dtype))};
}

/// One projection of all experts as Weights places it: each matrix, then its bias, at one stride.
class Projection {
 public:
  Projection(const LinearSpec& spec, int64_t num_experts, bool has_bias, uint32_t seed)
      : stride_(round_up(packed_bytes(spec), 256) + (has_bias ? round_up(spec.out * 4, 256) : 0)),
        bytes_(static_cast<size_t>(num_experts * stride_)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, 0.3f);
    std::vector<std::byte> host(bytes_.size(), std::byte{0xff});
    for (int64_t e = 0; e < num_experts; ++e) {
      const RandomMatrix matrix(spec, seed + 17 * static_cast<uint32_t>(e));
      std::byte* to = host.data() + e * stride_;
      pack_linear(spec, matrix.source(), {to, static_cast<size_t>(packed_bytes(spec))});
      const int64_t bias_at = round_up(packed_bytes(spec), 256);
      std::vector<float> bias(has_bias ? static_cast<size_t>(spec.out) : 0);
      for (float& b : bias) b = normal(random);
      if (has_bias) std::memcpy(to + bias_at, bias.data(), bias.size() * 4);
      const std::byte* data = bytes_.data() + e * stride_;
      weights_.push_back({spec, data, has_bias ? reinterpret_cast<const float*>(data + bias_at) : nullptr});
    }
    bytes_.upload(host);
  }
  std::span<const LinearWeight> weights() const { return weights_; }

 private:
  int64_t stride_;
  DeviceArray<std::byte> bytes_;
  std::vector<LinearWeight> weights_;
};

struct Shape {
  int64_t num_experts;
  LinearSpec into;                      ///< Of gate and up.
  LinearSpec out_of;                    ///< Of down.
  std::optional<LinearSpec> gate = {};  ///< Where it has another format than up.
};

struct Layer {
  Shape shape;
  Projection gate, up, down;
  Layer(const Shape& s, bool has_bias)
      : shape(s),
        gate(s.gate.value_or(s.into), s.num_experts, has_bias, 1000),
        up(s.into, s.num_experts, has_bias, 2000),
        down(s.out_of, s.num_experts, has_bias, 3000) {}
  ExpertsWeight weights(bool has_gate) const {
    return {shape.num_experts, has_gate ? gate.weights() : std::span<const LinearWeight>(), up.weights(),
            down.weights()};
  }
};

/// k different experts a row, the low ones more often: some get many rows, others none.
std::vector<int32_t> random_ids(int64_t rows, int64_t k, int64_t num_experts, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < rows; ++t) {
    std::vector<int32_t> of_row;
    while (std::ssize(of_row) < k) {
      const auto span = static_cast<uint32_t>(random() % 2 == 0 ? num_experts : std::min(num_experts, k + 1));
      const auto e = static_cast<int32_t>(random() % span);
      if (std::find(of_row.begin(), of_row.end(), e) == of_row.end()) of_row.push_back(e);
    }
    ids.insert(ids.end(), of_row.begin(), of_row.end());
  }
  return ids;
}

std::vector<float> random_floats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

/// The inputs of one call, on the host and on the device. Rows of x lie apart, NaN between them.
struct Inputs {
  int64_t rows, k, in, stride;
  std::vector<int32_t> ids;
  std::vector<float> router_weights;
  std::vector<bf16> x;
  DeviceArray<int32_t> device_ids;
  DeviceArray<float> device_weights;
  DeviceArray<bf16> device_x;

  Inputs(int64_t num_rows, int64_t num_choices, const Shape& shape, uint32_t seed)
      : rows(num_rows),
        k(num_choices),
        in(shape.into.in),
        stride(round_up(shape.into.in, 8) + 8),
        ids(random_ids(num_rows, num_choices, shape.num_experts, seed)),
        router_weights(random_floats(static_cast<size_t>(num_rows * num_choices), seed + 1)),
        x(with_gaps(random_bf16(static_cast<size_t>(num_rows * in), seed + 2))),
        device_ids(ids),
        device_weights(router_weights),
        device_x(x) {}
  View x_view() const {
    View v(device_x.data(), DType::kBF16, {rows, in});
    v.row_stride = stride;
    return v;
  }
  ExpertsCall call(const Layer& layer, const MlpActivation& activation, View out, bool accumulate) const {
    return {.out = out,
            .x = x_view(),
            .expert_ids = View(device_ids.data(), DType::kI32, {rows, k}),
            .expert_weights = View(device_weights.data(), DType::kF32, {rows, k}),
            .weights = layer.weights(activation.has_gate()),
            .activation = activation,
            .accumulate = accumulate};
  }

 private:
  std::vector<bf16> with_gaps(const std::vector<bf16>& values) const {
    std::vector<bf16> padded(static_cast<size_t>(rows * stride), to_bf16(NAN));
    for (int64_t t = 0; t < rows; ++t) std::copy_n(values.begin() + t * in, in, padded.begin() + t * stride);
    return padded;
  }
};

/// W x of all rows [rows, in], which are contiguous, by linear() in its kernel for few rows.
std::vector<float> product_of(const LinearWeight& weight, const std::vector<bf16>& x, int64_t rows) {
  // Padded with zeros, so that it does not matter here what linear() reads beyond `in`.
  const int64_t in = weight.spec.in, stride = round_up(in, 128);
  std::vector<bf16> padded(static_cast<size_t>(rows * stride), to_bf16(0.0f));
  for (int64_t t = 0; t < rows; ++t) std::copy_n(x.begin() + t * in, in, padded.begin() + t * stride);
  const DeviceArray<bf16> device_x(padded);
  const DeviceArray<float> out(static_cast<size_t>(rows * weight.spec.out));
  View x_view(device_x.data(), DType::kBF16, {rows, in});
  x_view.row_stride = stride;
  const LinearCall call{.out = View(out.data(), DType::kF32, {rows, weight.spec.out}), .weight = weight};
  linear(nullptr, x_view, {&call, 1}, LinearKernel::kDecode);
  cuda_check(cudaDeviceSynchronize());
  return out.download();
}

/// Down of the activation of gate and up: one expert's output for each row, before its weight.
std::vector<float> expert_output(const Layer& layer, const MlpActivation& activation, size_t expert,
                                 std::vector<bf16>& x, int64_t rows) {
  const int64_t I = layer.shape.into.out;
  std::vector<float> up = product_of(layer.up.weights()[expert], x, rows), gate;
  if (activation.has_gate()) gate = product_of(layer.gate.weights()[expert], x, rows);
  std::vector<bf16> product(static_cast<size_t>(rows * I));
  ReferenceOps().mlp_activation(View(product.data(), DType::kBF16, {rows, I}),
                                View(gate.data(), DType::kF32, {rows, I}),
                                View(up.data(), DType::kF32, {rows, I}), activation);
  return product_of(layer.down.weights()[expert], product, rows);
}

/// [rows, E]: y from +0 by fused multiply-adds in the order of choice, then `before` + y where it
/// accumulates.
std::vector<float> expected_output(const Layer& layer, const MlpActivation& activation, const Inputs& inputs,
                                   const std::vector<float>* before) {
  const int64_t E = layer.shape.out_of.out;
  std::vector<bf16> x;
  for (int64_t t = 0; t < inputs.rows; ++t) {
    const auto row = inputs.x.begin() + t * inputs.stride;
    x.insert(x.end(), row, row + inputs.in);
  }
  std::vector<std::vector<float>> outputs;
  for (size_t e = 0; e < static_cast<size_t>(layer.shape.num_experts); ++e)
    outputs.push_back(expert_output(layer, activation, e, x, inputs.rows));
  const ScopedFlushDenormals flush;
  std::vector<float> sums(static_cast<size_t>(inputs.rows * E));
  for (int64_t t = 0; t < inputs.rows; ++t) {
    for (int64_t e = 0; e < E; ++e) {
      float y = 0.0f;
      for (int64_t j = 0; j < inputs.k; ++j) {
        const auto pair = static_cast<size_t>(t * inputs.k + j);
        const std::vector<float>& down = outputs[static_cast<size_t>(inputs.ids[pair])];
        y = std::fma(inputs.router_weights[pair], down[static_cast<size_t>(t * E + e)], y);
      }
      const auto at = static_cast<size_t>(t * E + e);
      sums[at] = before != nullptr ? (*before)[at] + y : y;
    }
  }
  return sums;
}

/// What a launch is made with.
struct How {
  ExpertsKernel kernel = ExpertsKernel::kAuto;
  ExpertVariants variants = {};
  bool x_is_early = false;  ///< It is, here: nothing precedes the launch.
  bool meets = true;        ///< With a counter for blocks that meet.
};
/// Every kernel, and those for few rows in each of their forms.
constexpr How kHows[] = {
    {ExpertsKernel::kAuto},
    {ExpertsKernel::kPairs},
    {ExpertsKernel::kManyRows},
    {ExpertsKernel::kFewRows},
    {ExpertsKernel::kFewRows, {.streams = ExpertStreams::kAlways}},
    {ExpertsKernel::kFewRows, {.streams = ExpertStreams::kAlways}, true},
    {ExpertsKernel::kAuto, {}, true},
    {ExpertsKernel::kFewRows, {.streams = ExpertStreams::kAlways}, false, false},
    {ExpertsKernel::kFewRows,
     {.prefetch_down = false, .streams = ExpertStreams::kNever, .narrow_down = false, .dense_blocks = false}},
    {ExpertsKernel::kFewRows,
     {.prefetch_down = true, .streams = ExpertStreams::kNever, .narrow_down = true, .dense_blocks = true}},
};

/// Runs the call on scratch full of NaN.
void run(const ExpertsCall& call, const How& how) {
  const DeviceArray<std::byte> scratch(static_cast<size_t>(experts_scratch_bytes(call, how.kernel)));
  cuda_check(cudaMemset(scratch.data(), 0xff, scratch.size()));
  ExpertsLaunch launch = experts_launch(call, scratch.data(), how.kernel);
  launch.variants = how.variants;
  const DeviceArray<int32_t> arrived(std::vector<int32_t>{0});
  launch.arrived_blocks = how.meets ? arrived.data() : nullptr;
  launch.x_is_early = how.x_is_early;
  launch_experts(nullptr, launch);
  cuda_check(cudaGetLastError());
  cuda_check(cudaDeviceSynchronize());
  EXPECT_TRUE(scratch.guards_intact());
}

/// `gap` columns lie between the rows of the output.
void check(const Layer& layer, const MlpActivation& activation, int64_t rows, int64_t k, bool accumulate,
           int64_t gap, uint32_t seed) {
  const int64_t E = layer.shape.out_of.out, stride = E + gap;
  const Inputs inputs(rows, k, layer.shape, seed);
  const std::vector<float> before = random_floats(static_cast<size_t>(rows * E), seed + 3);
  const std::vector<float> expected =
      expected_output(layer, activation, inputs, accumulate ? &before : nullptr);
  double magnitude = 0;
  for (const float v : expected) magnitude += std::abs(v);
  ASSERT_GT(magnitude / static_cast<double>(expected.size()), 1e-3) << "nothing to compare";
  for (const How& how : kHows) {
    DeviceArray<float> out(static_cast<size_t>(rows * stride));
    std::vector<float> initial(out.size(), 77.0f);
    for (int64_t t = 0; t < rows; ++t) std::copy_n(before.begin() + t * E, E, initial.begin() + t * stride);
    out.upload(initial);
    View out_view(out.data(), DType::kF32, {rows, E});
    out_view.row_stride = stride;
    run(inputs.call(layer, activation, out_view, accumulate), how);
    EXPECT_TRUE(out.guards_intact());
    const std::vector<float> got = out.download();
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t e = 0; e < stride; ++e) {
        const float want = e < E ? expected[static_cast<size_t>(t * E + e)] : 77.0f;
        ASSERT_EQ(std::bit_cast<uint32_t>(got[static_cast<size_t>(t * stride + e)]),
                  std::bit_cast<uint32_t>(want))
            << to_string(layer.shape.into) << " and " << to_string(layer.shape.out_of) << ", activation "
            << static_cast<int>(activation.kind) << ", " << rows << " rows, " << k << " choices, kernel "
            << static_cast<int>(how.kernel) << " in form " << &how - kHows << ", row " << t << ", column "
            << e << ": " << got[static_cast<size_t>(t * stride + e)] << ", expected " << want;
      }
    }
  }
}

/// Columns and outputs around chunks, segments (some empty), tiles and fours.
const Shape kShapes[] = {
    {.num_experts = 7, .into = affine4(160, 96, 32), .out_of = affine4(96, 160, 32)},
    {.num_experts = 9, .into = affine4(576, 192, 64), .out_of = affine4(192, 576, 64)},
    {.num_experts = 5, .into = affine4(256, 640, 128), .out_of = affine4(640, 256, 128)},
    {.num_experts = 6, .into = dense(200, 1000), .out_of = dense(1000, 200)},
    {.num_experts = 11, .into = affine4(64, 1088, 64), .out_of = dense(1088, 64)},
    {.num_experts = 6, .into = mxfp4(224, 160), .out_of = mxfp4(160, 224)},
    {.num_experts = 5, .into = mxfp4(64, 1120), .out_of = affine(8, 1120, 64, 32)},
    {.num_experts = 5, .into = affine(2, 128, 576, 64), .out_of = affine(3, 576, 128, 128)},
    {.num_experts = 5, .into = affine(5, 256, 640, 128), .out_of = affine(6, 640, 256, 64)},
    {.num_experts = 5, .into = affine(8, 192, 320, 64), .out_of = affine(5, 320, 192, 32)},
    {.num_experts = 5,
     .into = affine(4, 96, 160, 32, DType::kF16),
     .out_of = affine(8, 160, 96, 32, DType::kF16)},
    {.num_experts = 5,
     .into = affine(4, 128, 192, 64, DType::kF32),
     .out_of = affine(6, 192, 128, 64, DType::kF32)},
    {.num_experts = 5, .into = dense(120, 200, DType::kF16), .out_of = dense(200, 120, DType::kF32)},
    // Gate and up in formats of their own: units of one chunk beside units of two, with and without many().
    {.num_experts = 6,
     .into = affine(3, 192, 384, 128),
     .out_of = affine4(384, 192, 64),
     .gate = affine4(192, 384, 64)},
    {.num_experts = 5,
     .into = affine4(120, 640, 32),
     .out_of = dense(640, 120),
     .gate = affine(8, 120, 640, 64, DType::kF16)},
    {.num_experts = 7, .into = dense(160, 416), .out_of = mxfp4(416, 160), .gate = mxfp4(160, 416)},
};

// What the host decides: no device is needed.

/// A call on addresses that nobody reads: experts `stride` bytes apart, down after up after gate.
struct UnreadCall {
  std::vector<LinearWeight> gate, up, down;
  ExpertsCall call;

  UnreadCall(int64_t rows, int64_t k, int64_t num_experts, const LinearSpec& into, const LinearSpec& out_of,
             int64_t stride) {
    int64_t at = 4096;
    for (auto [list, spec] : {std::pair(&gate, &into), {&up, &into}, {&down, &out_of}}) {
      for (int64_t e = 0; e < num_experts; ++e, at += stride)
        list->push_back({*spec, address<std::byte>(at), address<float>(at + stride / 2)});
    }
    call = {.out = View(address<float>(4096), DType::kF32, {rows, out_of.out}),
            .x = View(address<bf16>(4096), DType::kBF16, {rows, into.in}),
            .expert_ids = View(address<int32_t>(4096), DType::kI32, {rows, k}),
            .expert_weights = View(address<float>(4096), DType::kF32, {rows, k}),
            .weights = {num_experts, gate, up, down}};
  }
  template <class T>
  static T* address(int64_t at) {
    return reinterpret_cast<T*>(at);
  }
};

TEST(CudaExpertsLaunchTest, FindsExpertsByTheirStrideAndRefusesOthers) {
  UnreadCall unread(3, 2, 5, affine4(64, 128, 64), affine4(128, 64, 64), 8192);
  const ExpertsLaunch launch = experts_launch(unread.call, nullptr);
  EXPECT_EQ(launch.gate.stride_bytes, 8192);
  EXPECT_EQ(launch.down.data, unread.down[0].data);
  EXPECT_EQ(launch.down.bias, unread.down[0].bias);
  EXPECT_EQ(launch.into.chunks, 2);
  EXPECT_EQ(launch.out_of.tiles, 8);
  unread.up.back().data += 256;
  EXPECT_DEATH(experts_launch(unread.call, nullptr), "not in a row");
  unread.up.back().data -= 256;
  unread.down.back().bias = nullptr;
  EXPECT_DEATH(experts_launch(unread.call, nullptr), "not in a row");
}

TEST(CudaExpertsLaunchTest, TakesGateAndUpOfDifferentFormats) {
  UnreadCall unread(3, 2, 5, affine(3, 64, 256, 64), affine4(256, 64, 64), 32768);
  const ExpertsLaunch equal = experts_launch(unread.call, nullptr);
  EXPECT_TRUE(has_fused_gate(equal));
  EXPECT_FALSE(has_gate_alone(equal));
  const int64_t bytes = experts_scratch_bytes(unread.call);
  for (LinearWeight& gate : unread.gate) gate.spec = affine(8, 64, 256, 32);
  const ExpertsLaunch launch = experts_launch(unread.call, nullptr);
  EXPECT_TRUE(has_gate_alone(launch));
  EXPECT_FALSE(has_fused_gate(launch));
  EXPECT_EQ(launch.into_gate.layout.bits, 8);
  EXPECT_EQ(launch.into.layout.bits, 3);
  EXPECT_GE(experts_scratch_bytes(unread.call), bytes + int64_t{3} * 2 * 64 * 4);
  // Without a gate nothing is kept.
  unread.call.weights.gate_proj = {};
  unread.call.activation = {MlpActivation::Kind::kRelu2};
  EXPECT_FALSE(has_gate_alone(experts_launch(unread.call, nullptr)));
  // Many rows need all three in layouts of theirs.
  unread.call.weights.gate_proj = unread.gate;
  unread.call.activation = {};
  EXPECT_EQ(experts_launch(unread.call, nullptr, ExpertsKernel::kManyRows).kind, ExpertTasks::kManyRows);
  for (LinearWeight& gate : unread.gate) gate.spec = affine(8, 64, 256, 32, DType::kF16);
  EXPECT_EQ(experts_launch(unread.call, nullptr, ExpertsKernel::kManyRows).kind, ExpertTasks::kFewRows);
}

TEST(CudaExpertsLaunchTest, SaysWhatItDoesNotTake) {
  const auto message = [](int64_t k, int64_t num_experts, const LinearSpec& into, const LinearSpec& out_of) {
    return check_experts({.num_experts = num_experts,
                          .num_experts_per_tok = k,
                          .gate_proj = into,
                          .up_proj = into,
                          .down_proj = out_of})
        .message();
  };
  const LinearSpec into = affine4(64, 128, 64), out_of = affine4(128, 64, 64);
  EXPECT_EQ(message(32, 512, into, out_of), "");
  EXPECT_EQ(message(33, 512, into, out_of),
            "512 experts, 33 a token: CUDA takes up to 512, 32 a token; the CPU any number (--device cpu)");
  EXPECT_NE(message(2, 513, into, out_of), "");
  // As wide as can be, and a unit wider.
  EXPECT_EQ(message(2, 4, affine4(64, 102400, 64), affine4(102400, 64, 64)), "");
  EXPECT_THAT(message(2, 4, affine4(64, 102464, 64), affine4(102464, 64, 64)),
              testing::HasSubstr("CUDA takes up to 102400 columns"));
  // The same of each projection alone, and no gate is none.
  EXPECT_NE(message(2, 4, affine4(64, 102464, 64), out_of), "");
  EXPECT_NE(message(2, 4, into, affine4(64, 102464, 64)), "");
  const ExpertsSpec without_gate{
      .num_experts = 4, .num_experts_per_tok = 2, .gate_proj = {}, .up_proj = into, .down_proj = out_of};
  EXPECT_TRUE(check_experts(without_gate).ok());
  const UnreadCall widest(9, 2, 4, affine4(64, 102400, 64), affine4(102400, 64, 64), int64_t{1} << 24);
  EXPECT_EQ(experts_launch(widest.call, nullptr, ExpertsKernel::kFewRows).task_rows, 1);
}

TEST(CudaExpertsLaunchTest, TakesASharedExpertLikeTheOthersForOneRow) {
  const LinearSpec into = affine4(64, 128, 64), out_of = affine4(128, 64, 64);
  UnreadCall unread(1, 2, 5, into, out_of, 8192);
  for (auto* list : {&unread.gate, &unread.up, &unread.down}) {
    for (LinearWeight& weight : *list) weight.bias = nullptr;
  }
  const auto matrix = [](const LinearSpec& spec) {
    return LinearWeight{.spec = spec, .data = UnreadCall::address<std::byte>(1 << 20)};
  };
  ExpertsCall& call = unread.call;
  call.shared = {
      .gate_proj = matrix(into), .up_proj = matrix(into), .down_proj = matrix(out_of), .gate = View()};
  EXPECT_TRUE(takes_shared_expert(call));
  EXPECT_EQ(outputs_of_row(experts_launch(call, nullptr)), 3);
  EXPECT_FALSE(takes_shared_expert(call, ExpertsKernel::kManyRows));
  const auto refuses = [&](const auto& change) {
    const ExpertsCall before = call;
    change();
    EXPECT_FALSE(takes_shared_expert(call));
    call = before;
  };
  refuses([&] { call.shared.up_proj = matrix(affine(8, 64, 128, 64)); });
  refuses([&] { call.shared.down_proj = matrix(affine4(128, 128, 64)); });
  refuses([&] { call.shared.gate_proj = {}; });
  refuses([&] { call.shared.up_proj.bias = UnreadCall::address<float>(4096); });
  refuses([&] { call.accumulate = false; });
  refuses([&] {
    call.expert_ids = View(UnreadCall::address<int32_t>(4096), DType::kI32, {1, kMaxExpertChoices});
  });
  refuses([&] { call.x = View(UnreadCall::address<bf16>(4096), DType::kBF16, {2, 128}); });
  unread.down[0].bias = UnreadCall::address<float>(4096);
  EXPECT_FALSE(takes_shared_expert(call));
}

TEST(CudaExpertsLaunchTest, ChoosesTasksByTheRowsOfAnExpert) {
  const auto kind = [](int64_t rows, ExpertsKernel kernel) {
    const UnreadCall unread(rows, 8, 256, affine4(512, 2048, 64), affine4(2048, 512, 64), int64_t{1} << 20);
    return experts_launch(unread.call, nullptr, kernel).kind;
  };
  EXPECT_EQ(kind(1, ExpertsKernel::kAuto), ExpertTasks::kOneRow);
  EXPECT_EQ(kind(4, ExpertsKernel::kAuto), ExpertTasks::kPairs);
  EXPECT_EQ(kind(5, ExpertsKernel::kAuto), ExpertTasks::kFewRows);
  EXPECT_EQ(kind(5, ExpertsKernel::kPairs), ExpertTasks::kPairs);
  EXPECT_EQ(kind(2, ExpertsKernel::kFewRows), ExpertTasks::kFewRows);
  EXPECT_EQ(kind(384, ExpertsKernel::kAuto), ExpertTasks::kFewRows);
  EXPECT_EQ(kind(385, ExpertsKernel::kAuto), ExpertTasks::kManyRows);
  EXPECT_EQ(kind(8192, ExpertsKernel::kFewRows), ExpertTasks::kFewRows);
  EXPECT_EQ(kind(1, ExpertsKernel::kManyRows), ExpertTasks::kManyRows);
  // Eight rows of 16,384 columns do not fit in shared memory.
  const UnreadCall wide(9, 2, 4, affine4(64, 16384, 64), affine4(16384, 64, 64), int64_t{1} << 20);
  EXPECT_EQ(experts_launch(wide.call, nullptr, ExpertsKernel::kFewRows).task_rows, 4);
}

TEST(CudaExpertsLaunchTest, ScratchHoldsItsPartsApart) {
  for (const int64_t rows : {1, 2, 70, 9000}) {
    for (const ExpertsKernel kernel : kKernels) {
      UnreadCall unread(rows, 6, 40, affine4(200, 128, 64), affine4(128, 200 / 8 * 8 - 8, 64),
                        int64_t{1} << 20);
      if (rows % 2 == 0) {
        for (LinearWeight& gate : unread.gate) gate.spec = affine(8, 200, 128, 64);
      }
      const int64_t bytes = experts_scratch_bytes(unread.call, kernel);
      std::byte* begin = UnreadCall::address<std::byte>(int64_t{1} << 30);
      const ExpertsLaunch launch = experts_launch(unread.call, begin, kernel);
      const int64_t pairs = int64_t{launch.block_rows} * 6;
      std::vector<std::pair<int64_t, int64_t>> parts;  // Offset, bytes.
      const auto add = [&](const void* part, int64_t size) {
        if (part != nullptr) parts.emplace_back(static_cast<const std::byte*>(part) - begin, size);
      };
      add(launch.product, pairs * launch.product_stride * 2);
      EXPECT_EQ(launch.gate_sums != nullptr, rows % 2 == 0);
      add(launch.gate_sums, pairs * launch.product_stride * 4);
      add(launch.num_tasks, 4);
      add(launch.tasks, max_expert_tasks(pairs, 40, launch.task_rows) * int64_t{sizeof(ExpertTask)});
      add(launch.pairs, pairs * 4);
      add(launch.down_sums, pairs * launch.down_stride * 4);
      std::sort(parts.begin(), parts.end());
      int64_t end = 0;
      for (const auto& [offset, size] : parts) {
        EXPECT_GE(offset, end);
        EXPECT_EQ(offset % 256, 0);
        end = offset + size;
      }
      EXPECT_LE(end, bytes);
      EXPECT_LE(launch.down_stride * 4 * pairs, int64_t{16384} * 4 * 132);
    }
  }
}

TEST(CudaExpertsLaunchTest, NoDistributionOfPairsMakesMoreTasksThanThereIsRoomFor) {
  std::mt19937 random(3);
  int64_t full = 0;
  for (int i = 0; i < 20000; ++i) {
    const int num_experts = 1 + static_cast<int>(random() % 12), task_rows = 1 << (random() % 7);
    std::vector<int64_t> counts(static_cast<size_t>(num_experts));
    int64_t pairs = 0, tasks = 0;
    for (int64_t& count : counts) {
      count = random() % 3 == 0
                  ? 0
                  : static_cast<int64_t>(random() % 3) * task_rows + static_cast<int64_t>(random() % 3);
      pairs += count;
      tasks += (count + task_rows - 1) / task_rows;
    }
    const int bound = max_expert_tasks(pairs, num_experts, task_rows);
    ASSERT_LE(tasks, bound) << pairs << " pairs, " << num_experts << " experts, tasks of " << task_rows;
    full += tasks == bound ? 1 : 0;
  }
  EXPECT_GT(full, 100) << "the bound is loose";
}

TEST_F(CudaExpertsTest, EqualsLinearPerExpertForAnyRows) {
  uint32_t seed = 1;
  for (const Shape& shape : kShapes) {
    const Layer layer(shape, /*has_bias=*/false);
    for (const int64_t rows : {1, 2, 3, 9, 40, 150}) {
      for (const int64_t k : {1, 4}) check(layer, {}, rows, k, rows % 2 == 1, rows % 3, seed += 10);
    }
  }
}

TEST_F(CudaExpertsTest, EqualsLinearPerExpertWithBiasesAndEveryActivation) {
  uint32_t seed = 1000;
  for (const Shape& shape : kShapes) {
    const Layer layer(shape, /*has_bias=*/true);
    for (const MlpActivation& activation : kActivations) {
      for (const int64_t rows : {1, 70}) check(layer, activation, rows, 3, true, 0, seed += 10);
    }
  }
}

// All experts of a row, and the widths of a published model.
TEST_F(CudaExpertsTest, EqualsLinearPerExpertAtLargerSizes) {
  const Layer wide({.num_experts = 12, .into = affine4(512, 2048, 64), .out_of = affine4(2048, 512, 64)},
                   false);
  for (const int64_t rows : {1, 5, 130}) check(wide, {}, rows, 8, true, 0, 77 + static_cast<uint32_t>(rows));
  const Layer all({.num_experts = 32, .into = affine4(64, 64, 64), .out_of = affine4(64, 64, 64)}, true);
  for (const int64_t rows : {1, 4, 600}) check(all, {}, rows, 32, false, 0, 99 + static_cast<uint32_t>(rows));
  // gpt-oss-20b's: more tiles of down than multiprocessors, more of gate and up than slots; 15 choices with
  // the shared expert are the most that one row's streams take (below).
  const Layer long_streams({.num_experts = 5, .into = mxfp4(2880, 2880), .out_of = mxfp4(2880, 2880)}, true);
  for (const int64_t rows : {1, 2}) check(long_streams, kActivations[2], rows, 4, true, 0, 55);
}

/// One row with a shared expert beside its choices, scaled by `gate` if there is one.
void check_shared(const Shape& shape, const MlpActivation& activation, int64_t k, std::optional<float> gate) {
  const Layer layer(shape, false), others(shape, false);
  const size_t shared = 1;  // Of `others`: the matrices of this layer's second expert, in another place.
  const int64_t E = shape.out_of.out;
  const Inputs inputs(1, k, shape, 5);
  const std::vector<float> before = random_floats(static_cast<size_t>(E), 6);
  std::vector<float> expected = expected_output(layer, activation, inputs, &before);
  std::vector<bf16> x(inputs.x.begin(), inputs.x.begin() + inputs.in);
  const std::vector<float> of_shared = expert_output(others, activation, shared, x, 1);
  const View expected_view(expected.data(), DType::kF32, {1, E});
  const View shared_view(const_cast<float*>(of_shared.data()), DType::kF32, {1, E});
  float gate_value = gate.value_or(0.0f);
  if (gate) {
    ReferenceOps().add_gated(expected_view, shared_view, View(&gate_value, DType::kF32, {1, 1}));
  } else {
    for (size_t e = 0; e < expected.size(); ++e) expected[e] += of_shared[e];
  }
  const DeviceArray<float> device_gate(std::vector<float>{gate_value});
  for (const How& how : kHows) {
    const DeviceArray<float> out(before);
    ExpertsCall call = inputs.call(layer, activation, View(out.data(), DType::kF32, {1, E}), true);
    call.shared = {.gate_proj = activation.has_gate() ? others.gate.weights()[shared] : LinearWeight(),
                   .up_proj = others.up.weights()[shared],
                   .down_proj = others.down.weights()[shared],
                   .gate = gate ? View(device_gate.data(), DType::kF32, {1, 1}) : View()};
    ASSERT_EQ(takes_shared_expert(call, how.kernel), how.kernel != ExpertsKernel::kManyRows);
    if (how.kernel == ExpertsKernel::kManyRows) continue;
    run(call, how);
    EXPECT_TRUE(out.guards_intact());
    EXPECT_EQ(out.download(), expected) << to_string(shape.into) << ", " << k << " choices, kernel "
                                        << static_cast<int>(how.kernel) << " in form " << &how - kHows;
  }
}

TEST_F(CudaExpertsTest, AddsASharedExpertLast) {
  for (const Shape& shape : kShapes) {
    for (const int64_t k : {1, 4}) {
      check_shared(shape, kActivations[0], k, 0.375f);
      check_shared(shape, kActivations[0], k, std::nullopt);
    }
  }
  for (const MlpActivation& activation : kActivations) check_shared(kShapes[1], activation, 3, -1.5f);
  const Shape large{.num_experts = 33, .into = affine4(512, 2048, 64), .out_of = affine4(2048, 512, 64)};
  for (const int64_t k : {8, 15, 16, 31}) check_shared(large, kActivations[0], k, 0.5f);
}

// More pairs than are taken at a time.
TEST_F(CudaExpertsTest, TakesLongPassesInBlocksOfRows) {
  const Layer layer({.num_experts = 8, .into = affine4(64, 64, 64), .out_of = affine4(64, 64, 64)}, false);
  check(layer, {}, 5000, 4, true, 0, 5);
}

TEST_F(CudaExpertsTest, RoundsAnOutputInBf16Once) {
  const Shape& shape = kShapes[1];
  const Layer layer(shape, false);
  for (const int64_t rows : {1, 33}) {
    const Inputs inputs(rows, 3, shape, 8);
    const int64_t E = shape.out_of.out;
    const std::vector<float> expected = expected_output(layer, {}, inputs, nullptr);
    for (const ExpertsKernel kernel : kKernels) {
      const DeviceArray<bf16> out(static_cast<size_t>(rows * E));
      run(inputs.call(layer, {}, View(out.data(), DType::kBF16, {rows, E}), false), {kernel});
      EXPECT_TRUE(out.guards_intact());
      const std::vector<bf16> got = out.download();
      for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i].bits, to_bf16(expected[i]).bits) << i;
    }
  }
}

// Kernels start before the ones they depend on have ended, and some of their loads with them: routers and
// experts take turns on the same memory, without a pause and with one after every launch.
TEST_F(CudaExpertsTest, WaitsForTheRouterAndForItself) {
  constexpr int64_t kTurns = 24, kChoices = 4;
  const Shape& shape = kShapes[1];
  const Layer layer(shape, false);
  const int64_t X = shape.num_experts, E = shape.out_of.out;
  struct Run {
    int64_t rows;
    ExpertsKernel kernel;
    ExpertStreams streams = ExpertStreams::kNever;
  };
  for (const auto& [rows, kernel, streams] : {Run{1, ExpertsKernel::kAuto},
                                              {1, ExpertsKernel::kAuto, ExpertStreams::kAlways},
                                              {6, ExpertsKernel::kFewRows},
                                              {6, ExpertsKernel::kPairs}}) {
    const Inputs inputs(rows, kChoices, shape, 21);
    const DeviceArray<float> logits(random_floats(static_cast<size_t>(kTurns * rows * X), 22));
    const auto turns = [&](bool pause) {
      const DeviceArray<float> outs(static_cast<size_t>(kTurns * rows * E));
      ExpertsCall call = inputs.call(layer, {}, View(outs.data(), DType::kF32, {rows, E}), false);
      const DeviceArray<std::byte> scratch(static_cast<size_t>(experts_scratch_bytes(call, kernel)));
      const DeviceArray<int32_t> arrived(std::vector<int32_t>(kTurns, 0));
      for (int64_t turn = 0; turn < kTurns; ++turn) {
        launch_route(
            nullptr,
            route_launch({.expert_ids = call.expert_ids,
                          .expert_weights = call.expert_weights,
                          .router_logits = View(logits.data() + turn * rows * X, DType::kF32, {rows, X})}));
        if (pause) cuda_check(cudaDeviceSynchronize());
        call.out = View(outs.data() + turn * rows * E, DType::kF32, {rows, E});
        ExpertsLaunch launch = experts_launch(call, scratch.data(), kernel);
        launch.variants.streams = streams;
        launch.arrived_blocks = arrived.data() + turn;
        launch.x_is_early = true;
        launch_experts(nullptr, launch);
        if (pause) cuda_check(cudaDeviceSynchronize());
      }
      cuda_check(cudaDeviceSynchronize());
      return outs.download();
    };
    const std::vector<float> paused = turns(true);
    ASSERT_NE(std::memcmp(paused.data(), paused.data() + rows * E, static_cast<size_t>(rows * E) * 4), 0)
        << "two turns are one";
    for (int i = 0; i < 5; ++i) {
      const std::vector<float> got = turns(false);
      ASSERT_EQ(std::memcmp(got.data(), paused.data(), got.size() * 4), 0) << rows << " rows";
    }
  }
}

}  // namespace
}  // namespace tensorfold::cuda
