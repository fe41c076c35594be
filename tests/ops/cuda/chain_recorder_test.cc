// ChainRecorder, plans of chains, and how their tiles are dealt: on the host. Nothing is launched or read.
#include "ops/cuda/chain_recorder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "ops/cuda/elementwise.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/norms.h"
#include "tests/ops/random_linear.h"

namespace tensorfold::cuda {
namespace {

constexpr int64_t kHidden = 128, kIntermediate = 256, kRows = 2;
alignas(16) std::array<float, 4 * kHidden> hidden;
alignas(16) std::array<float, 4 * kIntermediate> gate_out, up_out;
alignas(16) std::array<bf16, 4 * kHidden> normed, mixed;
alignas(16) std::array<bf16, 4 * kIntermediate> product;
std::array<float, kHidden> norm_weight;
uint32_t barrier;

template <class T, size_t n>
View rows_of(std::array<T, n>& array, int64_t columns, int64_t rows = kRows) {
  return View(array.data(), sizeof(T) == 4 ? DType::kF32 : DType::kBF16, {rows, columns});
}
View h() { return rows_of(hidden, kHidden); }
View x() { return rows_of(normed, kHidden); }
View gate() { return rows_of(gate_out, kIntermediate); }
View up() { return rows_of(up_out, kIntermediate); }
View mlp() { return rows_of(product, kIntermediate); }

LinearCall call_of(View out, View from, bool accumulate = false, int bits = 4) {
  return {.out = out,
          .weight = {.spec = affine_spec(out.dim(1), from.dim(1), bits, 64, DType::kBF16)},
          .accumulate = accumulate};
}
RmsNormLaunch norm_launch(View out, View from) {
  return rms_norm_launch(out, from, View(norm_weight.data(), DType::kF32, {from.dim(1)}), {.eps = 1e-6f});
}
constexpr MlpActivation kSilu{.kind = MlpActivation::Kind::kSilu};

/// Ops one after the other: to a recorder, or as launches of their own.
class Program {
 public:
  Program& norm(View out, View from) { return ops_.emplace_back(norm_launch(out, from)), *this; }
  Program& linear(View from, std::vector<LinearCall> calls) {
    return ops_.emplace_back(linear_launches(from, calls)), *this;
  }
  Program& activate(View out, View gate, View up, MlpActivation activation = kSilu) {
    return ops_.emplace_back(mlp_activation_launch(out, gate, up, activation)), *this;
  }

  LaunchList in_chains() const {
    LaunchList list;
    ChainRecorder recorder(list, &barrier);
    for (const Op& op : ops_) {
      if (const auto* norm = std::get_if<RmsNormLaunch>(&op)) recorder.rms_norm(*norm);
      if (const auto* products = std::get_if<std::vector<LinearLaunch>>(&op)) recorder.linear(*products);
      if (const auto* activation = std::get_if<MlpActivationLaunch>(&op))
        recorder.mlp_activation(*activation);
    }
    recorder.flush();
    return list;
  }
  /// Ops [begin, end) appended as they are.
  void append_separate(LaunchList& list, size_t begin, size_t end) const {
    for (size_t i = begin; i < end; ++i) {
      if (const auto* norm = std::get_if<RmsNormLaunch>(&ops_[i])) list.add<launch_rms_norm>(*norm);
      if (const auto* products = std::get_if<std::vector<LinearLaunch>>(&ops_[i])) {
        for (const LinearLaunch& launch : *products) list.add<launch_linear>(launch);
      }
      if (const auto* activation = std::get_if<MlpActivationLaunch>(&ops_[i]))
        list.add<launch_mlp_activation>(*activation);
    }
  }
  LaunchList separate() const {
    LaunchList list;
    append_separate(list, 0, ops_.size());
    return list;
  }

