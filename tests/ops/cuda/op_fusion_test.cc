// OpFusion: what becomes one launch, and that its kernel gives the bits of the launches that it stands for,
// in every byte of memory that those write.
#include "ops/cuda/op_fusion.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <vector>

#include "ops/cuda/norms.h"
#include "ops/cuda/pass_parts.h"
#include "ops/cuda/recurrences.h"
#include "tests/ops/cuda/cuda_test_util.h"

namespace tensorfold::cuda {
namespace {

struct Sizes {
  int64_t key_heads = 2, value_heads = 6, key_dim = 128, value_dim = 128, taps = 4;

  int64_t keys() const { return key_heads * key_dim; }
  int64_t values() const { return value_heads * value_dim; }
  int64_t channels() const { return 2 * keys() + values(); }
  RecurrentShape shape() const {
    return {.conv_channels = channels(),
            .conv_taps = taps,
            .num_heads = value_heads,
            .key_dim = key_dim,
            .value_dim = value_dim};
  }
  int64_t conv_bytes() const { return ((taps - 1) * channels() * 4 + 63) / 64 * 64; }
  int64_t slot_bytes() const { return conv_bytes() + value_heads * key_dim * value_dim * 4; }
};

/// The rows of a sequence in a pass.
struct Rows {
  int count = 1;
  int stored = 1;
  bool is_start = false;
};
using Pass = std::vector<Rows>;

int64_t num_rows_of(const Pass& pass) {
  int64_t rows = 0;
  for (const Rows& r : pass) rows += r.count;
  return rows;
}

struct Wish {
  bool norms = true;  ///< Else the recurrence is alone, as in a commit.
  bool has_conv_bias = false;
  GatedRmsNormCall::Order order = GatedRmsNormCall::Order::kNormThenGate;
};

/// Hands out parts of one piece of memory, which may be none, to learn its size.
class Memory {
 public:
  explicit Memory(std::byte* base) : base_(base) {}
  /// [rows, columns], with some elements between the rows.
  View array(DType dtype, int64_t rows, int64_t columns) {
    View view(base_ + at_, dtype, {rows, columns});
    view.row_stride = (columns + 7) / 8 * 8 + 24;
    take(rows * view.row_stride * dtype_bytes(dtype));
    return view;
  }
  std::byte* take(int64_t bytes) {
    std::byte* at = base_ + at_;
    at_ += (bytes + 255) / 256 * 256;
    return at;
  }
  int64_t size() const { return at_; }

 private:
  std::byte* base_;
  int64_t at_ = 0;
};

/// The ops of one layer's pass.
struct Layer {
  CausalConvLaunch conv;
  RecurrenceLaunch delta;
  std::optional<GatedRmsNormLaunch> norm;
};

/// Where the layer's arrays and weights are. Weights are numbers of the same memory.
struct Arrays {
  View qkv, mixed, a, b, z, read, normed, conv_weight, conv_bias, a_log, dt_bias, norm_weight;
  std::byte* states;

