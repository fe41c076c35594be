// The project's own elementary functions: the only ones on the path to a row's bits (arithmetic.md, "The
// rest"). Every operation is an explicit fma, add, multiply, division or square root, so a vector unit or a
// GPU that follows the same lines gives the same bits; ops/cpu/simd_math-inl.h does, lane by lane. Plain
// functions, usable in CUDA device code compiled with -fmad=false.
//
// fp32 functions assume that denormals are flushed (base/fp_env.h) and never return one. A NaN gives some
// NaN. Errors below are the largest measured by tests/ops/contract_math_test.cc, in units of the last place
// of the result: fp32 over every 37th float of all, f64 over 3 million points a function against long double.
// Coefficients: tools/contract_math_coefficients.py.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

// Always inlined: inside a function compiled for an instruction set with fma, fma is then an instruction,
// elsewhere a call of the C library; the bits are the same.
#ifdef __CUDACC__
#define TF_CONTRACT_FUNCTION __host__ __device__ __forceinline__
#else
#define TF_CONTRACT_FUNCTION inline __attribute__((always_inline))
#endif

namespace tensorfold {

/// The same bytes as another type.
template <class To, class From>
TF_CONTRACT_FUNCTION To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "bits_as reinterprets, it does not convert");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// Constants and coefficients, shared with the vector versions.
namespace contract {

/// Of a polynomial, constant term first. Functions return them because device code has no constexpr arrays.
template <class T, int kSize>
struct Coefficients {
  T c[kSize];
};

inline constexpr float kLog2e = 0x1.715476p+0f;
inline constexpr float kLn2High = 0x1.62e43p-1f, kLn2Low = -0x1.05c61p-29f;
/// Adding 1.5 * 2^23 rounds a small float to the nearest integer (ties to even), which is then its low bits.
inline constexpr float kRoundF32 = 0x1.8p23f;
inline constexpr double kRoundF64 = 0x1.8p52;

/// 2^x = 1 + x p(x) on [-1/2, 1/2].
TF_CONTRACT_FUNCTION constexpr Coefficients<float, 6> exp2_coefficients() {
  return {{0x1.62e43p-1f, 0x1.ebfbep-3f, 0x1.c6af6cp-5f, 0x1.3b2a54p-7f, 0x1.5f089p-10f, 0x1.44138ap-13f}};
}
inline constexpr float kExp2Low = -126.0f, kExp2High = 128.0f;  ///< Below: 0. From here on: infinity.

/// e^x = 1 + x + x^2 p(x) on [-ln2/2, ln2/2].
TF_CONTRACT_FUNCTION constexpr Coefficients<float, 5> exp_coefficients() {
  return {{0.5f, 0x1.5554dep-3f, 0x1.55551ap-5f, 0x1.120b62p-7f, 0x1.6d10fcp-10f}};
}
inline constexpr float kExpLow = -0x1.5d589ep+6f;  ///< -126 ln2 rounded up: below, 0.
inline constexpr float kExpHigh = 0x1.62e43p+6f;   ///< 128 ln2 rounded up: from here on, infinity.

/// log(1+f) = f - f^2/2 + f^3 p(f) on [sqrt(1/2) - 1, sqrt(2) - 1].
TF_CONTRACT_FUNCTION constexpr Coefficients<float, 9> log_coefficients() {
  return {{0x1.555554p-2f, -0x1.fffffcp-3f, 0x1.999d5ap-3f, -0x1.555b4ap-3f, 0x1.23d21ap-3f, -0x1.fcf4c6p-4f,
           0x1.dea282p-4f, -0x1.d635bcp-4f, 0x1.1d8ea6p-4f}};
}
inline constexpr uint32_t kSqrtHalfBits = 0x3f3504f3u;

/// tanh(x) = x + x^3 p(x^2) for |x| < 0.625.
TF_CONTRACT_FUNCTION constexpr Coefficients<float, 6> tanh_coefficients() {
  return {{-0x1.555556p-2f, 0x1.1110eap-3f, -0x1.ba08c4p-5f, 0x1.64a976p-6f, -0x1.116a16p-7f, 0x1.2c83cp-9f}};
}
inline constexpr float kTanhSmall = 0.625f;
inline constexpr float kSqrtTwoOverPi = 0x1.988454p-1f, kGeluCubic = 0x1.6e4e26p-5f;

TF_CONTRACT_FUNCTION constexpr Coefficients<double, 12> exp2_f64_coefficients() {
  return {{0x1.62e42fefa39efp-1, 0x1.ebfbdff82c58fp-3, 0x1.c6b08d704a0c6p-5, 0x1.3b2ab6fba4e79p-7,
           0x1.5d87fe78a3f9cp-10, 0x1.430912f86b7dbp-13, 0x1.ffcbfc6da6ed1p-17, 0x1.62c02242b879cp-20,
           0x1.b524ebd13a55fp-24, 0x1.e4cf10dec0f59p-28, 0x1.e9ec1fcb69a7fp-32, 0x1.c4a29324a1038p-36}};
}
/// log(m) = 2s + s^3 p(s^2), s = (m-1)/(m+1), m in [sqrt(1/2), sqrt(2)].
TF_CONTRACT_FUNCTION constexpr Coefficients<double, 9> log_f64_coefficients() {
  return {{0x1.5555555555555p-1, 0x1.9999999999998p-2, 0x1.2492492492959p-2, 0x1.c71c71c64c8ccp-3,
           0x1.745d17d35328cp-3, 0x1.3b137b347f3c2p-3, 0x1.111d273ca8a70p-3, 0x1.debedbffa1d9ep-4,
           0x1.e6afc55fa9490p-4}};
}
inline constexpr double kLn2HighF64 = 0x1.62e42feep-1, kLn2LowF64 = 0x1.a39ef35793c76p-33;
inline constexpr double kLog2eHighF64 = 0x1.71547652b82fep+0, kLog2eLowF64 = 0x1.777d0ffda0d24p-56;
inline constexpr uint64_t kSqrtHalfBitsF64 = 0x3fe6a09e667f3bcdull;

inline constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
inline constexpr double kHalfPi[] = {0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54, -0x1.f1976b7ed8fbcp-110};
/// sin(x) = x + x^3 p(x^2), cos(x) = 1 - x^2/2 + x^4 p(x^2) for |x| <= pi/4.
TF_CONTRACT_FUNCTION constexpr Coefficients<double, 7> sin_coefficients() {
  return {{-0x1.5555555555555p-3, 0x1.1111111111110p-7, -0x1.a01a01a019938p-13, 0x1.71de3a546095bp-19,
           -0x1.ae645412c560cp-26, 0x1.61217f0b800d5p-33, -0x1.ab17d404de5b3p-41}};
}
TF_CONTRACT_FUNCTION constexpr Coefficients<double, 7> cos_coefficients() {
  return {{0x1.5555555555555p-5, -0x1.6c16c16c16c16p-10, 0x1.a01a01a019d0ap-16, -0x1.27e4fb7712d65p-22,
           0x1.1eed8deb97a97p-29, -0x1.9394ba0cd6ed5p-37, 0x1.ab785b00b4646p-45}};
}

TF_CONTRACT_FUNCTION float fused(float a, float b, float c) { return ::fmaf(a, b, c); }
TF_CONTRACT_FUNCTION double fused(double a, double b, double c) { return ::fma(a, b, c); }

/// p(x) by Horner's rule, one fma a step.
template <class T, int kSize>
TF_CONTRACT_FUNCTION T horner(T x, const Coefficients<T, kSize>& p) {
  T r = p.c[kSize - 1];
  for (int i = kSize - 2; i >= 0; --i) r = fused(r, x, p.c[i]);
  return r;
}

/// y * 2^n for a normal result; n is the low bits of `rounded` (a sum with kRoundF32).
TF_CONTRACT_FUNCTION float scale_by_power(float y, float rounded) {
  return bits_as<float>(bits_as<uint32_t>(y) + (bits_as<uint32_t>(rounded) << 23));
}

}  // namespace contract