 private:
  using Op = std::variant<RmsNormLaunch, std::vector<LinearLaunch>, MlpActivationLaunch>;
  std::vector<Op> ops_;
};

/// A chain written out by hand.
class ExpectedChain {
 public:
  ExpectedChain& step(View from, std::vector<LinearCall> calls, const RmsNormLaunch* norm = nullptr) {
    const LinearLaunch launch = linear_launches(from, calls).at(0);
    ChainStep& s = chain_.steps[chain_.num_steps++];
    s = {.x = launch.x,
         .x_stride = launch.x_stride,
         .norm = {},
         .activation = {},
         .first_call = num_calls_,
         .num_calls = launch.num_calls,
         .num_tiles = launch.num_tiles,
         .deal = 1,
         .in = launch.in,
         .chunks = launch.chunks,
         .chunks_per_segment = launch.chunks_per_segment};
    if (norm != nullptr)
      s.norm = {norm->x,        norm->weight,     static_cast<uint16_t*>(norm->out),
                norm->x_stride, norm->out_stride, norm->reciprocal,
                norm->eps};
    std::copy_n(launch.calls, launch.num_calls, chain_.calls + num_calls_);
    num_calls_ += launch.num_calls;
    chain_.num_rows = launch.num_rows, chain_.layout = launch.layout, chain_.barrier = &barrier;
    return *this;
  }
  ExpectedChain& activation(View out, Activation kind, int deal) {
    ChainStep& s = chain_.steps[chain_.num_steps - 1];
    s.activation = {out.row<uint16_t>(0), out.row_stride, kind, 0.0f, 0.0f};
    s.deal = deal;
    return *this;
  }
  ExpectedChain& swap_first_calls() { return std::swap(chain_.calls[0], chain_.calls[1]), *this; }
  void append_to(LaunchList& list) const { list.add<launch_linear_chain>(chain_); }
  LaunchList list() const {
    LaunchList list;
    append_to(list);
    return list;
  }

