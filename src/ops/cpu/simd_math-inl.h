// The functions of ops/contract_math.h on vectors: the same operations in the same order, so lane i holds the bits that
// the scalar function gives for element i. Included once per instruction set by kernel files (no include guard of the
// usual kind). Also the short sum on vectors.

#if defined(TENSORFOLD_OPS_CPU_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TENSORFOLD_OPS_CPU_SIMD_MATH_INL_H_
#undef TENSORFOLD_OPS_CPU_SIMD_MATH_INL_H_
#else
#define TENSORFOLD_OPS_CPU_SIMD_MATH_INL_H_
#endif

#include "base/bf16.h"
#include "hwy/highway.h"
#include "ops/contract_math.h"

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D, class V, class T, int kSize>
HWY_INLINE V simd_horner(D d, V x, const contract::Coefficients<T, kSize>& p) {
  V r = hn::Set(d, p.c[kSize - 1]);
  for (int i = kSize - 2; i >= 0; --i) r = hn::MulAdd(r, x, hn::Set(d, p.c[i]));
  return r;
}

/// y * 2^n, n the low bits of `rounded`; right where the result is normal.
template <class D, class V>
HWY_INLINE V simd_scale_by_power(D d, V y, V rounded) {
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::Add(hn::BitCast(du, y), hn::ShiftLeft<23>(hn::BitCast(du, rounded))));
}

/// `normal` where low <= x < high; 0 below, infinity above, NaN where x is NaN.
template <class D, class V>
HWY_INLINE V simd_clamp_power(D d, V x, V normal, float low, float high) {
  V y = hn::IfThenElse(hn::Ge(x, hn::Set(d, high)), hn::Inf(d), normal);
  y = hn::IfThenElse(hn::IsNaN(x), x, y);
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, low)), y);
}

template <class D, class V>
HWY_INLINE V simd_exp2(D d, V x) {
  const V magic = hn::Set(d, contract::kRoundF32);
  const V rounded = hn::Add(x, magic);
  const V f = hn::Sub(x, hn::Sub(rounded, magic));
  const V y = hn::MulAdd(f, simd_horner(d, f, contract::exp2_coefficients()), hn::Set(d, 1.0f));
  return simd_clamp_power(d, x, simd_scale_by_power(d, y, rounded), contract::kExp2Low, contract::kExp2High);
}

/// simd_exp2 for x <= 0 or NaN, with less to check: multiplying by 2^n keeps NaN and is exact where adding n is.
template <class D, class V>
HWY_INLINE V simd_exp2_nonpositive(D d, V x) {
  const hn::RebindToUnsigned<D> du;
  const V magic = hn::Set(d, contract::kRoundF32);
  const V rounded = hn::Add(x, magic);
  const V f = hn::Sub(x, hn::Sub(rounded, magic));
  const V y = hn::MulAdd(f, simd_horner(d, f, contract::exp2_coefficients()), hn::Set(d, 1.0f));
  const auto one = hn::BitCast(du, hn::Set(d, 1.0f));
  const V power = hn::BitCast(d, hn::Add(hn::ShiftLeft<23>(hn::BitCast(du, rounded)), one));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, contract::kExp2Low)), hn::Mul(y, power));
}

template <class D, class V>
HWY_INLINE V simd_exp(D d, V x) {
  const V magic = hn::Set(d, contract::kRoundF32);
  const V rounded = hn::MulAdd(x, hn::Set(d, contract::kLog2e), magic);
  const V n = hn::Sub(rounded, magic);
  const V r = hn::MulAdd(n, hn::Set(d, -contract::kLn2Low), hn::MulAdd(n, hn::Set(d, -contract::kLn2High), x));
  const V y = hn::Add(hn::MulAdd(hn::Mul(r, r), simd_horner(d, r, contract::exp_coefficients()), r), hn::Set(d, 1.0f));
  return simd_clamp_power(d, x, simd_scale_by_power(d, y, rounded), contract::kExpLow, contract::kExpHigh);
}

