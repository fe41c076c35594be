// How sample()'s kernel finds a cut without sorting, and which tokens it need not score: the part that is
// pure arithmetic, for host and device, so that a test follows the kernel's passes where there is no device.
// What a weight, a noise and a score are: ops/sampling_math.h.
//
// Every cut keeps a prefix of the tokens in the order (logit descending, token ascending). Both are one
// number, the token's *order*, larger first: 32 bits of key, then 24 of the token counted down. A prefix is
// then a threshold, and the threshold is found digit by digit from the top: a pass sums, for each digit, what
// the tokens in question measure (1 each for top_k, their weight for top_p), and the digit in which the sum
// from the top reaches its target is the threshold's. The sums are of integers, so nothing depends on who
// adds them. Seven digits tell any two tokens apart; most rows need three, because a digit all of whose
// tokens are needed ends the search.
#pragma once

#include <cstdint>

#include "ops/sampling_math.h"

namespace tensorfold::cuda {

inline constexpr int kTokenBits = 24;
inline constexpr uint32_t kLastToken = (1u << kTokenBits) - 1;
inline constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits;
/// Order of the first digit's last bit: 32 + 24 bits, less one digit.
inline constexpr int kFirstShift = 32 + kTokenBits - kDigitBits;

TF_CONTRACT_FUNCTION uint64_t order_of(uint32_t key, int32_t token) {
  return (uint64_t{key} << kTokenBits) | (kLastToken - static_cast<uint32_t>(token));
}

/// The logit whose sampling::order_key() is `key`; some NaN where there is none.
TF_CONTRACT_FUNCTION float logit_of_key(uint32_t key) {
  return bits_as<float>((key & 0x80000000u) ? key ^ 0x80000000u : ~key);
}

/// A search for the smallest order that is kept: it is at least `low` and below low + 2^(shift + kDigitBits).
struct Selection {
  uint64_t low = 0;
  uint64_t needed = 0;  ///< What the tokens in that range must measure together.
  int32_t shift = kFirstShift;
  int32_t is_done = 0;  ///< All tokens from `low` on are kept.
};

/// A token's digit in the range of the selection; kDigits or more outside of it.
TF_CONTRACT_FUNCTION uint32_t digit_of(const Selection& s, uint32_t key, int32_t token) {
  const auto low_key = static_cast<uint32_t>(s.low >> kTokenBits);
  if (s.shift >= kTokenBits) return (key - low_key) >> (s.shift - kTokenBits);
  const uint32_t rest =
      kLastToken - static_cast<uint32_t>(token) - (static_cast<uint32_t>(s.low) & kLastToken);
  return key == low_key ? rest >> s.shift : kDigits;
}

/// Whether the threshold lies in the digit of measure `own`, those above measuring `above`.
TF_CONTRACT_FUNCTION bool is_reached_in(const Selection& s, uint64_t above, uint64_t own) {
  return above < s.needed && s.needed <= above + own;
}

/// Narrows the selection to that digit.
template <class Measure>
TF_CONTRACT_FUNCTION void narrow(Selection& s, const Measure& measure, uint32_t digit, uint64_t above,
                                 uint64_t own) {
  s.low += static_cast<uint64_t>(digit) << s.shift;
  s.needed -= above;
  // Leaving out any token would leave out at least as much as the lowest key allows: if that is too much, all
  // stay.
  const bool all_stay = own - s.needed < measure.least(static_cast<uint32_t>(s.low >> kTokenBits));
  s.is_done = all_stay || s.shift == 0;
  s.shift -= kDigitBits;
}

/// The threshold of a search that is done, over tokens of order `floor` and more: it may have ended at a
/// digit that reaches below the floor.
TF_CONTRACT_FUNCTION uint64_t threshold_of(const Selection& s, uint64_t floor) {
  return s.low > floor ? s.low : floor;
}

/// What top_k sums.
struct CountMeasure {
  uint64_t top_k;

  TF_CONTRACT_FUNCTION uint64_t target(uint64_t) const { return top_k; }
  TF_CONTRACT_FUNCTION uint64_t of(float) const { return 1; }
  TF_CONTRACT_FUNCTION uint64_t least(uint32_t) const { return 1; }
};

/// What top_p sums.
struct WeightMeasure {
  float max, temperature, top_p;

