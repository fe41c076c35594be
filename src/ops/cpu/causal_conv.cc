// causal_conv of the cpu backend: a task is some channels of one sequence, all rows of it; lanes run over
// channels. A row is read again as each later tap's, from L1.
#include "ops/cpu/isa_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/causal_conv.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/causal_conv.h"
#include "ops/cpu/simd_math-inl.h"

#ifndef TENSORFOLD_OPS_CPU_CAUSAL_CONV_TYPES_
#define TENSORFOLD_OPS_CPU_CAUSAL_CONV_TYPES_
namespace tensorfold::cpu {

/// Some channels of one sequence; strides are elements from row to row.
struct ConvBlock {
  int64_t taps = 0, num_rows = 0, num_channels = 0;
  const float* x = nullptr;
  int64_t x_stride = 0;
  const float* weight = nullptr;
  int64_t weight_stride = 0;
  const float* bias = nullptr;  ///< Or null.
  const float* kept = nullptr;  ///< The taps - 1 rows before the first.
  int64_t kept_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;

  /// Row `r` of the sequence's rows in the pass, r >= 1 - taps.
  const float* reach(int64_t r) const {
    return r < 0 ? kept + (taps - 1 + r) * kept_stride : x + r * x_stride;
  }
};

}  // namespace tensorfold::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {

/// Row r, four taps: their pointers stay in registers.
HWY_INLINE void conv_row_of_4(const ConvBlock& block, int64_t r) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const float *x0 = block.reach(r - 3), *x1 = block.reach(r - 2), *x2 = block.reach(r - 1),
              *x3 = block.reach(r);
  const float *w0 = block.weight, *w1 = w0 + block.weight_stride, *w2 = w1 + block.weight_stride;
  const float *w3 = w2 + block.weight_stride, *bias = block.bias;
  float* out = block.out + r * block.out_stride;
  int64_t c = 0;
  for (; c + lanes <= block.num_channels; c += lanes) {
    auto y = bias == nullptr ? hn::Zero(d) : hn::LoadU(d, bias + c);
    y = hn::MulAdd(hn::LoadU(d, w0 + c), hn::LoadU(d, x0 + c), y);
    y = hn::MulAdd(hn::LoadU(d, w1 + c), hn::LoadU(d, x1 + c), y);
    y = hn::MulAdd(hn::LoadU(d, w2 + c), hn::LoadU(d, x2 + c), y);
    y = hn::MulAdd(hn::LoadU(d, w3 + c), hn::LoadU(d, x3 + c), y);
    hn::StoreU(simd_silu(d, y), d, out + c);
  }
  for (; c < block.num_channels; ++c) {
    float y = bias == nullptr ? 0.0f : bias[c];
    y = contract::fused(w0[c], x0[c], y);
    y = contract::fused(w1[c], x1[c], y);
    y = contract::fused(w2[c], x2[c], y);
    y = contract::fused(w3[c], x3[c], y);
    out[c] = silu_f32(y);
  }
}

/// Row r, any number of taps.
HWY_INLINE void conv_row(const ConvBlock& block, int64_t r) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  float* out = block.out + r * block.out_stride;
  const auto x = [&](int64_t j) { return block.reach(r + 1 - block.taps + j); };
  int64_t c = 0;
  for (; c + lanes <= block.num_channels; c += lanes) {
    auto y = block.bias == nullptr ? hn::Zero(d) : hn::LoadU(d, block.bias + c);
    for (int64_t j = 0; j < block.taps; ++j)
      y = hn::MulAdd(hn::LoadU(d, block.weight + j * block.weight_stride + c), hn::LoadU(d, x(j) + c), y);
    hn::StoreU(simd_silu(d, y), d, out + c);
  }
  for (; c < block.num_channels; ++c) {
    float y = block.bias == nullptr ? 0.0f : block.bias[c];
    for (int64_t j = 0; j < block.taps; ++j)
      y = contract::fused(block.weight[j * block.weight_stride + c], x(j)[c], y);
    out[c] = silu_f32(y);
  }
}

