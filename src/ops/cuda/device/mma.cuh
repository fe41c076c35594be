// The tensor-core step of arithmetic.md and the bf16x2 instructions around it, one function per instruction.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <cstring>

namespace tensorfold::cuda {

/// d += a b: the 16-wide step. a [16, 16] row-major weights, b [16, 8] column-major activations, d [16, 8]
/// fp32.
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// a * b + c on two bf16 at once, one rounding each.
__device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

/// a * b on two bf16 at once, one rounding each. Denormals are kept, here and in fma_bf16x2().
__device__ __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

/// {scale, bias} as loaded to one bf16x2 of each.
__device__ __forceinline__ void split_scale_bias(uint32_t scale_bias, uint32_t& scale, uint32_t& bias) {
  // As the compiler knows it: an operand of fma_bf16x2() names the half that it takes twice.
  __nv_bfloat162 pair;
  memcpy(&pair, &scale_bias, 4);
  const __nv_bfloat162 scales = __low2bfloat162(pair), biases = __high2bfloat162(pair);
  memcpy(&scale, &scales, 4);
  memcpy(&bias, &biases, 4);
}

/// Four 8x8 matrices of bf16 from shared memory, lane l giving the address of row l % 8 of matrix l / 8;
/// transposed or not.
__device__ __forceinline__ void load_matrices(uint32_t (&d)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address));
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&d)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address));
}

/// Two floats rounded to bf16, `low` in the low half.
__device__ __forceinline__ uint32_t to_bf16x2(float low, float high) {
  uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

}  // namespace tensorfold::cuda