 private:
  LinearChain chain_{};
  int num_calls_ = 0;
};

Program mlp_program() {
  return Program()
      .norm(x(), h())
      .linear(x(), {call_of(gate(), x()), call_of(up(), x())})
      .activate(mlp(), gate(), up())
      .linear(mlp(), {call_of(h(), mlp(), true)});
}

TEST(ChainRecorder, MakesOneLaunchOfAnMlp) {
  const RmsNormLaunch norm = norm_launch(x(), h());
  const LaunchList expected = ExpectedChain()
                                  .step(x(), {call_of(gate(), x()), call_of(up(), x())}, &norm)
                                  .activation(mlp(), Activation::kSilu, 2)
                                  .step(mlp(), {call_of(h(), mlp(), true)})
                                  .list();
  EXPECT_TRUE(mlp_program().in_chains() == expected);
  EXPECT_FALSE(mlp_program().separate() == expected);
}

TEST(ChainRecorder, PutsTheGateFirstAndTakesActivationsWithoutOne) {
  Program swapped;
  swapped.linear(x(), {call_of(up(), x()), call_of(gate(), x())})
      .activate(mlp(), gate(), up())
      .linear(mlp(), {call_of(h(), mlp(), true)});
  EXPECT_TRUE(swapped.in_chains() == ExpectedChain()
                                         .step(x(), {call_of(up(), x()), call_of(gate(), x())})
                                         .swap_first_calls()
                                         .activation(mlp(), Activation::kSilu, 2)
                                         .step(mlp(), {call_of(h(), mlp(), true)})
                                         .list());

  const MlpActivation relu{.kind = MlpActivation::Kind::kRelu2};
  Program alone;
  alone.linear(x(), {call_of(up(), x())})
      .activate(mlp(), {}, up(), relu)
      .linear(mlp(), {call_of(h(), mlp(), true)});
  EXPECT_TRUE(alone.in_chains() == ExpectedChain()
                                       .step(x(), {call_of(up(), x())})
                                       .activation(mlp(), Activation::kRelu2, 1)
                                       .step(mlp(), {call_of(h(), mlp(), true)})
                                       .list());
}

TEST(ChainRecorder, LeavesASingleProductAsItIs) {
  Program program;
  program.norm(x(), h())
      .linear(x(), {call_of(gate(), x()), call_of(up(), x())})
      .activate(mlp(), gate(), up());
  EXPECT_TRUE(program.in_chains() == program.separate());
  EXPECT_TRUE(Program().norm(x(), h()).norm(x(), h()).in_chains() ==
              Program().norm(x(), h()).norm(x(), h()).separate());
}

TEST(ChainRecorder, ANormThatNothingReadsFollowsTheChain) {
  Program program = mlp_program();
  program.norm(x(), h());
  LaunchList expected = mlp_program().in_chains();
  Program().norm(x(), h()).append_separate(expected, 0, 1);
  EXPECT_TRUE(program.in_chains() == expected);
}

TEST(ChainRecorder, KeepsApartWhatAStepWouldOverwriteWhileOthersRead) {
  // Each of these has two products that would be a chain but for one overlap.
  const View other = rows_of(mixed, kHidden);
  const LinearCall to_h = call_of(h(), x(), true);
  const auto is_separate = [](const Program& program) { return program.in_chains() == program.separate(); };
  // Onto the rows that the norm of the same step reads.
  EXPECT_TRUE(
      is_separate(Program().norm(x(), h()).linear(x(), {to_h}).linear(other, {call_of(gate(), other)})));
  // Onto the step's own x.
  const View bf16_out(normed.data() + kHidden, DType::kBF16, {kRows, kHidden});
  EXPECT_TRUE(
      is_separate(Program().linear(x(), {call_of(bf16_out, x())}).linear(other, {call_of(gate(), other)})));
  // Onto what the norm of the same step writes.
  EXPECT_TRUE(is_separate(Program()
                              .norm(x(), h())
                              .linear(x(), {call_of(bf16_out, x())})
                              .linear(other, {call_of(gate(), other)})));
  // The activation's result onto one of its arguments.
  const View over_up(reinterpret_cast<bf16*>(up_out.data()), DType::kBF16, {kRows, kIntermediate});
  Program onto_up;
  onto_up.linear(x(), {call_of(gate(), x()), call_of(up(), x())})
      .activate(over_up, gate(), up())
      .linear(other, {call_of(h(), other)});
  EXPECT_TRUE(is_separate(onto_up));
  // Neighbouring columns of one array, as outputs of one linear(), are none.
  std::vector<float> both(4 * kIntermediate);
  View left(both.data(), DType::kF32, {kRows, kIntermediate}),
      right(both.data() + kIntermediate, DType::kF32, {kRows, kIntermediate});
  left.row_stride = right.row_stride = 2 * kIntermediate;
  EXPECT_FALSE(is_separate(Program()
                               .linear(x(), {call_of(left, x()), call_of(right, x())})
                               .linear(other, {call_of(gate(), other)})));
}

TEST(ChainRecorder, ActivationsOfAnythingElseAreLaunchesOfTheirOwn) {
  const auto check = [](Program program) {
    program.linear(mlp(), {call_of(h(), mlp(), true)});
    EXPECT_TRUE(program.in_chains() == program.separate());
  };
  check(Program().linear(x(), {call_of(gate(), x())}).activate(mlp(), gate(), up()));
  check(
      Program().linear(x(), {call_of(gate(), x()), call_of(up(), x(), true)}).activate(mlp(), gate(), up()));
  const View h2(hidden.data() + kRows * kHidden, DType::kF32, {kRows, kHidden});
  check(Program()
            .linear(x(), {call_of(gate(), x()), call_of(up(), x()), call_of(h2, x())})
            .activate(mlp(), gate(), up()));
  check(Program()
            .linear(x(), {call_of(gate(), x()), call_of(up(), x())})
            .norm(x(), h())
            .activate(mlp(), gate(), up()));
}

TEST(ChainRecorder, BeginsAnewWhereLayoutsChangeOrAChainIsFull) {
  const View other = rows_of(mixed, kHidden);
  Program program;
  LaunchList expected;
  ExpectedChain four, eight;
  program.linear(x(), {call_of(gate(), x())}).linear(other, {call_of(gate(), other)});
  four.step(x(), {call_of(gate(), x())}).step(other, {call_of(gate(), other)});
  four.append_to(expected);
  for (int i = 0; i < 2; ++i) {
    program.linear(x(), {call_of(gate(), x(), false, 8)});
    eight.step(x(), {call_of(gate(), x(), false, 8)});
  }
  eight.append_to(expected);
  EXPECT_TRUE(program.in_chains() == expected);

  for (const int count : {kMaxChainSteps, kMaxChainSteps + 1, 2 * kMaxChainSteps}) {
    Program many;
    LaunchList list;
    for (int first = 0; first < count; first += kMaxChainSteps) {
      ExpectedChain chain;
      const int steps = std::min(kMaxChainSteps, count - first);
      for (int i = 0; i < steps; ++i) {
        many.linear(x(), {call_of(gate(), x())});
        chain.step(x(), {call_of(gate(), x())});
      }
      if (steps > 1) chain.append_to(list);
      if (steps == 1) Program().linear(x(), {call_of(gate(), x())}).append_separate(list, 0, 1);
    }
    EXPECT_TRUE(many.in_chains() == list) << count;
  }
}

TEST(ChainRecorder, BeginsAnewWhereMatricesAreTooManyOrRowsDiffer) {
  const std::vector<LinearCall> eight(8, call_of(gate(), x()));
  Program program;
  ExpectedChain three;
  for (int i = 0; i < 4; ++i) program.linear(x(), eight);
  for (int i = 0; i < 3; ++i) three.step(x(), eight);
  LaunchList expected = three.list();
  program.append_separate(expected, 3, 4);
  EXPECT_TRUE(program.in_chains() == expected);

  const View one_x = x().rows(0, 1), one_gate = gate().rows(0, 1);
  Program rows;
  rows.linear(x(), {call_of(gate(), x())}).linear(one_x, {call_of(one_gate, one_x)});
  EXPECT_TRUE(rows.in_chains() == rows.separate());
}

TEST(ChainRecorder, ANormOfMoreThanTheProductReadsIsALaunchOfItsOwn) {
  View half = rows_of(normed, kHidden / 2);
  half.row_stride = kHidden;
  Program program;
  program.norm(x(), h()).linear(half, {call_of(gate(), half)}).linear(half, {call_of(up(), half)});
  LaunchList expected;
  program.append_separate(expected, 0, 1);
  ExpectedChain().step(half, {call_of(gate(), half)}).step(half, {call_of(up(), half)}).append_to(expected);
  EXPECT_TRUE(program.in_chains() == expected);
}

TEST(ChainRecorder, LeavesWhatHasNoKernelOrNoRoom) {
  const auto is_chained = [](int64_t rows, int64_t in, LinearSpec spec) {
    static std::vector<uint16_t> from(17 * 50000 + 8);
    static std::vector<float> out(17 * 16);
    const auto aligned = reinterpret_cast<bf16*>((reinterpret_cast<uintptr_t>(from.data()) + 15) / 16 * 16);
    spec.in = in;
    const View rows_in(aligned, DType::kBF16, {rows, in}),
        rows_out(out.data(), DType::kF32, {rows, spec.out});
    const LinearCall call{.out = rows_out, .weight = {.spec = spec}};
    Program program;
    program.linear(rows_in, {call}).linear(rows_in, {call});
    return !(program.in_chains() == program.separate());
  };
  const LinearSpec four = affine_spec(16, 64, 4, 64, DType::kBF16);
  EXPECT_TRUE(is_chained(1, 17408, four));
  EXPECT_TRUE(is_chained(8, 17408, four));
  EXPECT_TRUE(is_chained(16, 17408, four));
  EXPECT_FALSE(is_chained(17, 5120, four));
  EXPECT_FALSE(is_chained(16, 48000, four));
  EXPECT_FALSE(is_chained(1, 5120, affine_spec(16, 64, 4, 64, DType::kF16)));
  EXPECT_FALSE(is_chained(1, 5120, float_spec(16, 64, DType::kF32)));
  EXPECT_TRUE(is_chained(1, 5120, float_spec(16, 64, DType::kF16)));
}

TEST(ChainRecorder, DoesNotChainRowsThatAreTooWideToNorm) {
  static std::vector<float> wide(kRows * (kMaxChainNormColumns + 64));
  alignas(16) static std::array<bf16, kRows*(kMaxChainNormColumns + 64)> wide_x;
  for (const int64_t columns : {kMaxChainNormColumns, kMaxChainNormColumns + 64}) {
    const View from(wide.data(), DType::kF32, {kRows, columns}),
        to(wide_x.data(), DType::kBF16, {kRows, columns});
    Program program;
    program.norm(to, from).linear(to, {call_of(gate(), to)}).linear(to, {call_of(up(), to)});
    LaunchList expected;
    const RmsNormLaunch norm =
        rms_norm_launch(to, from, View(norm_weight.data(), DType::kF32, {columns}), {.eps = 1e-6f});
    const bool fits = columns == kMaxChainNormColumns;
    if (!fits) program.append_separate(expected, 0, 1);
    ExpectedChain()
        .step(to, {call_of(gate(), to)}, fits ? &norm : nullptr)
        .step(to, {call_of(up(), to)})
        .append_to(expected);
    EXPECT_TRUE(program.in_chains() == expected) << columns;
  }
}

LinearChain ran;
void remember_chain(CUstream_st*, const LinearChain& chain) { ran = chain; }

/// What a LaunchList does so that equal launches are equal bytes must leave a chain's values alone.
TEST(ChainRecorder, AChainComesOutOfAListAsItWentIn) {
  LinearChain chain{};
  std::memset(static_cast<void*>(chain.calls), 0xa5, sizeof chain.calls);
  std::memset(static_cast<void*>(chain.steps), 0x5a, sizeof chain.steps);
  chain.barrier = &barrier, chain.num_steps = 7, chain.num_rows = 5, chain.tuning.cluster = 4;
  LaunchList list;
  list.add<remember_chain>(chain);
  list.run(nullptr);
  EXPECT_EQ(std::memcmp(ran.calls, chain.calls, sizeof chain.calls), 0);
  EXPECT_EQ(std::memcmp(ran.steps, chain.steps, sizeof chain.steps), 0);
  EXPECT_TRUE(ran.barrier == &barrier && ran.num_steps == 7 && ran.num_rows == 5 && ran.tuning.cluster == 4);
}

TEST(ChainPermit, IsHeldByOneAtATime) {
  std::optional<ChainPermit> first = ChainPermit::take(3);
  ASSERT_TRUE(first);
  EXPECT_FALSE(ChainPermit::take(3));
  EXPECT_TRUE(ChainPermit::take(4));
  {
    const ChainPermit moved = *std::move(first);
    first.reset();
    EXPECT_FALSE(ChainPermit::take(3));
  }
  EXPECT_TRUE(ChainPermit::take(3));
}

/// A chain of steps of so many tiles, of 16 rows or fewer and 64 * chunks columns.
LinearChain chain_of(std::vector<std::pair<int, int>> tiles_and_deals, int chunks, int rows) {
  LinearChain chain{};
  chain.layout = layout_of(affine_spec(16, 64, 4, 64, DType::kBF16));
  chain.num_rows = rows;
  for (const auto& [tiles, deal] : tiles_and_deals) {
    ChainStep& step = chain.steps[chain.num_steps++];
    step.num_tiles = tiles, step.deal = deal;
    step.chunks = chunks, step.chunks_per_segment = (chunks + 7) / 8;
  }
  return chain;
}

TEST(ChainPlan, DealsEveryTileOnceAndGoesOnWhereAStepEnded) {
  constexpr int kWarps = 24;
  for (const int resident : {1, 7, 66, 132}) {
    const LinearChain chain = chain_of({{320, 1}, {2176, 2}, {320, 1}, {1031, 1}, {2, 2}, {1, 1}}, 80, 1);
    ChainPlan plan = plan_linear_chain(chain);
    ASSERT_GT(plan.block.stages, 0);
    const int clusters = deal_steps(plan, chain, resident, kWarps);
    EXPECT_EQ(clusters, resident);
    const int slots = kWarps / plan.block.segments * clusters;
    int total = 0;
    std::vector<int> deals_of(static_cast<size_t>(slots));
    for (int i = 0; i < chain.num_steps; ++i) {
      const ChainStep& step = chain.steps[i];
      std::vector<int> seen(static_cast<size_t>(step.num_tiles));
      for (int slot = 0; slot < slots; ++slot) {
        int previous = -1;
        for (int tile = first_tile_of_slot(step, plan.first_slot[i], slot, slots); tile < step.num_tiles;
             tile = next_tile_of_slot(step, tile, slots)) {
          ++seen[static_cast<size_t>(tile)];
          // A deal's second tile comes to the same slot, right behind.
          if (step.deal == 2) {
            EXPECT_EQ(tile % 2 == 1, previous == tile - 1 && tile > 0);
          }
          if (tile % step.deal == 0) ++deals_of[static_cast<size_t>(slot)];
          previous = tile;
        }
      }
      EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
      total += step.num_tiles / step.deal;
    }
    // In number, nobody has more than one deal more than another.
    const auto [least, most] = std::ranges::minmax(deals_of);
    EXPECT_LE(most - least, 1);
    EXPECT_EQ(least, total / slots);
  }
}

TEST(ChainPlan, UsesNoMoreClustersThanHaveWork) {
  const LinearChain chain = chain_of({{5, 1}, {8, 2}}, 8, 1);
  ChainPlan plan = plan_linear_chain(chain);
  EXPECT_EQ(deal_steps(plan, chain, 132, 24), 5);
}

TEST(ChainPlan, FitsSharedMemoryWithItsPartsApart) {
  for (const int chunks : {1, 8, 80, 96, 272}) {
    for (const int rows : {1, 3, 8, 9, 16}) {
      for (const int cluster : {0, 1, 2, 4}) {
        LinearChain chain = chain_of({{320, 1}, {64, 2}}, chunks, rows);
        chain.tuning.cluster = static_cast<uint8_t>(cluster);
        const ChainPlan plan = plan_linear_chain(chain);
        const DecodePlan& p = plan.block;
        if (p.stages == 0) continue;
        if (cluster > 0) {
          EXPECT_EQ(p.cluster, cluster);
        }
        const int warps = rows > 8 ? kTwoRowTileWarps : 24, tiles = rows > 8 ? 2 : 1;
        const int slots = warps / p.segments;
        EXPECT_LE(p.shared_bytes, kMaxSharedBytes);
        EXPECT_LE(warps * p.stages * p.stage_bytes, p.x_offset);
        EXPECT_LE(p.x_offset + p.segments * ((chunks + 7) / 8) * 2 * x_pair_bytes(rows), p.sums_offset);
        // Norms use the sums' place: 2 * 256 floats for each team of 256 threads.
        EXPECT_LE(p.sums_offset + warps / 8 * 2048, p.incoming_offset);
        EXPECT_LE(p.sums_offset + slots * (p.segments - 1) * tiles * kSumBytes, p.incoming_offset);
        EXPECT_LE(p.barriers_offset + 8 * (warps * p.stages + slots * (2 + 2 * p.exchange_depth)),
                  p.extra_offset);
        EXPECT_EQ(p.extra_offset + kMaxChainRows * 4, p.shared_bytes);
        EXPECT_EQ(p.barriers_offset % 8, 0);
        for (int i = 0; i < chain.num_steps; ++i) EXPECT_LE(plan.stage_units[i], p.stage_units);
      }
    }
  }
}

}  // namespace
}  // namespace tensorfold::cuda