  /// At least 1: the first token always stays.
  TF_CONTRACT_FUNCTION uint64_t target(uint64_t total) const {
    const uint64_t target = sampling::top_p_target(top_p, total);
    return target > 0 ? target : 1;
  }
  TF_CONTRACT_FUNCTION uint64_t of(float logit) const { return sampling::weight(logit, max, temperature); }
  /// A lower bound of the weights of tokens with this key or a higher one. The margin is for exp2_f32, which
  /// may fall by a unit in the last place where its argument grows.
  TF_CONTRACT_FUNCTION uint64_t least(uint32_t key) const {
    const uint64_t weight = of(logit_of_key(key));
    return weight - (weight >> 20);
  }
};

/// A sum of weights in two 32-bit counters, for which shared memory has fast atomics: 4,095 weights fit.
inline constexpr int kHalfWeightBits = sampling::kWeightBits / 2;
inline constexpr uint32_t kHalfWeightMask = (1u << kHalfWeightBits) - 1;
TF_CONTRACT_FUNCTION uint32_t low_half(uint64_t weight) {
  return static_cast<uint32_t>(weight) & kHalfWeightMask;
}
TF_CONTRACT_FUNCTION uint32_t high_half(uint64_t weight) {
  return static_cast<uint32_t>(weight >> kHalfWeightBits);
}

/// A token and what it is ranked by; the higher rank is better, the lower token of equals.
struct Ranked {
  uint64_t rank;
  int32_t token;
};
TF_CONTRACT_FUNCTION Ranked better_of(const Ranked& a, const Ranked& b) {
  return a.rank > b.rank || (a.rank == b.rank && a.token <= b.token) ? a : b;
}

inline constexpr Ranked kNoToken = {0, 0x7fffffff};
/// Rank of a NaN logit: above every key.
inline constexpr uint64_t kNanRank = 0xffffffffu;
inline constexpr uint64_t kInfinityRank = 0xff800000u, kMinusInfinityRank = 0x007fffffu;

/// Ranks in the order of scores, none of which is NaN.
TF_CONTRACT_FUNCTION uint64_t rank_of_score(double score) {
  const uint64_t bits = bits_as<uint64_t>(score + 0.0);  // -0 equals +0
  return (bits >> 63) ? ~bits : bits | 0x8000000000000000u;
}
TF_CONTRACT_FUNCTION double score_of_rank(uint64_t rank) {
  return bits_as<double>((rank >> 63) ? rank ^ 0x8000000000000000u : ~rank);
}

/// Whether the largest logit alone decides the row's token, and that token.
TF_CONTRACT_FUNCTION bool is_decided(const Ranked& top, float temperature, int32_t top_k) {
  return temperature == 0.0f || top_k == 1 || top.rank >= kInfinityRank || top.rank <= kMinusInfinityRank;
}
TF_CONTRACT_FUNCTION int32_t decided_token(const Ranked& top) {
  return top.rank == kNanRank || top.rank <= kMinusInfinityRank ? -1 : top.token;
}

/// What is left of a row after its cuts.
struct Candidates {
  uint64_t least_order = 0;   ///< top_k and top_p.
  uint64_t least_weight = 0;  ///< min_p.
  float max, temperature;

  TF_CONTRACT_FUNCTION bool contains(float logit, int32_t token) const {
    return order_of(sampling::order_key(logit), token) >= least_order &&
           (least_weight == 0 || sampling::weight(logit, max, temperature) >= least_weight);
  }
};

/// 2^x to 2^-20 of itself for -126 <= x <= 0; 0 below.
TF_CONTRACT_FUNCTION float rough_exp2(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2_f32(x);
#endif
}

/// Which tokens can still beat a score B (that of a candidate), told with a few fp32 instructions; only those
/// get their exact score, which takes two logarithms in double.
///   logit/T + noise >= B  <=>  -log u <= e^(logit/T - B);  and 1 - u < -log u, so it takes
///   1 - u <= e^((logit - max)/T) * reach,  reach = e^(max/T - B)
/// The margins cover every rounding, that of the scores included.
struct DrawFilter {
  float max, log2_factor, limit, least_logit;
  uint64_t row_key;

  TF_CONTRACT_FUNCTION DrawFilter(const Candidates& candidates, uint64_t key, double score)
      : max(candidates.max), row_key(key) {
    const double top = static_cast<double>(max) / static_cast<double>(candidates.temperature);
    const double power = (top - score) * contract::kLog2eHighF64 + ::fabs(top) * 0x1p-50;
    log2_factor = contract::kLog2e / candidates.temperature;
    limit = (static_cast<float>(exp2_f64(power < 60.0 ? power : 60.0)) * 1.001f) * 0x1p31f;
    const auto least_key = static_cast<uint32_t>(candidates.least_order >> kTokenBits);
    least_logit = logit_of_key(least_key > kMinusInfinityRank ? least_key : kMinusInfinityRank);
  }
  /// False: the token is no candidate, or its score is below B.
  TF_CONTRACT_FUNCTION bool may_win(float logit, int32_t token) const {
    return logit >= least_logit && may_beat(logit, sampling::token_hash(row_key, token));
  }
  /// The second half, of a token with this hash. Not-a-number passes.
  TF_CONTRACT_FUNCTION bool may_beat(float logit, uint64_t hash) const {
    const auto noise = static_cast<float>(static_cast<uint32_t>(~hash >> 33));  // 2^31 (1 - u), rounded down
    return !(noise > rough_exp2((logit - max) * log2_factor) * limit);
  }
};

}  // namespace tensorfold::cuda
