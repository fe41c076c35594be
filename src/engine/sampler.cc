// Sampling parameters, default seeds and log-probabilities (engine/sampler.h).
#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/hash.h"

namespace tensorfold {
namespace {

/// exp(x) for x <= 0 with a relative error below 1e-11, far under the float that is made of it: x = k ln 2 +
/// r, |r| <= ln 2 / 2, Taylor's series of exp(r) to r^9 (the next term is below 7e-12), times 2^k. Only
/// additions, products and fma, so it is one function everywhere.
double exp_of_nonpositive(double x) {
  constexpr double kLowest =
      -700.0;  // exp(-700) is near the smallest normal double; it weighs nothing in a sum >= 1
  if (!(x > kLowest)) return 0.0;
  constexpr double kLog2E = 0x1.71547652b82fep+0, kLn2High = 0x1.62e42fefa39efp-1,
                   kLn2Low = 0x1.abc9e3b39803fp-56;
  const double k = std::floor(std::fma(x, kLog2E, 0.5));
  const double r = std::fma(-k, kLn2Low, std::fma(-k, kLn2High, x));
  double sum = 1.0;
  for (int n = 9; n >= 1; --n) sum = std::fma(sum * r, 1.0 / n, 1.0);
  return sum * std::bit_cast<double>((static_cast<int64_t>(k) + 1023) << 52);
}

/// log(x) for normal x >= 1: x = 2^k m with m in [sqrt 1/2, sqrt 2), log m = 2 atanh(z), z = (m - 1) / (m +
/// 1), by its series to z^23 (|z| < 0.172, the next term is below 1e-20).
double log_of_at_least_one(double x) {
  constexpr double kLn2High = 0x1.62e42fefa39efp-1, kLn2Low = 0x1.abc9e3b39803fp-56,
                   kSqrt2 = 0x1.6a09e667f3bcdp+0;
  const auto bits = std::bit_cast<uint64_t>(x);
  int64_t k = static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
  if (m >= kSqrt2) {
    m *= 0.5;
    ++k;
  }
  const double z = (m - 1.0) / (m + 1.0), z2 = z * z;
  double sum = 0.0;
  for (int n = 23; n >= 1; n -= 2) sum = std::fma(sum, z2, 1.0 / n);
  const auto whole = static_cast<double>(k);
  return std::fma(whole, kLn2High, std::fma(whole, kLn2Low, 2.0 * z * sum));
}

/// The num_top best ids of logits by (logit descending, id ascending).
std::vector<int32_t> best_ids(std::span<const float> logits, int num_top) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto end = ids.begin() + std::min<std::ptrdiff_t>(num_top, std::ssize(ids));
  std::partial_sort(ids.begin(), end, ids.end(), [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  ids.erase(end, ids.end());
  return ids;
}

}  // namespace

Status check_sampling(const SamplingParams& sampling) {
  // Written so that NaN fails each test.
  if (!(sampling.temperature >= 0.0f && sampling.temperature <= std::numeric_limits<float>::max())) {
    return invalid_argument("temperature is {}, expected a number that is 0 or more", sampling.temperature);
  }
  if (sampling.top_k < 0) return invalid_argument("top_k is {}, expected 0 (off) or more", sampling.top_k);
  if (!(sampling.top_p > 0.0f && sampling.top_p <= 1.0f)) {
    return invalid_argument("top_p is {}, expected more than 0 and at most 1", sampling.top_p);
  }
  if (!(sampling.min_p >= 0.0f && sampling.min_p <= 1.0f)) {
    return invalid_argument("min_p is {}, expected 0 to 1", sampling.min_p);
  }
  return {};
}

uint64_t default_seed(std::span<const int32_t> prompt) {
  std::vector<std::byte> bytes;
  bytes.reserve(prompt.size() * 4);
  for (const int32_t token : prompt) {
    const auto word = static_cast<uint32_t>(token);
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<std::byte>(word >> shift));
  }
  return hash_bytes(bytes);
}

SampleRow sample_row(const SamplingParams& sampling, uint64_t seed, int64_t pos) {
  return {.temperature = sampling.temperature,
          .top_k = sampling.top_k,
          .top_p = sampling.top_p,
          .min_p = sampling.min_p,
          .seed = seed,
          .pos = pos};
}

TokenLogprobs token_logprobs(std::span<const float> logits, int32_t token, int num_top) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += exp_of_nonpositive(logit - max);
  const double log_sum = log_of_at_least_one(sum);
  const auto logprob = [&](int32_t id) { return static_cast<float>(logits[id] - max - log_sum); };

  TokenLogprobs result{.chosen = logprob(token), .top = {}};
  for (const int32_t id : best_ids(logits, num_top))
    result.top.push_back({.token = id, .logprob = logprob(id)});
  return result;
}

}  // namespace tensorfold
