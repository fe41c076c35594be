// The numbers of MXFP4 (OCP Microscaling Formats 1.0): E2M1 elements and E8M0 scales, one for 32 elements.
//
// All constexpr: kernels make their tables of these at compile time.
#pragma once

#include <bit>
#include <cstdint>

namespace tensorfold {

/// Elements that share a scale.
inline constexpr int kMxfp4BlockSize = 32;

/// The value of an E2M1 code: sign, two bits of exponent, one of mantissa. Code 8 is -0.
constexpr float e2m1_value(unsigned code) {
  constexpr float kMagnitudes[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float magnitude = kMagnitudes[code & 7u];
  return (code & 8u) != 0 ? -magnitude : magnitude;
}

/// 2^(scale - 127) as the bits of a bf16, exactly; 255 is NaN. 0 is the denormal 2^-127, which the CPU's
/// arithmetic flushes (arithmetic.md): a block of such weights counts as zeros.
constexpr uint16_t e8m0_bf16_bits(uint8_t scale) {
  if (scale == 0) return 0x0040;
  if (scale == 255) return 0x7fc0;
  return static_cast<uint16_t>(scale << 7);
}

/// The upper half of the fp32, which for E2M1 values is all of it.
constexpr uint16_t e2m1_bf16_bits(unsigned code) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(e2m1_value(code)) >> 16);
}

}  // namespace tensorfold