template <class D, class V>
HWY_INLINE V simd_log(D d, V x) {
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(di, x);
  const auto exponent =
      hn::ShiftRight<23>(hn::Sub(bits, hn::Set(di, static_cast<int32_t>(contract::kSqrtHalfBits))));
  const V e = hn::ConvertTo(d, exponent);
  const V f = hn::Sub(hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(exponent))), hn::Set(d, 1.0f));
  const V q = hn::MulAdd(f, simd_horner(d, f, contract::log_coefficients()), hn::Set(d, -0.5f));
  const V tail = hn::MulAdd(hn::Mul(f, f), q, hn::Mul(e, hn::Set(d, contract::kLn2Low)));
  const V zero = hn::Zero(d);
  V y = hn::MulAdd(e, hn::Set(d, contract::kLn2High), hn::Add(f, tail));
  y = hn::IfThenElse(hn::Eq(x, hn::Inf(d)), x, y);
  y = hn::IfThenElse(hn::Gt(x, zero), y, hn::NaN(d));
  return hn::IfThenElse(hn::Eq(x, zero), hn::Neg(hn::Inf(d)), y);
}

template <class D, class V>
HWY_INLINE V simd_log1p(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V s = hn::Add(one, x);
  const V lost = hn::Sub(x, hn::Sub(s, one));
  return hn::Add(simd_log(d, s), hn::Div(lost, s));
}

template <class D, class V>
HWY_INLINE V simd_sigmoid(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  return hn::Div(one, hn::Add(one, simd_exp(d, hn::Neg(x))));
}

template <class D, class V>
HWY_INLINE V simd_silu(D d, V x) {
  return hn::Mul(x, simd_sigmoid(d, x));
}

template <class D, class V>
HWY_INLINE V simd_softplus(D d, V x) {
  const V zero = hn::Zero(d);
  const V magnitude = hn::IfThenElse(hn::Lt(x, zero), hn::Neg(x), x);
  return hn::Add(hn::IfThenElseZero(hn::Gt(x, zero), x), simd_log1p(d, simd_exp(d, hn::Neg(magnitude))));
}

template <class D, class V>
HWY_INLINE V simd_tanh(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V magnitude = hn::Abs(x);
  const V z = hn::Mul(x, x);
  const V small = hn::MulAdd(hn::Mul(x, z), simd_horner(d, z, contract::tanh_coefficients()), x);
  const V e = simd_exp(d, hn::Add(magnitude, magnitude));
  const V large = hn::Sub(one, hn::Div(hn::Set(d, 2.0f), hn::Add(e, one)));
  return hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, contract::kTanhSmall)), small,
                        hn::Or(large, hn::And(x, hn::SignBit(d))));
}

template <class D, class V>
HWY_INLINE V simd_gelu_tanh(D d, V x) {
  const V inner = hn::MulAdd(hn::Mul(hn::Set(d, contract::kGeluCubic), x), hn::Mul(x, x), x);
  const V t = simd_tanh(d, hn::Mul(hn::Set(d, contract::kSqrtTwoOverPi), inner));
  return hn::Mul(hn::Mul(hn::Set(d, 0.5f), x), hn::Add(hn::Set(d, 1.0f), t));
}

template <class D, class V>
HWY_INLINE V simd_rsqrt(D d, V x) {
  return hn::Div(hn::Set(d, 1.0f), hn::Sqrt(x));
}

/// sincos_f64 on lanes of double.
template <class D, class V>
HWY_INLINE void simd_sincos(D d, V x, V& sin, V& cos) {
  const hn::RebindToUnsigned<D> du;
  const V magic = hn::Set(d, contract::kRoundF64);
  const V rounded = hn::MulAdd(x, hn::Set(d, contract::kTwoOverPi), magic);
  const V n = hn::Sub(rounded, magic);
  const V first = hn::MulAdd(hn::Neg(n), hn::Set(d, contract::kHalfPi[0]), x);
  const V second = hn::Mul(n, hn::Set(d, contract::kHalfPi[1]));
  const V second_lost = hn::MulAdd(n, hn::Set(d, contract::kHalfPi[1]), hn::Neg(second));
  const V r = hn::Sub(first, second);
  const V r_low = hn::Sub(hn::Sub(hn::Sub(first, r), second),
                          hn::MulAdd(n, hn::Set(d, contract::kHalfPi[2]), second_lost));

  const V z = hn::Mul(r, r);
  const V half_z = hn::Mul(hn::Set(d, 0.5), z);
  const V sin_tail = hn::MulAdd(hn::Mul(r, z), simd_horner(d, z, contract::sin_coefficients()),
                                hn::MulAdd(r_low, hn::Neg(half_z), r_low));
  const V s = hn::Add(r, sin_tail);
  const V one = hn::Set(d, 1.0);
  const V top = hn::Sub(one, half_z);
  const V cos_tail = hn::MulAdd(hn::Mul(z, z), simd_horner(d, z, contract::cos_coefficients()),
                                hn::MulAdd(hn::Neg(r), r_low, hn::Sub(hn::Sub(one, top), half_z)));
  const V c = hn::Add(top, cos_tail);

  const auto quadrant = hn::BitCast(du, rounded);
  const auto bit0 = hn::Set(du, 1), bit1 = hn::Set(du, 2);
  const auto swap = hn::RebindMask(d, hn::Eq(hn::And(quadrant, bit0), bit0));
  const V sin_sign = hn::BitCast(d, hn::ShiftLeft<62>(hn::And(quadrant, bit1)));
  const V cos_sign = hn::BitCast(d, hn::ShiftLeft<62>(hn::And(hn::Add(quadrant, bit0), bit1)));
  sin = hn::Xor(hn::IfThenElse(swap, c, s), sin_sign);
  cos = hn::Xor(hn::IfThenElse(swap, s, c), cos_sign);
}