/// 2^x. Exact for x = 0; 0 below -126, infinity from 128. Error at most 0.87 ulp.
TF_CONTRACT_FUNCTION float exp2_f32(float x) {
  if (!(x >= contract::kExp2Low)) return x != x ? x : 0.0f;
  if (x >= contract::kExp2High) return bits_as<float>(0x7f800000u);
  const float rounded = x + contract::kRoundF32;
  const float f = x - (rounded - contract::kRoundF32);
  return contract::scale_by_power(
      contract::fused(f, contract::horner(f, contract::exp2_coefficients()), 1.0f), rounded);
}

/// e^x. 0 below -126 ln2, infinity from 128 ln2. Error at most 1.1 ulp.
TF_CONTRACT_FUNCTION float exp_f32(float x) {
  if (!(x >= contract::kExpLow)) return x != x ? x : 0.0f;
  if (x >= contract::kExpHigh) return bits_as<float>(0x7f800000u);
  const float rounded = contract::fused(x, contract::kLog2e, contract::kRoundF32);
  const float n = rounded - contract::kRoundF32;
  const float r = contract::fused(n, -contract::kLn2Low, contract::fused(n, -contract::kLn2High, x));
  const float y = contract::fused(r * r, contract::horner(r, contract::exp_coefficients()), r) + 1.0f;
  return contract::scale_by_power(y, rounded);
}

