// Every half and a sweep of floats through the conversions of base/bf16.h, against independent arithmetic.
#include "base/bf16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace tensorfold {
namespace {

double half_value(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const double mantissa = bits & 1023;
  const double magnitude = exponent == 0    ? std::ldexp(mantissa, -24)
                           : exponent == 31 ? (mantissa == 0 ? INFINITY : NAN)
                                            : std::ldexp(1024 + mantissa, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

TEST(Bf16Test, EveryHalfHasItsValueAndComesBack) {
  for (int bits = 0; bits < 65536; ++bits) {
    const f16 half{static_cast<uint16_t>(bits)};
    const double expected = half_value(half.bits);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(to_float(half)));
    } else {
      EXPECT_EQ(to_float(half), expected) << bits;
      EXPECT_EQ(to_f16(to_float(half)).bits, half.bits);
    }
  }
}

TEST(Bf16Test, HalfRoundsToNearestEven) {
  std::mt19937 random(1);
  for (int i = 0; i < 1000000; ++i) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(random()) % 0x47800000u);
    const double got = to_float(to_f16(x));
    const uint16_t bits = to_f16(x).bits;
    if (std::isinf(got)) {
      EXPECT_GE(x, 65520.0f);
      continue;
    }
    const double error = std::abs(got - x);
    const double below = bits > 0 ? std::abs(half_value(bits - 1) - x) : INFINITY;
    const double above = bits < 0x7bff ? std::abs(half_value(bits + 1) - x) : 65536.0 - x;
    EXPECT_LE(error, below);
    EXPECT_LE(error, above);
    const bool tie = error == below || error == above;
    EXPECT_TRUE(!tie || (bits & 1) == 0) << x;
  }
}

TEST(Bf16Test, RoundsToNearestEvenAndFlushesDenormals) {
  EXPECT_EQ(to_bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);  // tie: down to even
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);  // tie: up to even
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808001u)).bits, 0x3f81);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x7f7fffffu)).bits, 0x7f80);  // overflow
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x007fffffu)).bits, 0);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x807fffffu)).bits, 0x8000);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x00800000u)).bits, 0x0080);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x7f800001u)).bits, 0x7fc0);  // NaN stays NaN
}

}  // namespace
}  // namespace tensorfold