void conv_block(const ConvBlock& block) {
  for (int64_t r = 0; r < block.num_rows; ++r) {
    if (block.taps == 4) {
      conv_row_of_4(block, r);
    } else {
      conv_row(block, r);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <cstring>

namespace tensorfold::cpu {
namespace {

/// Channels of a task: about 8,192 outputs, or a quarter of a thread's share of a long sequence, because
/// longer pieces of a row are read faster; at least 1 KB of it. Whole cache lines, so that two threads write
/// none together.
int64_t channels_per_task(int64_t num_rows, int64_t num_channels, int num_threads) {
  constexpr int64_t kTaskElements = 8192, kMinChannels = 256, kLineFloats = 16;
  const int64_t wanted = std::max(
      {kMinChannels, kTaskElements / std::max<int64_t>(1, num_rows), num_channels / (4 * num_threads)});
  return std::min(num_channels, wanted / kLineFloats * kLineFloats);
}

/// The last taps - 1 rows before row `end`, to rows of `stride` floats; ascending, because a kept row may
/// move to an earlier place.
void keep_last_rows(const ConvBlock& block, int64_t end, float* kept, int64_t stride) {
  const int64_t tail = block.taps - 1;
  for (int64_t i = 0; i < tail; ++i) {
    float* to = kept + i * stride;
    const float* from = block.reach(end - tail + i);
    if (from != to) std::memcpy(to, from, static_cast<size_t>(block.num_channels) * sizeof(float));
  }
}

/// Some channels of a sequence.
struct ConvTask {
  const SequenceRows& sequence;
  int64_t first_channel = 0, num_channels = 0;
  const float* zeros = nullptr;  ///< [C]: a row before the sequence's start.
};

// The slot of a sequence that starts is not cleared for it: with drafted rows only it stays as it was, and
// other tasks may read it.
void convolve(const CausalConvCall& call, const ConvTask& task, void (*run_block)(const ConvBlock&)) {
  const auto& [sequence, first_channel, num_channels, zeros] = task;
  const int64_t C = call.x.dim(1);
  const bool is_start = sequence.first_pos == 0;
  float* kept = call.states->conv_rows(sequence.state_slot) + first_channel;
  const ConvBlock block{
      .taps = call.weight.dim(0),
      .num_rows = sequence.num_rows,
      .num_channels = num_channels,
      .x = call.x.row<const float>(sequence.first_row) + first_channel,
      .x_stride = call.x.row_stride,
      .weight = call.weight.row<const float>(0) + first_channel,
      .weight_stride = call.weight.row_stride,
      .bias = call.bias.data == nullptr ? nullptr : call.bias.row<const float>(0) + first_channel,
      .kept = is_start ? zeros + first_channel : kept,
      .kept_stride = is_start ? 0 : C,
      .out = call.out.row<float>(sequence.first_row) + first_channel,
      .out_stride = call.out.row_stride};
  run_block(block);
  if (sequence.num_stored() > 0) keep_last_rows(block, sequence.num_stored(), kept, C);
}

}  // namespace

void causal_conv(CpuContext& cpu, const CausalConvCall& call) {
  const auto run_block = TF_ISA_FUNCTION(cpu.isa, conv_block);
  const int64_t C = call.x.dim(1), num_sequences = static_cast<int64_t>(call.rows.sequences.size());
  if (num_sequences == 0 || C == 0) return;
  // One split for all sequences, by their mean length.
  const int64_t channels = channels_per_task(call.rows.num_rows() / num_sequences, C, cpu.pool.num_threads());
  const int64_t tasks_per_sequence = (C + channels - 1) / channels;
  const Workspace::Frame frame(cpu.workspace);
  auto* zeros = cpu.workspace.take<float>(C);
  std::fill_n(zeros, C, 0.0f);
  cpu.pool.run(num_sequences * tasks_per_sequence, [&](int64_t task) {
    const int64_t first = task % tasks_per_sequence * channels;
    convolve(call,
             {.sequence = call.rows.sequences[static_cast<size_t>(task / tasks_per_sequence)],
              .first_channel = first,
              .num_channels = std::min(channels, C - first),
              .zeros = zeros},
             run_block);
  });
}

}  // namespace tensorfold::cpu
#endif