  Arrays(Memory& memory, const Sizes& s, int64_t rows, int64_t num_slots) {
    const auto floats = [&](int64_t n, int64_t columns) { return memory.array(DType::kF32, n, columns); };
    qkv = floats(rows, s.channels()), mixed = floats(rows, s.channels());
    a = floats(rows, s.value_heads), b = floats(rows, s.value_heads);
    z = floats(rows, s.values()), read = floats(rows, s.values());
    normed = memory.array(DType::kBF16, rows, s.values());
    conv_weight = floats(s.taps, s.channels());
    const auto vector = [&](int64_t n) { return View(memory.take(n * 4), DType::kF32, {n}); };
    conv_bias = vector(s.channels()), a_log = vector(s.value_heads), dt_bias = vector(s.value_heads);
    norm_weight = vector(s.value_dim);
    states = memory.take(s.slot_bytes() * num_slots);
  }
};

Layer layer_of(const Sizes& s, const Arrays& a, const RecurrentSequence* sequences, const Pass& pass,
               const Wish& wish) {
  RecurrentRows rows{.sequences = sequences, .num_sequences = static_cast<int>(pass.size())};
  for (const Rows& r : pass) rows.max_rows = std::max<int64_t>(rows.max_rows, r.count);
  const RecurrentStates states{.shape = s.shape(),
                               .conv = a.states,
                               .matrix = a.states + s.conv_bytes(),
                               .slot_stride_bytes = s.slot_bytes(),
                               .num_slots = std::ssize(pass)};
  Layer layer{.conv = causal_conv_launch({.out = a.mixed,
                                          .x = a.qkv,
                                          .weight = a.conv_weight,
                                          .bias = wish.has_conv_bias ? a.conv_bias : View(),
                                          .states = &states,
                                          .rows = {}},
                                         rows),
              .delta = gated_delta_launch({.out = a.read,
                                           .q = a.mixed.columns(0, s.keys()),
                                           .k = a.mixed.columns(s.keys(), s.keys()),
                                           .v = a.mixed.columns(2 * s.keys(), s.values()),
                                           .a = a.a,
                                           .b = a.b,
                                           .a_log = a.a_log,
                                           .dt_bias = a.dt_bias,
                                           .states = &states,
                                           .rows = {}},
                                          rows, recurrence_blocks(s.shape(), s.key_heads, rows)),
              .norm = {}};
  if (wish.norms)
    layer.norm = gated_rms_norm_launch({.out = a.normed,
                                        .x = a.read,
                                        .gate = a.z,
                                        .weight = a.norm_weight,
                                        .group_size = s.value_dim,
                                        .eps = 1e-6f,
                                        .order = wish.order});
  return layer;
}

LaunchList separate(const Layer& layer) {
  LaunchList list;
  list.add<launch_causal_conv>(layer.conv);
  list.add<launch_gated_delta>(layer.delta);
  if (layer.norm) list.add<launch_gated_rms_norm>(*layer.norm);
  return list;
}
LaunchList fused(const Layer& layer, int64_t num_rows) {
  LaunchList list;
  OpFusion fusion(list);
  fusion.begin_pass(num_rows);
  fusion.causal_conv(layer.conv);
  fusion.gated_delta(layer.delta);
  if (layer.norm) fusion.gated_rms_norm(*layer.norm);
  fusion.flush();
  return list;
}
LaunchList one_step(const Layer& layer) {
  LaunchList list;
  list.add<launch_gated_delta_step>(GatedDeltaStepLaunch{
      .conv = layer.conv, .delta = layer.delta, .norm = layer.norm.value_or(GatedRmsNormLaunch{})});
  return list;
}

// On the host: which launches there are. Nothing is launched or read.

class Host {
 public:
  explicit Host(const Sizes& sizes, const Pass& pass = {{}}, const Wish& wish = {})
      : bytes_(static_cast<size_t>(size(sizes, pass))), arrays_(make(sizes, pass)), pass_(pass) {
    layer = layer_of(sizes, arrays_, reinterpret_cast<RecurrentSequence*>(bytes_.data()), pass, wish);
  }
  LaunchList fused() const { return cuda::fused(layer, num_rows_of(pass_)); }
  bool is_one_step() const { return fused() == one_step(layer); }
  bool is_separate() const { return fused() == separate(layer); }
  const Arrays& arrays() const { return arrays_; }

  Layer layer{};

