// The tensor-core step of arithmetic.md and the bf16x2 instructions around it, one function per instruction.
#pragma once

#include <cstdint>

namespace tensorfold::cuda {

/// d += a b: the 16-wide step. a [16, 16] row-major weights, b [16, 8] column-major activations, d [16, 8] fp32.
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// a * b + c on two bf16 at once, one rounding each.
__device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

/// Two integers 0..15 in bits 0-3 and 16-19 of `pair` (other bits zero) as bf16x2, exactly: 0x4300 is 128, whose last
/// place is 1, so the integers are put into its low bits and 128 is taken off again.
__device__ __forceinline__ uint32_t uint4x2_to_bf16x2(uint32_t pair) {
  constexpr uint32_t kOne = 0x3f803f80u, kMinus128 = 0xc300c300u;
  return fma_bf16x2(pair | 0x43004300u, kOne, kMinus128);
}

/// The weights of one 4-bit word (ops/cuda/linear.h) as a step's four registers: bf16(scale * q + bias).
/// scale[0], bias[0] belong to row l/4, [1] to row l/4 + 8, each twice in a bf16x2.
__device__ __forceinline__ void dequantize_affine4(uint32_t word, const uint32_t (&scale)[2], const uint32_t (&bias)[2],
                                                   uint32_t (&a)[4]) {
#pragma unroll
  for (int reg = 0; reg < 4; ++reg) {
    a[reg] = fma_bf16x2(scale[reg % 2], uint4x2_to_bf16x2((word >> (4 * reg)) & 0x000f000fu), bias[reg % 2]);
  }
}

/// {scale, bias} as loaded to one bf16x2 of each.
__device__ __forceinline__ void split_scale_bias(uint32_t scale_bias, uint32_t& scale, uint32_t& bias) {
  scale = __byte_perm(scale_bias, 0, 0x1010);
  bias = __byte_perm(scale_bias, 0, 0x3232);
}

}  // namespace tensorfold::cuda
