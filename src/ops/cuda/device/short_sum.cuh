// Short sums on CUDA (arithmetic.md, "The rest"): element i goes to partial i mod 256, then partial i plus
// partial i + 128, and so on down to one.
#pragma once

#include "ops/contract_math.h"

namespace tensorfold::cuda {

constexpr int kShortSumPartials = 256;

/// The sum of 256 partials, of which lane l of a whole warp holds l, l + 32, ..., l + 224; to every lane.
__device__ __forceinline__ float halve_partials(const float (&p)[8]) {
  const float even = __fadd_rn(__fadd_rn(p[0], p[4]), __fadd_rn(p[2], p[6]));  // i and i + 128; i + 64
  const float odd = __fadd_rn(__fadd_rn(p[1], p[5]), __fadd_rn(p[3], p[7]));
  float sum = __fadd_rn(even, odd);  // i and i + 32
#pragma unroll
  for (int bit = 16; bit >= 1; bit /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, bit));
  return sum;
}

/// The sum of 256 partials, of which thread i of a block of 256 holds partial i; to every thread. `shared`
/// may be written again after the block's next barrier.
__device__ __forceinline__ float halve_partials_of_block(float partial, float* shared) {
  shared[threadIdx.x] = partial;
  __syncthreads();
  float p[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) p[i] = shared[threadIdx.x % 32 + 32 * i];
  return halve_partials(p);
}

/// The same for one of several teams of 256 threads (eight whole warps) of a block, thread i of team k being
/// thread 256 k + i: they meet at barrier 1 + k. `shared` is the team's own, and may be written again after
/// its next barrier.
__device__ __forceinline__ float halve_partials_of_team(float partial, float* shared) {
  shared[threadIdx.x % kShortSumPartials] = partial;
  asm volatile("bar.sync %0, %1;" ::"r"(1 + threadIdx.x / kShortSumPartials), "n"(kShortSumPartials)
               : "memory");
  float p[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) p[i] = shared[threadIdx.x % 32 + 32 * i];
  return halve_partials(p);
}

/// The short sum of squares of a row, of which thread i of kThreads (32, a warp, or 256, a block) holds
/// elements i, i + kThreads, ..., missing ones as zeros. `shared`: 256 floats, for blocks alone.
template <int kThreads, int kPieces>
__device__ __forceinline__ float sum_of_squares(const float (&x)[kPieces], float* shared) {
  constexpr int kPartials = kShortSumPartials / kThreads;
  float partials[kPartials] = {};
#pragma unroll
  for (int i = 0; i < kPieces; ++i) partials[i % kPartials] = __fmaf_rn(x[i], x[i], partials[i % kPartials]);
  if constexpr (kThreads == 32) {
    return halve_partials(partials);
  } else {
    static_assert(kThreads == kShortSumPartials, "a row is shared by a warp or by a block of 256");
    return halve_partials_of_block(partials[0], shared);
  }
}

/// 1 / sqrt(mean + eps), the mean being the sum of squares times the reciprocal of their count.
__device__ __forceinline__ float inverse_norm(float squares, float reciprocal, float eps) {
  return rsqrt_f32(__fadd_rn(__fmul_rn(squares, reciprocal), eps));
}

}  // namespace tensorfold::cuda
