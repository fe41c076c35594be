// What a request's sampling parameters mean for one row, and the log-probabilities that are reported beside
// its token. The draw itself is Ops::sample; the arithmetic of both is arithmetic.md's, "Sampling".
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "ops/ops.h"

namespace tensorfold {

/// kInvalidArgument with name and value of the first parameter out of its range (engine.h).
Status check_sampling(const SamplingParams& sampling);

/// The seed of a request that names none: XXH64 of the prompt's ids as 32-bit little-endian numbers, so that
/// equal prompts have equal replies on every machine.
uint64_t default_seed(std::span<const int32_t> prompt);

/// The parameters of the row that draws the token at `pos`.
SampleRow sample_row(const SamplingParams& sampling, uint64_t seed, int64_t pos);

/// Log-probability of `token` (in [0, V)) and of the num_top most likely tokens, by (logit descending, id
/// ascending):
///   logprob_i = logit_i - max - log(sum_j exp(logit_j - max))
/// in f64, the sum in order of id, exp and log by this file's own series, rounded once to f32: the same bits
/// on every machine. logits [V], none NaN, at least one finite; an infinitely unlikely token has -infinity.
struct TokenLogprobs {
  float chosen = 0.0f;
  std::vector<TokenLogprob> top;
};
TokenLogprobs token_logprobs(std::span<const float> logits, int32_t token, int num_top);

}  // namespace tensorfold
