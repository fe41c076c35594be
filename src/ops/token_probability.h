// The probabilities of sample() on the backends in host memory: one row.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/contract_math.h"

namespace tensorfold {

/// The probability of `token`, in [0, vocab_size), by logits [vocab_size], the sum in f64 in order of token.
/// Logits that are more than 20 below the largest add less than the sum's last bit shows, and are left out.
inline float token_probability(const float* logits, int64_t vocab_size, int32_t token) {
  constexpr float kNegligible = 20.0f;
  float largest = logits[0];
  for (int64_t v = 1; v < vocab_size; ++v) largest = std::max(largest, logits[v]);
  const float least = largest - kNegligible;
  double sum = 0;
  for (int64_t v = 0; v < vocab_size; ++v)
    if (logits[v] >= least) sum += exp_f32(logits[v] - largest);
  return static_cast<float>(exp_f32(logits[token] - largest) / sum);
}

}  // namespace tensorfold
