// Floats and bf16 in memory: loads and stores of one value or of four neighbouring ones.
#pragma once

#include <cstdint>

#include "ops/contract_math.h"

namespace tensorfold::cuda {

/// `x` with a denormal replaced by a zero of its sign: what arithmetic does by itself (-ftz), for values that
/// are rounded to bf16 without any.
TF_CONTRACT_FUNCTION float flush_denormal(float x) {
  const uint32_t bits = bits_as<uint32_t>(x);
  return bits_as<float>((bits & 0x7f800000u) == 0 ? bits & 0x80000000u : bits);
}

TF_CONTRACT_FUNCTION float bf16_to_float(uint16_t x) { return bits_as<float>(uint32_t{x} << 16); }

#ifdef __CUDACC__
/// Nearest bf16, ties to even; x is not denormal.
__device__ __forceinline__ uint16_t float_to_bf16(float x) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
__device__ __forceinline__ uint32_t float_to_bf16x2(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

/// kWidth 1, or 4 with addresses aligned to the four.
template <int kWidth>
__device__ __forceinline__ void load(float (&x)[kWidth], const float* from) {
  if constexpr (kWidth == 1) {
    x[0] = *from;
  } else {
    const float4 v = *reinterpret_cast<const float4*>(from);
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
  }
}
template <int kWidth>
__device__ __forceinline__ void load(float (&x)[kWidth], const uint16_t* from) {
  if constexpr (kWidth == 1) {
    x[0] = bf16_to_float(*from);
  } else {
    const uint2 v = *reinterpret_cast<const uint2*>(from);
    x[0] = __uint_as_float(v.x << 16), x[1] = __uint_as_float(v.x & 0xffff0000u);
    x[2] = __uint_as_float(v.y << 16), x[3] = __uint_as_float(v.y & 0xffff0000u);
  }
}
template <int kWidth>
__device__ __forceinline__ void store(float* to, const float (&x)[kWidth]) {
  if constexpr (kWidth == 1) {
    *to = x[0];
  } else {
    *reinterpret_cast<float4*>(to) = {x[0], x[1], x[2], x[3]};
  }
}
template <int kWidth>
__device__ __forceinline__ void store(uint16_t* to, const float (&x)[kWidth]) {
  if constexpr (kWidth == 1) {
    *to = float_to_bf16(x[0]);
  } else {
    *reinterpret_cast<uint2*>(to) = {float_to_bf16x2(x[0], x[1]), float_to_bf16x2(x[2], x[3])};
  }
}
#endif

}  // namespace tensorfold::cuda
