// Seeds, parameter checks and log-probabilities. Draws are tested with Ops::sample (tests/ops).
#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace tensorfold {
namespace {

TEST(Sampler, DefaultSeedIsAFixedFunctionOfTheTokens) {
  // From another implementation of XXH64: python-xxhash 4.1.0, xxhash.xxh64_intdigest(bytes), ids as '<i'.
  EXPECT_EQ(default_seed(std::vector<int32_t>{1, 2, 3}), 13048208712247349756ull);
  EXPECT_EQ(default_seed(std::vector<int32_t>{49151, 0, 258, 65536}), 868748581305798229ull);
}

TEST(Sampler, EveryTokenAndItsPlaceCountInTheSeed) {
  const std::vector<int32_t> prompt = {5, 6, 7, 8};
  const uint64_t seed = default_seed(prompt);
  for (size_t i = 0; i < prompt.size(); ++i) {
    std::vector<int32_t> changed = prompt;
    changed[i] += 256;
    EXPECT_NE(default_seed(changed), seed) << i;
  }
  EXPECT_NE(default_seed(std::vector<int32_t>{6, 5, 7, 8}), seed);
  EXPECT_NE(default_seed(std::vector<int32_t>{5, 6, 7}), seed);
}

TEST(Sampler, RowCarriesEveryParameter) {
  const SamplingParams sampling{.temperature = 0.5f, .top_k = 7, .top_p = 0.9f, .min_p = 0.1f, .seed = {}};
  const SampleRow row = sample_row(sampling, 42, 99);
  EXPECT_EQ(row.temperature, 0.5f);
  EXPECT_EQ(row.top_k, 7);
  EXPECT_EQ(row.top_p, 0.9f);
  EXPECT_EQ(row.min_p, 0.1f);
  EXPECT_EQ(row.seed, 42u);
  EXPECT_EQ(row.pos, 99);
}

TEST(Sampler, ParametersOutOfRangeAreNamed) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  const auto message = [](SamplingParams sampling) { return check_sampling(sampling).message(); };
  for (const float value : {-0.1f, nan, infinity}) {
    EXPECT_NE(message({.temperature = value, .seed = {}}).find("temperature is "), std::string::npos)
        << value;
  }
  EXPECT_EQ(message({.top_k = -1, .seed = {}}), "top_k is -1, expected 0 (off) or more");
  for (const float value : {0.0f, 1.1f, nan}) {
    EXPECT_NE(message({.top_p = value, .seed = {}}).find("top_p is "), std::string::npos) << value;
  }
  for (const float value : {-0.1f, 1.1f, nan}) {
    EXPECT_NE(message({.min_p = value, .seed = {}}).find("min_p is "), std::string::npos) << value;
  }
  EXPECT_TRUE(check_sampling({.temperature = 0, .top_k = 0, .top_p = 1e-6f, .min_p = 1, .seed = {}}).ok());
}

/// Log-softmax in long double by the C library.
long double expected_logprob(const std::vector<float>& logits, int32_t token) {
  long double max = -std::numeric_limits<long double>::infinity(), sum = 0;
  for (const float logit : logits) max = std::max<long double>(max, logit);
  for (const float logit : logits) sum += std::exp(static_cast<long double>(logit) - max);
  return logits[static_cast<size_t>(token)] - max - std::log(sum);
}

/// The nearest float: log-probabilities are computed in double and rounded once, so at most a halfway case
/// may differ.
void expect_rounded(float found, long double expected) {
  EXPECT_LE(std::abs(found - expected), 0.5001L * std::abs(std::nextafter(found, 0.0f) - found) + 1e-16L);
}

TEST(Sampler, LogprobsAreTheLogSoftmaxRoundedOnce) {
  std::mt19937 random(7);
  for (const float spread : {0.0f, 1.0f, 30.0f, 500.0f}) {
    std::normal_distribution<float> normal(3.0f, spread);
    for (const size_t vocab_size : {1u, 2u, 33u, 5000u}) {
      std::vector<float> logits(vocab_size);
      for (float& logit : logits) logit = spread == 0 ? 3.0f : normal(random);
      for (int i = 0; i < 8; ++i) {
        const auto token = static_cast<int32_t>(random() % vocab_size);
        expect_rounded(token_logprobs(logits, token, 0).chosen, expected_logprob(logits, token));
      }
    }
  }
}

TEST(Sampler, AnImpossibleTokenHasNoProbability) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> logits = {1.0f, -infinity, 1.0f};
  const TokenLogprobs found = token_logprobs(logits, 0, 3);
  expect_rounded(found.chosen, -std::log(2.0L));
  EXPECT_EQ(found.top[2].token, 1);
  EXPECT_EQ(found.top[2].logprob, -infinity);
}

TEST(Sampler, TopLogprobsComeByLogitThenById) {
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f, 3.0f, 2.0f, 0.0f};
  const TokenLogprobs found = token_logprobs(logits, 5, 4);
  std::vector<int32_t> ids;
  for (const TokenLogprob& top : found.top) ids.push_back(top.token);
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 3, 2, 4}));
  EXPECT_EQ(found.top[0].logprob, found.top[1].logprob);
  EXPECT_GT(found.top[1].logprob, found.top[2].logprob);
  EXPECT_EQ(token_logprobs(logits, 1, 4).chosen, found.top[0].logprob);
  EXPECT_EQ(token_logprobs(logits, 1, 20).top.size(), logits.size());
  EXPECT_TRUE(token_logprobs(logits, 1, 0).top.empty());
}

}  // namespace
}  // namespace tensorfold
