// bf16 and f16 storage types and their conversions, as arithmetic.md ("Numbers") defines them for the CPU:
// round to nearest even, denormal results and inputs flushed to zero with their sign.
#pragma once

#include <bit>
#include <cstdint>

namespace tensorfold {

/// Sixteen bits holding a bfloat16. Arithmetic is done in float; this is storage.
struct bf16 {
  uint16_t bits = 0;
  friend bool operator==(bf16 a, bf16 b) { return a.bits == b.bits; }
};

/// Sixteen bits holding an IEEE half. Storage only.
struct f16 {
  uint16_t bits = 0;
  friend bool operator==(f16 a, f16 b) { return a.bits == b.bits; }
};

/// Exact. A denormal bf16 is returned as it is; arithmetic under DAZ reads it as zero.
inline float to_float(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

/// Exact for every half, denormals and NaN included (computed with integers, so DAZ has no say).
float to_float(f16 x);

/// Nearest bf16, ties to even. Inputs below 2^-126 in magnitude become zero with their sign, so the result is
/// never denormal; NaN becomes a quiet NaN. Integer arithmetic only: the same bits on every CPU.
inline bf16 to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  if (magnitude < 0x00800000u) return {static_cast<uint16_t>((u >> 16) & 0x8000u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

/// Nearest half, ties to even, denormal halves kept; overflow becomes infinity. For writing checkpoints.
f16 to_f16(float x);

}  // namespace tensorfold