/// Natural logarithm; -infinity at 0 (denormals included), NaN below. Error at most 0.82 ulp.
TF_CONTRACT_FUNCTION float log_f32(float x) {
  if (x == 0.0f) return bits_as<float>(0xff800000u);
  if (!(x > 0.0f)) return bits_as<float>(0x7fc00000u);
  const uint32_t bits = bits_as<uint32_t>(x);
  if (bits == 0x7f800000u) return x;
  const int32_t exponent = static_cast<int32_t>(bits - contract::kSqrtHalfBits) >> 23;
  const float e = static_cast<float>(exponent);
  const float f = bits_as<float>(bits - (static_cast<uint32_t>(exponent) << 23)) - 1.0f;
  const float q = contract::fused(f, contract::horner(f, contract::log_coefficients()), -0.5f);
  const float tail = contract::fused(f * f, q, e * contract::kLn2Low);
  return contract::fused(e, contract::kLn2High, f + tail);
}

/// log(1 + x) for 0 <= x <= 1, accurate for small x too. Error at most 1.3 ulp.
TF_CONTRACT_FUNCTION float log1p_f32(float x) {
  const float s = 1.0f + x;
  const float lost = x - (s - 1.0f);
  return log_f32(s) + lost / s;
}

/// 1 / (1 + e^-x). Error at most 2.5 ulp.
TF_CONTRACT_FUNCTION float sigmoid_f32(float x) { return 1.0f / (1.0f + exp_f32(-x)); }

/// x sigmoid(x). Error at most 3 ulp.
TF_CONTRACT_FUNCTION float silu_f32(float x) { return x * sigmoid_f32(x); }

/// log(1 + e^x), as max(x, 0) + log1p(e^-|x|). Error at most 2 ulp.
TF_CONTRACT_FUNCTION float softplus_f32(float x) {
  const float magnitude = x < 0.0f ? -x : x;
  return (x > 0.0f ? x : 0.0f) + log1p_f32(exp_f32(-magnitude));
}

/// Hyperbolic tangent: polynomial below 0.625, else 1 - 2 / (e^2|x| + 1) with the sign of x. Error at most
/// 1.4 ulp.
TF_CONTRACT_FUNCTION float tanh_f32(float x) {
  const uint32_t sign = bits_as<uint32_t>(x) & 0x80000000u;
  const float magnitude = bits_as<float>(bits_as<uint32_t>(x) ^ sign);
  if (magnitude < contract::kTanhSmall) {
    const float z = x * x;
    return contract::fused(x * z, contract::horner(z, contract::tanh_coefficients()), x);
  }
  const float y = 1.0f - 2.0f / (exp_f32(magnitude + magnitude) + 1.0f);
  return bits_as<float>(bits_as<uint32_t>(y) | sign);
}

/// The tanh form of GELU (Hendrycks & Gimpel 2016, arXiv:1606.08415): x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715
/// x^3))).
TF_CONTRACT_FUNCTION float gelu_tanh_f32(float x) {
  const float inner = contract::fused(contract::kGeluCubic * x, x * x, x);
  return (0.5f * x) * (1.0f + tanh_f32(contract::kSqrtTwoOverPi * inner));
}

/// 1 / sqrt(x), both operations rounded: no reciprocal-square-root estimate. Error at most 1.5 ulp.
TF_CONTRACT_FUNCTION float rsqrt_f32(float x) { return 1.0f / ::sqrtf(x); }

/// 2^x; 0 below -1022, infinity from 1024. Error at most 0.9 ulp.
TF_CONTRACT_FUNCTION double exp2_f64(double x) {
  if (!(x >= -1022.0)) return x != x ? x : 0.0;
  if (x >= 1024.0) return bits_as<double>(uint64_t{0x7ff0000000000000});
  const double rounded = x + contract::kRoundF64;
  const double f = x - (rounded - contract::kRoundF64);
  const double y = contract::fused(f, contract::horner(f, contract::exp2_f64_coefficients()), 1.0);
  return bits_as<double>(bits_as<uint64_t>(y) + (bits_as<uint64_t>(rounded) << 52));
}

