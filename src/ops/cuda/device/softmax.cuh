// Attention's arithmetic on fragments of a 16-row tile (arithmetic.md, "Attention"): one definition for every
// kernel, so that their bits agree. A lane holds, of rows l/4 and l/4 + 8, columns 2*(l%4) + {0, 1} of each
// block of 8.
#pragma once

#include <cstdint>

#include "ops/contract_math.h"

namespace tensorfold::cuda {

constexpr float kMinusInfinity = -__builtin_huge_valf();

/// exp2_f32() of contract_math.h, operation by operation, for x that is not above 127.
__device__ __forceinline__ float exp2_device(float x) {
  constexpr contract::Coefficients<float, 6> p = contract::exp2_coefficients();
  const float rounded = __fadd_rn(x, contract::kRoundF32);
  const float f = __fsub_rn(x, __fsub_rn(rounded, contract::kRoundF32));
  float r = __fmaf_rn(p.c[5], f, p.c[4]);
  r = __fmaf_rn(r, f, p.c[3]);
  r = __fmaf_rn(r, f, p.c[2]);
  r = __fmaf_rn(r, f, p.c[1]);
  r = __fmaf_rn(r, f, p.c[0]);
  r = __fmaf_rn(f, r, 1.0f);
  const float y = __uint_as_float(__float_as_uint(r) + (__float_as_uint(rounded) << 23));
  return x >= contract::kExp2Low ? y : x != x ? x : 0.0f;
}

/// a * b with denormals kept: the accumulator that is rescaled comes from tensor cores, and times 1 must not
/// change.
__device__ __forceinline__ float multiply_keeping_denormals(float a, float b) {
  float d;
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
  return d;
}

/// Largest over a row, and short sum over a row of 64, of which this lane holds v[block][2 * half + {0, 1}].
template <int kBlocks>
__device__ __forceinline__ float row_max(const float (&v)[kBlocks][4], int half) {
  float m = kMinusInfinity;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block)
    m = fmaxf(m, fmaxf(v[block][2 * half], v[block][2 * half + 1]));
  m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
  return fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
}
__device__ __forceinline__ float row_sum(const float (&v)[8][4], int half) {
  float sum[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int at = 2 * half + i;
    const float even =
        __fadd_rn(__fadd_rn(v[0][at], v[4][at]), __fadd_rn(v[2][at], v[6][at]));  // i, i + 32; i + 16
    const float odd = __fadd_rn(__fadd_rn(v[1][at], v[5][at]), __fadd_rn(v[3][at], v[7][at]));
    sum[i] = __fadd_rn(even, odd);                                        // i, i + 8
    sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(0xffffffffu, sum[i], 2));  // i, i + 4
    sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(0xffffffffu, sum[i], 1));  // i, i + 2
  }
  return __fadd_rn(sum[0], sum[1]);
}

/// p = exp2(s - m) in place for one of a lane's two rows; m is the largest score so far, old_m that before
/// these. Returns exp2(old_m - m). A row that has seen no key yet has m = -inf; measured from 0 all of it is
/// 0, and nothing changes.
template <int kBlocks>
__device__ __forceinline__ float to_probabilities(float (&s)[kBlocks][4], int half, float old_m, float m) {
  const float from = m == kMinusInfinity ? 0.0f : m;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (int i = 2 * half; i < 2 * half + 2; ++i) s[block][i] = exp2_device(__fsub_rn(s[block][i], from));
  }
  return exp2_device(__fsub_rn(old_m, from));
}

/// How two spans' results (m, l, o) become one: o = fma(o2, b, o1 * a), l likewise.
struct MergeFactors {
  float m, a, b;
  __device__ __forceinline__ MergeFactors(float m1, float m2) {
    m = fmaxf(m1, m2);
    a = exp2_device(__fsub_rn(m1, m));
    b = exp2_device(__fsub_rn(m2, m));
  }
  __device__ __forceinline__ float merge(float first, float second) const {
    return __fmaf_rn(second, b, __fmul_rn(first, a));
  }
};

}  // namespace tensorfold::cuda
