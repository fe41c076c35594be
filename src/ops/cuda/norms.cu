// rms_norm() and gated_rms_norm() on CUDA, bound by memory (and, for few rows, by the latency of one read).
// Formulas: ops.h. A row, or a group, is read once and stays in registers.
#include <algorithm>

#include "ops/cuda/device/async.cuh"
#include "ops/cuda/device/launch.cuh"
#include "ops/cuda/device/short_sum.cuh"
#include "ops/cuda/device/values.cuh"
#include "ops/cuda/multiprocessors.h"
#include "ops/cuda/norms_params.h"

namespace tensorfold::cuda {
namespace {

constexpr int kThreads = kShortSumPartials;

/// Blocks of rms_norm() for many rows. Each takes every n-th row and keeps the weights, which would otherwise
/// pass from L2 once a row, as many bytes as x.
constexpr int kRowBlocksOfSm = 3;
/// Blocks an SM that registers must allow, where a thread keeps `floats`: three leave 85 registers, two 128.
constexpr int min_blocks(int floats) { return floats <= 48 ? 3 : floats <= 96 ? 2 : 1; }

/// Elements first, first + kStride, ... of a row of `count`; zeros beyond.
template <int kStride, int kPieces>
__device__ __forceinline__ void load_pieces(float (&x)[kPieces], const float* row, int first, int count) {
#pragma unroll
  for (int i = 0; i < kPieces; ++i) x[i] = first + kStride * i < count ? row[first + kStride * i] : 0.0f;
}

/// The same of what an earlier kernel of the pass wrote.
template <int kStride, int kPieces>
__device__ __forceinline__ void load_written_pieces(float (&x)[kPieces], const float* row, int first,
                                                    int count) {
#pragma unroll
  for (int i = 0; i < kPieces; ++i)
    x[i] = first + kStride * i < count ? load_written(row + first + kStride * i) : 0.0f;
}

/// Grid: up to kRowBlocksOfSm blocks an SM, each row by one of them; thread i has columns i, i + 256, ...,
/// one partial. Traffic: x and out once (out twice where it accumulates), the weights once a block.
template <int kPieces, bool kAccumulates>
__global__ void __launch_bounds__(kThreads, min_blocks((kAccumulates ? 3 : 2) * kPieces))
    rms_norm_kernel(const __grid_constant__ RmsNormLaunch p) {
  __shared__ float partials[2][kShortSumPartials];  // In turn: one barrier a row is enough.
  launch_dependents();
  const int thread = threadIdx.x;
  float weight[kPieces];
  load_pieces<kThreads>(weight, p.weight, thread, p.num_columns);
  int turn = 0;
  // Of few rows, the block's first turn is a rehearsal: see device/launch.cuh.
  bool is_rehearsal = p.num_rows <= kMaxRehearsedRows;
  if (!is_rehearsal) wait_for_previous_kernel();
  int64_t t = blockIdx.x;
#pragma unroll 1
  while (t < p.num_rows) {
    float* out = static_cast<float*>(p.out) + t * p.out_stride;
    uint16_t* out_bf16 = static_cast<uint16_t*>(p.out) + t * p.out_stride;
    float x[kPieces], before[kPieces];
    load_written_pieces<kThreads>(x, p.x + t * p.x_stride, thread, p.num_columns);
    if constexpr (kAccumulates) load_written_pieces<kThreads>(before, out, thread, p.num_columns);
    const float squares = sum_of_squares<kThreads>(x, partials[turn]);
    const float inverse = inverse_norm(squares, p.reciprocal, p.eps);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int column = thread + kThreads * i;
      float y = __fmul_rn(__fmul_rn(x[i], inverse), weight[i]);
      if constexpr (kAccumulates) y = __fadd_rn(before[i], y);
      if (column < p.num_columns && !is_rehearsal) {
        if (p.out_is_bf16) {
          out_bf16[column] = float_to_bf16(y);
        } else {
          out[column] = y;
        }
      }
    }
    turn ^= 1;
    if (is_rehearsal) {
      wait_for_previous_kernel();
      is_rehearsal = false;
    } else {
      t += gridDim.x;
    }
  }
}

/// Block: 256 threads, kTeam of them (a warp, or all) a group. Grid: the groups of all rows, in order.
/// Traffic: x, gate and out once, weights from L2.
template <int kTeam, int kPieces>
__global__ void __launch_bounds__(kThreads)
    gated_rms_norm_kernel(const __grid_constant__ GatedRmsNormLaunch p) {
  __shared__ float partials[kTeam == 32 ? 1 : kShortSumPartials];
  launch_dependents();
  wait_for_previous_kernel();
  const int64_t index = int64_t{blockIdx.x} * (kThreads / kTeam) + threadIdx.x / kTeam;
  const int64_t t = index / p.num_groups;
  if (t >= p.num_rows) return;  // A whole warp: its block has no barrier.
  const int group = static_cast<int>(index - t * p.num_groups), thread = threadIdx.x % kTeam;
  const int64_t first = int64_t{group} * p.group_size;
  float x[kPieces], gate[kPieces];
  load_pieces<kTeam>(x, p.x + t * p.x_stride + first, thread, p.group_size);
  load_pieces<kTeam>(gate, p.gate + t * p.gate_stride + first, thread, p.group_size);
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    gate[i] = silu_f32(gate[i]);
    if (p.gates_first) x[i] = __fmul_rn(x[i], gate[i]);
  }
  const float inverse = inverse_norm(sum_of_squares<kTeam>(x, partials), p.reciprocal, p.eps);
  const float* weight = p.weight + int64_t{group} * p.weight_stride;
  uint16_t* out = p.out + t * p.out_stride + first;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int column = thread + kTeam * i;
    if (column < p.group_size) {
      const float y = __fmul_rn(__fmul_rn(x[i], inverse), weight[column]);
      out[column] = float_to_bf16(p.gates_first ? y : __fmul_rn(y, gate[i]));
    }
  }
}