/// Sum of a vector's lanes by halving: i and i + n/2, and so on.
HWY_INLINE float halve_four(hn::Vec<hn::FixedTag<float, 4>> x) {
  const auto pair = hn::Add(x, hn::Shuffle1032(x));
  return hn::GetLane(hn::Add(pair, hn::Shuffle2301(pair)));
}
template <class D, class V>
HWY_INLINE float halve_vector(D, V x) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return halve_four(x);
  } else {
    const hn::Half<D> half;
    return halve_vector(half, hn::Add(hn::LowerHalf(half, x), hn::UpperHalf(half, x)));
  }
}

/// Sum of 32 partials by halving (arithmetic.md, "The rest"): i and i + 16, then + 8, and so on.
HWY_INLINE float halve_32(const float* x) {
  const hn::FixedTag<float, 4> d;
  const auto pair = [&](int i) HWY_ATTR { return hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, x + i + 16)); };
  const auto low = hn::Add(pair(0), pair(8)), high = hn::Add(pair(4), pair(12));
  return halve_four(hn::Add(low, high));
}

/// Sum of squares of n floats as a short sum: element i to partial i mod 32.
HWY_INLINE float sum_of_squares(const float* HWY_RESTRICT x, int64_t n) {
  const hn::ScalableTag<float> d;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d)), kVectors = 32 / kLanes;
  hn::Vec<decltype(d)> partials[kVectors];
  for (int v = 0; v < kVectors; ++v) partials[v] = hn::Zero(d);
  const auto add_32 = [&](const float* from) HWY_ATTR {
    for (int v = 0; v < kVectors; ++v) {
      const auto value = hn::LoadU(d, from + v * kLanes);
      partials[v] = hn::MulAdd(value, value, partials[v]);
    }
  };
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) add_32(x + i);
  HWY_ALIGN float buffer[32];
  if (i < n) {  // a zero adds nothing to a partial, which is never -0
    for (int k = 0; k < 32; ++k) buffer[k] = i + k < n ? x[i + k] : 0.0f;
    add_32(buffer);
  }
  for (int v = 0; v < kVectors; ++v) hn::StoreU(partials[v], d, buffer + v * kLanes);
  return halve_32(buffer);
}

/// to_bf16 of every lane, in the low 16 bits.
template <class D, class V>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> simd_bf16_bits(D d, V x) {
  const hn::RebindToUnsigned<D> du;
  const auto u = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1u));
  auto rounded = hn::Add(u, hn::Add(odd, hn::Set(du, 0x7fffu)));
  const auto is_tiny = hn::Lt(hn::Abs(x), hn::Set(d, 0x1p-126f));
  rounded = hn::IfThenElse(hn::RebindMask(du, is_tiny), hn::And(u, hn::Set(du, 0x80000000u)), rounded);
  rounded = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), hn::Or(u, hn::Set(du, 0x400000u)), rounded);
  return hn::ShiftRight<16>(rounded);
}

/// Stores a vector to f32 or, rounded, to bf16.
template <class D, class V>
HWY_INLINE void store_as(D d, V x, float* out) {
  hn::StoreU(x, d, out);
}
template <class D, class V>
HWY_INLINE void store_as(D d, V x, bf16* out) {
  const hn::Rebind<uint16_t, D> d16;
  hn::StoreU(hn::TruncateTo(d16, simd_bf16_bits(d, x)), d16, reinterpret_cast<uint16_t*>(out));
}
HWY_INLINE void store_one(float x, float* out) { *out = x; }
HWY_INLINE void store_one(float x, bf16* out) { *out = to_bf16(x); }

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#endif