 private:
  static int64_t size(const Sizes& sizes, const Pass& pass) {
    Memory memory(nullptr);
    Arrays(memory, sizes, num_rows_of(pass), std::ssize(pass));
    return memory.size();
  }
  Arrays make(const Sizes& sizes, const Pass& pass) {
    Memory memory(bytes_.data());
    return Arrays(memory, sizes, num_rows_of(pass), std::ssize(pass));
  }
  std::vector<std::byte> bytes_;
  Arrays arrays_;
  Pass pass_;
};

TEST(OpFusion, MakesOneLaunchOfAStep) {
  EXPECT_TRUE(Host(Sizes{}).is_one_step());
  EXPECT_TRUE(Host(Sizes{}, {{8, 3}, {1, 1, true}}).is_one_step());
  EXPECT_TRUE(Host(Sizes{}, {{}}, {.norms = false}).is_one_step());
  EXPECT_TRUE(Host(Sizes{.key_heads = 3, .value_heads = 3, .key_dim = 40, .value_dim = 24}).is_one_step());
}

TEST(OpFusion, LeavesWhatOneKernelDoesNotTake) {
  EXPECT_TRUE(Host(Sizes{}, {{9, 9}}).is_separate());
  EXPECT_TRUE(Host(Sizes{.key_dim = 256}).is_separate());
  EXPECT_TRUE(Host(Sizes{.value_dim = 256}).is_separate());
  EXPECT_TRUE(Host(Sizes{.key_heads = 1, .value_heads = 9}).is_separate());
  // More blocks than are worth one launch.
  EXPECT_TRUE(Host(Sizes{.key_dim = 8, .value_dim = 8}, Pass(44)).is_one_step());
  EXPECT_TRUE(Host(Sizes{.key_dim = 8, .value_dim = 8}, Pass(45)).is_separate());
}

TEST(OpFusion, LeavesOpsThatDoNotBelongTogether) {
  const auto inputs_of = [](Layer& l) { return const_cast<float*>(l.conv.x.data); };
  const std::function<void(Layer&)> changes[] = {
      [](Layer& l) { ++l.delta.sequences; },
      [](Layer& l) { ++l.delta.num_sequences; },
      [](Layer& l) { l.delta.slot_stride += 4; },
      // Not of the convolution's outputs, or not of all of them, each once.
      [&](Layer& l) { l.delta.keys.data = inputs_of(l); },
      [](Layer& l) { l.delta.keys.stride += 4; },
      [](Layer& l) { l.delta.queries.stride += 4; },
      [](Layer& l) { l.delta.values.stride += 4; },
      [](Layer& l) { l.delta.keys.data = l.delta.queries.data; },
      [](Layer& l) { l.delta.queries.data += l.delta.key_dim; },
      [](Layer& l) { l.delta.values.data -= l.delta.key_dim; },
      [](Layer& l) { ++l.conv.num_channels; },
      // Onto what other blocks still read.
      [](Layer& l) { l.conv.x.data = l.conv.out; },
      [&](Layer& l) { l.norm->x = l.delta.out = inputs_of(l); },
      [](Layer& l) { l.norm->x = l.delta.out = l.conv.out; },
      [](Layer& l) { l.delta.decay.data = l.conv.out; },
      [](Layer& l) { l.delta.beta.data = l.conv.out; },
      [](Layer& l) { l.delta.decay.data = l.delta.out; },
      [](Layer& l) { l.delta.beta.data = l.delta.out; },
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    Host host(Sizes{}, {{2, 2}});
    changes[i](host.layer);
    EXPECT_TRUE(host.is_separate()) << i;
  }
}

TEST(OpFusion, LeavesNormsOfAnythingElse) {
  const auto halves = [](const float* data) { return reinterpret_cast<uint16_t*>(const_cast<float*>(data)); };
  const std::function<void(Layer&)> changes[] = {
      [](Layer& l) { l.norm->x = l.conv.x.data; },
      [](Layer& l) { l.norm->x_stride += 4; },
      [](Layer& l) { --l.norm->num_rows; },
      [](Layer& l) { --l.norm->num_groups; },
      [](Layer& l) { l.norm->group_size /= 2; },
      // Onto what other heads still read, or where they write.
      [&](Layer& l) { l.norm->out = halves(l.norm->gate); },
      [&](Layer& l) { l.norm->out = halves(l.conv.x.data); },
      [&](Layer& l) { l.norm->out = halves(l.conv.out); },
      [&](Layer& l) { l.norm->out = halves(l.delta.out); },
      [](Layer& l) { l.delta.decay.data = reinterpret_cast<const float*>(l.norm->out); },
      [](Layer& l) { l.delta.beta.data = reinterpret_cast<const float*>(l.norm->out); },
      [](Layer& l) { l.norm->gate = l.conv.out; },
      [](Layer& l) { l.norm->gate = l.delta.out; },
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    Host host(Sizes{}, {{2, 2}});
    changes[i](host.layer);
    LaunchList expected = one_step({host.layer.conv, host.layer.delta, {}});
    expected.add<launch_gated_rms_norm>(*host.layer.norm);
    EXPECT_TRUE(host.fused() == expected) << i;
  }
}

TEST(OpFusion, KeepsTheOrderOfLaunches) {
  const Host host(Sizes{});
  LaunchList list, expected;
  OpFusion fusion(list);
  fusion.begin_pass(1);
  fusion.causal_conv(host.layer.conv);
  fusion.causal_conv(host.layer.conv);
  fusion.gated_delta(host.layer.delta);
  fusion.gated_delta(host.layer.delta);
  fusion.gated_rms_norm(*host.layer.norm);
  fusion.causal_conv(host.layer.conv);
  fusion.gated_rms_norm(*host.layer.norm);
  fusion.causal_conv(host.layer.conv);
  fusion.flush();
  expected.add<launch_causal_conv>(host.layer.conv);
  expected.add<launch_gated_delta_step>(
      GatedDeltaStepLaunch{.conv = host.layer.conv, .delta = host.layer.delta, .norm = {}});
  expected.add<launch_gated_delta>(host.layer.delta);
  expected.add<launch_gated_rms_norm>(*host.layer.norm);
  expected.add<launch_causal_conv>(host.layer.conv);
  expected.add<launch_gated_rms_norm>(*host.layer.norm);
  expected.add<launch_causal_conv>(host.layer.conv);
  EXPECT_TRUE(list == expected);

  fusion.causal_conv(host.layer.conv);
  fusion.begin_pass(1);
  fusion.flush();
  EXPECT_TRUE(list == expected);
}

// A part of a pass may end in a launch that is added beside others or by the fusion itself.
TEST(PassParts, EndBehindAnyLaunch) {
  const Host host(Sizes{});
  PassParts parts;
  for (const int already : {30, 31}) {
    LaunchList list;
    OpFusion fusion(list);
    fusion.begin_pass(1);
    parts.begin();
    for (int i = 0; i < already; ++i) list.add<launch_causal_conv>(host.layer.conv);
    fusion.causal_conv(host.layer.conv);
    fusion.gated_delta(host.layer.delta);
    fusion.gated_rms_norm(*host.layer.norm);
    fusion.flush();
    list.add<launch_causal_conv>(host.layer.conv);
    EXPECT_TRUE(parts.is_full(list.size())) << already;
  }
}
TEST(PassParts, BecomeLonger) {
  PassParts parts;
  parts.begin();
  EXPECT_FALSE(parts.is_full(31));
  EXPECT_TRUE(parts.is_full(32));
  parts.next();
  EXPECT_FALSE(parts.is_full(127));
  EXPECT_TRUE(parts.is_full(128));
  parts.begin();
  EXPECT_TRUE(parts.is_full(32));
}

// On a device.

/// Memory with the same numbers at first, and passes over it.
class Device {
 public:
  Device(const Sizes& sizes, const Pass& pass, const Wish& wish)
      : memory_(first_values(sizes, pass)), sequences_(sequences_of(pass)) {
    Memory memory(memory_.data());
    layer = layer_of(sizes, Arrays(memory, sizes, num_rows_of(pass), std::ssize(pass)), sequences_.data(),
                     pass, wish);
  }
  std::vector<std::byte> run(const LaunchList& list) const {
    list.run(nullptr);
    cuda_check(cudaGetLastError());
    cuda_check(cudaDeviceSynchronize());
    EXPECT_TRUE(memory_.guards_intact());
    return memory_.download();
  }
  Layer layer{};