namespace contract {

/// An unevaluated sum: high + low, |low| at most half an ulp of high.
struct Double2 {
  double high, low;
};

/// log(m) to about 2^-66 of itself for m in [sqrt(1/2), sqrt(2)).
TF_CONTRACT_FUNCTION Double2 log_of_mantissa(double m) {
  const double a = m - 1.0;  // exact
  const double b = m + 1.0;
  const double b_lost = m - (b - 1.0);
  const double s = a / b;
  const double s_low = fused(-s, b_lost, fused(-s, b, a)) / b;
  const double z = s * s;
  const double tail = fused(s * z, horner(z, log_f64_coefficients()), s_low + s_low);
  const double high = (s + s) + tail;
  return {high, tail - (high - (s + s))};
}

/// x = 2^exponent * mantissa for a positive normal x.
struct Decomposed {
  double exponent, mantissa;
};

TF_CONTRACT_FUNCTION Decomposed decompose(double x) {
  const uint64_t bits = bits_as<uint64_t>(x);
  const int64_t exponent = static_cast<int64_t>(bits - kSqrtHalfBitsF64) >> 52;
  return {static_cast<double>(exponent), bits_as<double>(bits - (static_cast<uint64_t>(exponent) << 52))};
}

}  // namespace contract

/// Natural logarithm of a positive normal x, as accurate near 1 as elsewhere. Error at most 0.8 ulp.
TF_CONTRACT_FUNCTION double log_f64(double x) {
  const contract::Decomposed d = contract::decompose(x);
  const contract::Double2 m = contract::log_of_mantissa(d.mantissa);
  return contract::fused(d.exponent, contract::kLn2HighF64,
                         m.high + contract::fused(d.exponent, contract::kLn2LowF64, m.low));
}

/// base^exponent for a positive normal base: 2^(exponent log2 base) with the logarithm to 2^-66. Error at
/// most 1.4 ulp where |exponent log2 base| < 64.
TF_CONTRACT_FUNCTION double pow_f64(double base, double exponent) {
  const contract::Decomposed d = contract::decompose(base);
  const contract::Double2 m = contract::log_of_mantissa(d.mantissa);
  const double product = m.high * contract::kLog2eHighF64;
  double lost = contract::fused(m.high, contract::kLog2eHighF64, -product);
  lost = contract::fused(m.high, contract::kLog2eLowF64, lost);
  lost = contract::fused(m.low, contract::kLog2eHighF64, lost);
  const double log2_high = d.exponent + product;
  const double log2_low = (product - (log2_high - d.exponent)) + lost;
  const double power = exponent * log2_high;
  const double power_low = contract::fused(exponent, log2_low, contract::fused(exponent, log2_high, -power));
  const double result = exp2_f64(power);
  return contract::fused(result, power_low * contract::kLn2HighF64, result);
}

/// Sine and cosine of an angle in radians, |x| < 2^31. Error at most 0.8 ulp.
struct SinCos {
  double sin, cos;
};

TF_CONTRACT_FUNCTION SinCos sincos_f64(double x) {
  // Cody and Waite with fma: x - n (pi/2) as an unevaluated sum. The first step is exact: n pi/2's leading
  // part and x are multiples of 2^-53 and their difference is below 1.
  const double rounded = contract::fused(x, contract::kTwoOverPi, contract::kRoundF64);
  const double n = rounded - contract::kRoundF64;
  const uint64_t quadrant = bits_as<uint64_t>(rounded) & 3;
  const double first = contract::fused(-n, contract::kHalfPi[0], x);
  const double second = n * contract::kHalfPi[1];
  const double second_lost = contract::fused(n, contract::kHalfPi[1], -second);
  const double r = first - second;
  const double r_low = ((first - r) - second) - contract::fused(n, contract::kHalfPi[2], second_lost);

  // sin(r + r_low) = sin r + r_low cos r, cos likewise; the second factors to first order.
  const double z = r * r;
  const double half_z = 0.5 * z;
  const double sin_tail = contract::fused(r * z, contract::horner(z, contract::sin_coefficients()),
                                          contract::fused(r_low, -half_z, r_low));
  const double s = r + sin_tail;
  const double top = 1.0 - half_z;
  const double cos_tail = contract::fused(z * z, contract::horner(z, contract::cos_coefficients()),
                                          contract::fused(-r, r_low, (1.0 - top) - half_z));
  const double c = top + cos_tail;

  const double sin_r = (quadrant & 1) ? c : s;
  const double cos_r = (quadrant & 1) ? s : c;
  return {(quadrant & 2) ? -sin_r : sin_r, ((quadrant + 1) & 2) ? -cos_r : cos_r};
}

}  // namespace tensorfold