template <int kPieces>
void launch_rows(CUstream_st* stream, const RmsNormLaunch& p) {
  launch_kernel(p.accumulate ? rms_norm_kernel<kPieces, true> : rms_norm_kernel<kPieces, false>,
                std::min(p.num_rows, kRowBlocksOfSm * num_multiprocessors()), kThreads, 0, stream, p);
}

template <int kTeam, int kPieces>
void launch_groups(CUstream_st* stream, const GatedRmsNormLaunch& p) {
  constexpr int kBlockGroups = kThreads / kTeam;
  const int64_t groups = int64_t{p.num_rows} * p.num_groups;
  launch_kernel(gated_rms_norm_kernel<kTeam, kPieces>,
                static_cast<unsigned>((groups + kBlockGroups - 1) / kBlockGroups), kThreads, 0, stream, p);
}

}  // namespace

void launch_rms_norm(CUstream_st* stream, const RmsNormLaunch& p) {
  if (p.num_rows == 0 || p.num_columns == 0) return;
  const int pieces = (p.num_columns + kThreads - 1) / kThreads;
  if (pieces <= 4) return launch_rows<4>(stream, p);
  if (pieces <= 8) return launch_rows<8>(stream, p);
  if (pieces <= 16) return launch_rows<16>(stream, p);
  if (pieces <= 24) return launch_rows<24>(stream, p);
  if (pieces <= 32) return launch_rows<32>(stream, p);
  launch_rows<kMaxNormColumns / kThreads>(stream, p);
}

void launch_gated_rms_norm(CUstream_st* stream, const GatedRmsNormLaunch& p) {
  if (p.num_rows == 0 || p.num_groups == 0) return;
  if (p.group_size <= 128) return launch_groups<32, 4>(stream, p);
  if (p.group_size <= 256) return launch_groups<32, 8>(stream, p);
  if (p.group_size <= 2048) return launch_groups<kThreads, 8>(stream, p);
  if (p.group_size <= 8192) return launch_groups<kThreads, 32>(stream, p);
  launch_groups<kThreads, kMaxNormColumns / kThreads>(stream, p);
}

}  // namespace tensorfold::cuda
