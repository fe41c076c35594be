// How one row's token is drawn, as numbers (arithmetic.md, "Sampling"): the weight of a token for the cuts, the noise of
// a draw, the score that is maximized. One definition for every backend and for CUDA device code (-fmad=false), so that
// a device draws the token that the CPU would draw from the same logits. Denormals are flushed.
//
//   x' = x + 0                      (flushes denormals, -0 becomes +0; all comparisons are of x')
//   weight(x) = floor(2^40 exp2(((x' - max) / T) log2 e)), fp32 up to the floor; 2^40 where x' = max
//   noise(seed, pos, token) = -log(-log u), f64, u = (h + 1/2) / 2^52 with h from a hash
//   score(x) = x' / T + noise, f64
//
//   candidates, each cut among those left by the ones before, order (x' descending, token ascending):
//     top_k   the first top_k                                                     (0, or >= V: all)
//     top_p   the shortest prefix whose weights sum to >= ceil(top_p * total)     (>= 1: all)
//     min_p   those of weight >= ceil(min_p 2^40)
//   the token is the candidate of finite or infinite positive logit with the largest score, the lowest id of equals;
//   T = 0: the largest x', the lowest id of equals.
#pragma once

#include <cstdint>

#include "ops/contract_math.h"

namespace tensorfold::sampling {

inline constexpr int kWeightBits = 40;
inline constexpr uint64_t kFullWeight = uint64_t{1} << kWeightBits;

/// The logit as it is compared.
TF_CONTRACT_FUNCTION float canonical(float logit) { return logit + 0.0f; }

/// A key whose unsigned order is the order of canonical, non-NaN logits.
TF_CONTRACT_FUNCTION uint32_t order_key(float canonical_logit) {
  const uint32_t bits = bits_as<uint32_t>(canonical_logit);
  return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}

/// ((logit - max) / temperature) log2 e; 0 where they are equal (both may be infinite).
TF_CONTRACT_FUNCTION float log2_weight(float canonical_logit, float max, float temperature) {
  if (canonical_logit == max) return 0.0f;
  return ((canonical_logit - max) / temperature) * contract::kLog2e;
}

/// floor(2^40 e) for 0 <= e <= 1: the mantissa as a number of 41 bits, shifted by the exponent.
TF_CONTRACT_FUNCTION uint64_t weight_of(float e) {
  const uint32_t bits = bits_as<uint32_t>(e);
  const uint64_t mantissa = (bits & 0x7fffffu) | 0x800000u;
  const uint32_t shift = 127u - (bits >> 23);
  return (mantissa << (kWeightBits - 23)) >> (shift < 63u ? shift : 63u);
}

/// The integer that a token weighs for the cuts.
TF_CONTRACT_FUNCTION uint64_t weight(float canonical_logit, float max, float temperature) {
  return weight_of(exp2_f32(log2_weight(canonical_logit, max, temperature)));
}

/// Smallest integer >= x for 0 <= x < 2^62.
TF_CONTRACT_FUNCTION uint64_t ceil_u64(double x) {
  const uint64_t whole = static_cast<uint64_t>(x);
  return static_cast<double>(whole) < x ? whole + 1 : whole;
}

/// What the prefix kept by top_p must reach, and what min_p asks of a weight.
TF_CONTRACT_FUNCTION uint64_t top_p_target(float top_p, uint64_t total) {
  return ceil_u64(static_cast<double>(top_p) * static_cast<double>(total));
}
TF_CONTRACT_FUNCTION uint64_t min_p_weight(float min_p) {
  return ceil_u64(static_cast<double>(min_p) * static_cast<double>(kFullWeight));
}

/// The finalizer of SplitMix64, as base/hash.h's mix64.
TF_CONTRACT_FUNCTION uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

inline constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15ull;

/// Start of the row's SplitMix64 sequence, whose member token + 1 is the token's hash.
TF_CONTRACT_FUNCTION uint64_t row_key(uint64_t seed, int64_t pos) {
  return mix(mix(seed + kGoldenGamma) + static_cast<uint64_t>(pos) * kGoldenGamma);
}
TF_CONTRACT_FUNCTION uint64_t token_hash(uint64_t row_key, int32_t token) {
  return mix(row_key + (static_cast<uint64_t>(static_cast<uint32_t>(token)) + 1) * kGoldenGamma);
}

/// Standard Gumbel noise from 52 of the hash's bits. u = (h + 1/2) / 2^52 is exact, and log is accurate near 1, so the
/// largest values (36 at most) are as finely graded as the others.
TF_CONTRACT_FUNCTION double gumbel(uint64_t hash) {
  const double u = (static_cast<double>(hash >> 12) + 0.5) * 0x1p-52;
  return -log_f64(-log_f64(u));
}

/// What the drawn token maximizes.
TF_CONTRACT_FUNCTION double score(float canonical_logit, float temperature, uint64_t hash) {
  return static_cast<double>(canonical_logit) / static_cast<double>(temperature) + gumbel(hash);
}

}  // namespace tensorfold::sampling
