// The passes of sampling on Highway (see sample_kernels.h).
#include "ops/cpu/isa_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/sample_kernels.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/sample_kernels.h"
#include "ops/cpu/simd_math-inl.h"
#include "ops/sampling_math.h"

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {

using F32 = hn::ScalableTag<float>;
using U32 = hn::RebindToUnsigned<F32>;
using I32 = hn::RebindToSigned<F32>;
using U64 = hn::Repartition<uint64_t, F32>;
using HalfU32 = hn::Half<U32>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(F32()));

/// Loads min(kLanes, left) logits, canonical; missing ones are minus infinity.
HWY_INLINE hn::Vec<F32> load_logits(const float* logits, int64_t left) {
  const F32 d;
  if (left >= kLanes) return hn::Add(hn::LoadU(d, logits), hn::Zero(d));
  HWY_ALIGN float padded[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) padded[i] = i < left ? logits[i] : -HUGE_VALF;
  return hn::Add(hn::Load(d, padded), hn::Zero(d));
}

void scan(const float* logits, int64_t size, float* block_max, LogitScan* result) {
  const F32 d;
  auto largest = hn::Neg(hn::Inf(d));
  auto nan = hn::Zero(d);  // any lane not 0: a NaN was seen (x - x is 0 or, for infinities, NaN: hence the mask)
  for (int64_t i = 0; i < size; i += kMaxBlock) {
    auto block = hn::Neg(hn::Inf(d));
    for (int64_t k = i; k < std::min(size, i + kMaxBlock); k += kLanes) {
      const auto x = load_logits(logits + k, size - k);
      nan = hn::Or(nan, hn::IfThenElseZero(hn::IsNaN(x), hn::Set(d, 1.0f)));
      block = hn::Max(block, x);
    }
    if (block_max != nullptr) block_max[i / kMaxBlock] = hn::GetLane(hn::MaxOfLanes(d, block));
    largest = hn::Max(largest, block);
  }
  result->has_nan = !hn::AllTrue(d, hn::Eq(nan, hn::Zero(d)));
  result->max = hn::GetLane(hn::MaxOfLanes(d, largest));
  result->argmax = 0;
  for (int64_t i = 0; i < size && !result->has_nan; i += kLanes) {
    const intptr_t lane = hn::FindFirstTrue(d, hn::Eq(load_logits(logits + i, size - i), hn::Set(d, result->max)));
    if (lane < 0) continue;
    result->argmax = static_cast<int32_t>(i + lane);
    break;
  }
}

/// log2_weight of every lane.
HWY_INLINE hn::Vec<F32> log2_weights(hn::Vec<F32> x, float max, float temperature) {
  const F32 d;
  const auto maxima = hn::Set(d, max);
  const auto y = hn::Mul(hn::Div(hn::Sub(x, maxima), hn::Set(d, temperature)), hn::Set(d, contract::kLog2e));
  return hn::IfThenZeroElse(hn::Eq(x, maxima), y);
}

/// weight_of for half of the lanes, given mantissas and shifts.
HWY_INLINE hn::Vec<U64> shifted(hn::Vec<HalfU32> mantissa, hn::Vec<HalfU32> shift) {
  const U64 d64;
  const auto wide = hn::ShiftLeft<sampling::kWeightBits - 23>(hn::PromoteTo(d64, mantissa));
  return hn::Shr(wide, hn::PromoteTo(d64, shift));
}

uint64_t weigh(const float* logits, int64_t size, float max, float temperature, uint64_t* out) {
  const F32 d;
  const U32 du;
  const HalfU32 half;
  const U64 d64;
  auto sum = hn::Zero(d64);
  for (int64_t i = 0; i < size; i += kLanes) {
    const auto e = simd_exp2_nonpositive(d, log2_weights(load_logits(logits + i, size - i), max, temperature));
    const auto bits = hn::BitCast(du, e);
    const auto mantissa = hn::Or(hn::And(bits, hn::Set(du, 0x7fffffu)), hn::Set(du, 0x800000u));
    const auto shift = hn::Min(hn::Sub(hn::Set(du, 127u), hn::ShiftRight<23>(bits)), hn::Set(du, 63u));
    const auto low = shifted(hn::LowerHalf(half, mantissa), hn::LowerHalf(half, shift));
    const auto high = shifted(hn::UpperHalf(half, mantissa), hn::UpperHalf(half, shift));
    sum = hn::Add(sum, hn::Add(low, high));
    if (out != nullptr) {
      hn::StoreU(low, d64, out + i);
      hn::StoreU(high, d64, out + i + kLanes / 2);
    }
  }
  HWY_ALIGN uint64_t lanes[kLanes];
  hn::Store(sum, d64, lanes);
  uint64_t total = 0;
  for (int64_t i = 0; i < kLanes / 2; ++i) total += lanes[i];
  return total;
}

int64_t collect(const float* logits, int64_t size, float bound, float* out_logits, int32_t* out_tokens) {
  const F32 d;
  const I32 di;
  const auto bounds = hn::Set(d, bound);
  int64_t count = 0;
  for (int64_t i = 0; i < size; i += kLanes) {
    const auto x = load_logits(logits + i, size - i);
    const auto is_in = hn::And(hn::Ge(x, bounds), hn::Gt(x, hn::Neg(hn::Inf(d))));
    if (hn::AllFalse(d, is_in)) continue;
    hn::CompressStore(x, is_in, d, out_logits + count);
    count += static_cast<int64_t>(hn::CompressStore(hn::Iota(di, static_cast<int32_t>(i)),
                                                    hn::RebindMask(di, is_in), di, out_tokens + count));
  }
  return count;
}

