// rope_table() and qk_norm_rope() on CUDA. Formulas: ops.h.
#include "ops/cuda/device/async.cuh"
#include "ops/cuda/device/launch.cuh"
#include "ops/cuda/device/short_sum.cuh"
#include "ops/cuda/device/values.cuh"
#include "ops/cuda/rope_params.h"

namespace tensorfold::cuda {
namespace {

constexpr int kTableThreads = 64;  ///< Half of the usual heads' width: a block is a row.
constexpr int kBlockHeads = 8;     ///< Warps of a block of qk_norm_rope().

/// A thread: one angle. In double, as its definition.
__global__ void __launch_bounds__(kTableThreads)
    rope_table_kernel(const __grid_constant__ RopeTableLaunch p, int blocks_per_row) {
  launch_dependents();
  wait_for_previous_kernel();
  const int64_t t = blockIdx.x / blocks_per_row;
  const int j = static_cast<int>(blockIdx.x % blocks_per_row) * kTableThreads + static_cast<int>(threadIdx.x);
  if (j >= p.half) return;
  const SinCos angle = sincos_f64(__dmul_rn(static_cast<double>(p.positions[t]), p.inv_freq[j]));
  p.cos[t * p.cos_stride + j] = static_cast<float>(__dmul_rn(angle.cos, p.multiplier));
  p.sin[t * p.sin_stride + j] = static_cast<float>(__dmul_rn(angle.sin, p.multiplier));
}

/// Element d of a head whose elements all lie in `head`, rotated; cos and sin are those of its pair.
__device__ __forceinline__ float rotated(const float* head, float x, int d, int half, float cos, float sin) {
  if (d < half) return __fmaf_rn(x, cos, -__fmul_rn(head[d + half], sin));
  if (d < 2 * half) return __fmaf_rn(x, cos, __fmul_rn(head[d - half], sin));
  return flush_denormal(x);
}

/// Grid: the heads of all rows, a row's queries before its keys; a warp a head, lane l has its elements l,
/// l + 32, ... Pairs of any rotary width meet in shared memory. Traffic: q and k once as f32 and once as
/// bf16; a row's table is read by all its heads.
template <int kPieces>
__global__ void __launch_bounds__(32 * kBlockHeads)
    qk_norm_rope_kernel(const __grid_constant__ QkNormRopeLaunch p) {
  __shared__ float block_heads[kBlockHeads][32 * kPieces];
  launch_dependents();
  const int lane = threadIdx.x % 32, row_heads = p.q.num_heads + p.k.num_heads;
  const int index = blockIdx.x * kBlockHeads + threadIdx.x / 32;
  const int t = index / row_heads, row_head = index - t * row_heads;
  const bool is_key = row_head >= p.q.num_heads;
  const RopeHeads& heads = is_key ? p.k : p.q;
  const int head = is_key ? row_head - p.q.num_heads : row_head;
  float weight[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i)
    weight[i] = heads.norm != nullptr && lane + 32 * i < p.head_dim ? heads.norm[lane + 32 * i] : 0.0f;
  if (t >= p.num_rows) return wait_for_previous_kernel();

  const float* in = heads.in + t * heads.in_stride + head * heads.head_stride;
  // Of few rows the first turn is a rehearsal: see device/launch.cuh.
#pragma unroll 1
  for (int turn = p.num_rows <= kMaxRehearsedRows ? 0 : 1; turn < 2; ++turn) {
    if (turn == 1) wait_for_previous_kernel();
    float x[kPieces], cos[kPieces], sin[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int d = lane + 32 * i, pair = d < p.half ? d : d - p.half;
      x[i] = d < p.head_dim ? load_written(in + d) : 0.0f;
      cos[i] = pair < p.half ? load_written(p.cos + t * p.cos_stride + pair) : 0.0f;
      sin[i] = pair < p.half ? load_written(p.sin + t * p.sin_stride + pair) : 0.0f;
    }
    if (heads.norm != nullptr) {
      const float inverse = inverse_norm(sum_of_squares<32>(x, nullptr), p.reciprocal, p.eps);
#pragma unroll
      for (int i = 0; i < kPieces; ++i) x[i] = __fmul_rn(__fmul_rn(x[i], inverse), weight[i]);
    }
    float* shared = block_heads[threadIdx.x / 32];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) shared[lane + 32 * i] = x[i];
    __syncwarp();
    uint16_t* out = heads.out + t * heads.out_stride + int64_t{head} * p.head_dim;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int d = lane + 32 * i;
      if (turn == 1 && d < p.head_dim)
        out[d] = float_to_bf16(rotated(shared, x[i], d, p.half, cos[i], sin[i]));
    }
    __syncwarp();
  }
}

template <int kPieces>
void launch_heads(CUstream_st* stream, const QkNormRopeLaunch& p) {
  const int heads = p.num_rows * (p.q.num_heads + p.k.num_heads);
  launch_kernel(qk_norm_rope_kernel<kPieces>, (heads + kBlockHeads - 1) / kBlockHeads, 32 * kBlockHeads, 0,
                stream, p);
}

}  // namespace

void launch_rope_table(CUstream_st* stream, const RopeTableLaunch& p) {
  if (p.num_rows == 0 || p.half == 0) return;
  const int blocks_per_row = (p.half + kTableThreads - 1) / kTableThreads;
  launch_kernel(rope_table_kernel, p.num_rows * blocks_per_row, kTableThreads, 0, stream, p, blocks_per_row);
}

void launch_qk_norm_rope(CUstream_st* stream, const QkNormRopeLaunch& p) {
  if (p.num_rows * (p.q.num_heads + p.k.num_heads) == 0) return;
  if (p.head_dim <= 64) return launch_heads<2>(stream, p);
  if (p.head_dim <= 128) return launch_heads<4>(stream, p);
  launch_heads<kMaxRopeHeadDim / 32>(stream, p);
}

}  // namespace tensorfold::cuda
