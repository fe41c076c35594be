// Half-precision conversions with integer arithmetic (see base/bf16.h).
#include "base/bf16.h"

namespace tensorfold {

float to_float(f16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1fu;
  uint32_t mantissa = x.bits & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  if (mantissa == 0) return std::bit_cast<float>(sign);
  // A denormal half is a normal float: shift its leading one up to bit 10 and lower the exponent accordingly.
  const int shift = std::countl_zero(mantissa) - 21;
  mantissa = (mantissa << shift) & 0x3ffu;
  return std::bit_cast<float>(sign | (static_cast<uint32_t>(113 - shift) << 23) | (mantissa << 13));
}

f16 to_f16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // rounds to 65536 or more
  if (magnitude < 0x33000000u) return {sign};                                    // below half of 2^-24
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
  // Normal halves keep 11 of the 24 significant bits; below 2^-14 each step down keeps one fewer.
  const int drop = exponent >= -14 ? 13 : 13 + (-14 - exponent);
  const uint32_t kept = significand >> drop;
  const uint32_t rest = significand & ((1u << drop) - 1);
  const uint32_t half = 1u << (drop - 1);
  const uint32_t rounded = kept + ((rest > half || (rest == half && (kept & 1u))) ? 1 : 0);
  // For normals the implicit bit of `rounded` carries into the exponent field, which starts one lower for it.
  const uint32_t field = exponent >= -14 ? static_cast<uint32_t>(exponent + 14) << 10 : 0;
  return {static_cast<uint16_t>(sign | (field + rounded))};
}

}  // namespace tensorfold