/// x * factor, 64 bits.
HWY_INLINE hn::Vec<U64> multiply(hn::Vec<U64> x, uint64_t factor) {
  const U64 d64;
#if HWY_TARGET == HWY_AVX3
  return hn::Mul(x, hn::Set(d64, factor));
#else
  const U32 d32;
  const auto low = hn::BitCast(d32, x), high = hn::BitCast(d32, hn::ShiftRight<32>(x));
  const auto factor_low = hn::BitCast(d32, hn::Set(d64, factor & 0xffffffffu));
  const auto factor_high = hn::BitCast(d32, hn::Set(d64, factor >> 32));
  const auto cross = hn::Add(hn::MulEven(high, factor_low), hn::MulEven(low, factor_high));
  return hn::Add(hn::MulEven(low, factor_low), hn::ShiftLeft<32>(cross));
#endif
}

/// The top 31 bits of ~token_hash for half of the lanes: 2^31 (1 - u), rounded down.
HWY_INLINE hn::Vec<HalfU32> noise_bits(hn::Vec<HalfU32> tokens, uint64_t row_key) {
  const U64 d64;
  const HalfU32 half;
  const auto index = hn::Add(hn::PromoteTo(d64, tokens), hn::Set(d64, 1));
  auto x = hn::Add(multiply(index, sampling::kGoldenGamma), hn::Set(d64, row_key));
  x = multiply(hn::Xor(x, hn::ShiftRight<30>(x)), 0xbf58476d1ce4e5b9ull);
  x = multiply(hn::Xor(x, hn::ShiftRight<27>(x)), 0x94d049bb133111ebull);
  x = hn::Xor(x, hn::ShiftRight<31>(x));
  return hn::TruncateTo(half, hn::ShiftRight<33>(hn::Not(x)));
}

/// A token can only beat the best score B if its noise exceeds B - x/T, that is -log u < e^(x/T - B); and 1 - u is
/// below -log u. So 1 - u <= e^((x - max)/T) * reach, reach = e^(max/T - B), is asked of all tokens with a few vector
/// instructions, and only those that pass (a few dozen of any vocabulary) get their exact score. The margin covers the
/// rounding of all of that.
HWY_INLINE float reach_of(const DrawArgs& args) {
  const double t = static_cast<double>(args.temperature);
  const double power = (static_cast<double>(args.max) / t - args.score) * contract::kLog2eHighF64;
  return static_cast<float>(exp2_f64(power < 100.0 ? power : 100.0)) * 1.001f + 0x1p-100f;
}

void draw(DrawArgs& args) {
  const F32 d;
  const U32 du;
  const I32 di;
  const HalfU32 half;
  float reach = reach_of(args);
  for (int64_t i = 0; i < args.list.size; i += kLanes) {
    const int64_t left = args.list.size - i;
    const auto x = load_logits(args.list.logits + i, left);
    auto tokens = hn::Iota(du, static_cast<uint32_t>(i));
    if (args.list.tokens != nullptr) {
      HWY_ALIGN uint32_t padded[kLanes] = {};
      for (int64_t k = 0; k < std::min(left, kLanes); ++k) padded[k] = static_cast<uint32_t>(args.list.tokens[i + k]);
      tokens = hn::Load(du, padded);
    }
    const auto e = simd_exp2_nonpositive(d, log2_weights(x, args.max, args.temperature));
    const auto low = noise_bits(hn::LowerHalf(half, tokens), args.row_key);
    const auto high = noise_bits(hn::UpperHalf(half, tokens), args.row_key);
    const auto noise = hn::ConvertTo(d, hn::BitCast(di, hn::Combine(du, high, low)));
    const auto limit = hn::Mul(e, hn::Set(d, reach * 0x1p31f));
    const auto may_win = hn::And(hn::Le(noise, limit), hn::Ge(e, hn::Set(d, args.least)));
    if (hn::AllFalse(d, may_win)) continue;
    HWY_ALIGN float logits[kLanes], chosen[kLanes];
    HWY_ALIGN uint32_t ids[kLanes];
    hn::Store(x, d, logits);
    hn::Store(tokens, du, ids);
    hn::Store(hn::IfThenElseZero(may_win, hn::Set(d, 1.0f)), d, chosen);
    for (int64_t k = 0; k < std::min(left, kLanes); ++k) {
      if (chosen[k] == 0.0f) continue;
      const int32_t token = static_cast<int32_t>(ids[k]);
      const double score = sampling::score(logits[k], args.temperature, sampling::token_hash(args.row_key, token));
      if (score > args.score || (score == args.score && token < args.token)) {
        args.score = score;
        args.token = token;
      }
    }
    reach = reach_of(args);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tensorfold::cpu {

SampleKernels sample_kernels(CpuIsa isa) {
  return {TF_ISA_FUNCTION(isa, scan), TF_ISA_FUNCTION(isa, weigh), TF_ISA_FUNCTION(isa, collect),
          TF_ISA_FUNCTION(isa, draw)};
}

}  // namespace tensorfold::cpu
#endif