 private:
  /// Numbers of the size of 1, everywhere.
  static std::vector<std::byte> first_values(const Sizes& sizes, const Pass& pass) {
    Memory memory(nullptr);
    Arrays(memory, sizes, num_rows_of(pass), std::ssize(pass));
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0.0f, 0.5f);
    std::vector<float> floats(static_cast<size_t>(memory.size() / 4));
    for (float& v : floats) v = normal(random);
    std::vector<std::byte> bytes(floats.size() * 4);
    std::memcpy(bytes.data(), floats.data(), bytes.size());
    return bytes;
  }
  static std::vector<RecurrentSequence> sequences_of(const Pass& pass) {
    std::vector<RecurrentSequence> sequences;
    int32_t first = 0;
    for (const Rows& r : pass) {
      const auto slot = static_cast<int32_t>(pass.size() - 1 - sequences.size());
      sequences.push_back({first, r.count, r.stored, slot, r.is_start ? 1 : 0});
      first += r.count;
    }
    return sequences;
  }
  DeviceArray<std::byte> memory_;
  DeviceArray<RecurrentSequence> sequences_;
};

TEST(CudaGatedDeltaStep, GivesTheBitsOfSeparateLaunches) {
  if (!have_device()) GTEST_SKIP() << "no sm_90 device";
  const Sizes all_sizes[] = {
      {},
      {.key_heads = 16, .value_heads = 48},
      {.key_heads = 3, .value_heads = 3, .key_dim = 32, .value_dim = 64, .taps = 2},
      {.key_heads = 2, .value_heads = 8, .key_dim = 48, .value_dim = 24, .taps = 3},
      {.key_heads = 1, .value_heads = 8, .key_dim = 20, .value_dim = 12, .taps = 1},
  };
  const Pass passes[] = {{{1, 1}},
                         {{1, 1, true}},
                         {{8, 8}},
                         {{8, 1, true}},
                         {{7, 0}},
                         {{1, 1}, {1, 1, true}, {1, 0}, {1, 1}},
                         {{3, 0}, {4, 2}, {1, 1, true}},
                         {{2, 2, true}, {6, 3}},
                         {{0, 0}, {5, 5}}};
  const Wish wishes[] = {
      {}, {.norms = false}, {.has_conv_bias = true, .order = GatedRmsNormCall::Order::kGateThenNorm}};
  for (const Sizes& sizes : all_sizes) {
    for (const Pass& pass : passes) {
      for (const Wish& wish : wishes) {
        const Device expected(sizes, pass, wish), got(sizes, pass, wish);
        const LaunchList step = fused(got.layer, num_rows_of(pass));
        ASSERT_TRUE(step == one_step(got.layer));
        for (int i = 0; i < 3; ++i) {  // The states go on.
          const std::vector<std::byte> a = expected.run(separate(expected.layer)), b = got.run(step);
          ASSERT_TRUE(a == b) << sizes.value_heads << " heads of " << sizes.value_dim << ", " << pass.size()
                              << " sequences, " << num_rows_of(pass) << " rows, pass " << i << ": byte "
                              << std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin();
        }
      }
    }
  }
}

}  // namespace
}  // namespace tensorfold::cuda
