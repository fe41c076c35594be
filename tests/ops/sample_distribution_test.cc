// sample: draws have the distribution they claim, by statistics that reject planted faults.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "tests/ops/sample_test_support.h"

namespace tensorfold::test {
namespace {

/// Draws tokens from logits; the faults of the tests below are samplers of this form.
using Sampler = std::function<std::vector<int32_t>(std::vector<float> logits, std::vector<SampleRow> rows)>;

Sampler cpu_sampler() {
  return [](std::vector<float> logits, std::vector<SampleRow> rows) {
    static const std::unique_ptr<Ops> ops = std::move(make_cpu_ops(0)).value();
    return draw(*ops, std::move(logits), rows);
  };
}

/// Deviation of a chi-square sum with `degrees` degrees of freedom, in standard deviations (Wilson and Hilferty 1931).
double chi_square_sigmas(double sum, double degrees) {
  const double v = 2.0 / (9.0 * degrees);
  return (std::cbrt(sum / degrees) - (1 - v)) / std::sqrt(v);
}

/// "" where counts agree with the probabilities: each token within five binomial deviations where 20 or more are
/// expected, and chi-square over cells of at least 20, pooled from the least likely up, below five.
std::string disagreement(const std::vector<int64_t>& counts, const std::vector<double>& probabilities) {
  const double n = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  std::vector<size_t> order(counts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return probabilities[a] < probabilities[b]; });
  double chi_square = 0, cells = 0, expected = 0, observed = 0;
  for (const size_t token : order) {
    const double mean = n * probabilities[token], count = static_cast<double>(counts[token]);
    if (mean == 0 && count > 0) return fmt::format("token {} of probability 0 drawn", token);
    const double deviation = std::sqrt(mean * (1 - probabilities[token]));
    if (mean >= 20 && std::fabs(count - mean) > 5 * deviation) {
      return fmt::format("token {} drawn {} times, expected {} +- {}", token, count, mean, deviation);
    }
    expected += mean;
    observed += count;
    if (expected < 20) continue;
    chi_square += (observed - expected) * (observed - expected) / expected;
    ++cells;
    expected = observed = 0;
  }
  const double sigmas = chi_square_sigmas(chi_square, cells - 1);
  return sigmas < 5 ? "" : fmt::format("chi-square {} of {} cells: {} sigma", chi_square, cells, sigmas);
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature) {
  const double max = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p;
  for (const float x : logits) p.push_back(std::exp((x - max) / temperature));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) value /= sum;
  return p;
}

/// Seeds and positions of n draws: one seed over many positions and one position over many seeds, half each.
std::vector<SampleRow> many_rows(int64_t n, float temperature) {
  std::vector<SampleRow> rows;
  for (int64_t i = 0; i < n; ++i) {
    const bool by_pos = i < n / 2;
    rows.push_back({.temperature = temperature, .seed = by_pos ? 42 : static_cast<uint64_t>(i), .pos = by_pos ? i : 7});
  }
  return rows;
}

std::string judge(const Sampler& sampler, const std::vector<float>& logits, float temperature, int64_t num_draws) {
  std::vector<int64_t> counts(logits.size());
  for (const int32_t token : sampler(logits, many_rows(num_draws, temperature))) {
    if (token < 0 || token >= static_cast<int32_t>(logits.size())) return "not a token";
    ++counts[token];
  }
  return disagreement(counts, softmax(logits, temperature));
}

/// Half of the mass on one token, the rest falling off.
std::vector<float> peaked_logits() {
  std::vector<float> logits(200);
  for (size_t i = 0; i < logits.size(); ++i) logits[(i * 77 + 5) % 200] = -0.045f * static_cast<float>(i);
  logits[5] = 3.05f;
  return logits;
}

std::vector<float> flat_logits() {
  Random random(3);
  std::vector<float> logits(300);
  for (float& x : logits) x = 0.7f * random.normal();
  return logits;
}

/// A temperature 5 % off moves chi-square by kDraws * variance of the logits * 0.05^2 = 370 on the flat distribution,
/// whose own deviation is sqrt(2 * 299) = 24. The best token 2 % too likely moves its count by 0.02 sqrt(draws / 4)
/// deviations: with half a million draws 7, of which the verdict asks 5.
constexpr int64_t kDraws = 300000;

TEST(SampleDistribution, IsThatOfTheSoftmax) {
  EXPECT_NEAR(softmax(peaked_logits(), 1.0)[5], 0.5, 0.05);
  for (const float temperature : {0.6f, 1.0f, 1.7f}) {
    EXPECT_EQ(judge(cpu_sampler(), peaked_logits(), temperature, kDraws), "");
    EXPECT_EQ(judge(cpu_sampler(), flat_logits(), temperature, kDraws), "");
  }
}

TEST(SampleDistribution, AFlatTailOfALargeVocabularyHasItsShare) {
  // 1 % over 250,000 tokens: noise of 24 bits draws it 1.7 % of the time.
  std::vector<float> logits(250000, 0.0f);
  logits[123456] = static_cast<float>(std::log(99.0 * 249999.0));
  constexpr int64_t kFew = 6000;
  int64_t tail = 0;
  for (const int32_t token : cpu_sampler()(logits, many_rows(kFew, 1.0f))) tail += token != 123456;
  EXPECT_NEAR(static_cast<double>(tail), 0.01 * kFew, 5 * std::sqrt(0.01 * 0.99 * kFew));
}

TEST(SampleDistribution, NeighbouringSeedsAndPositionsAreIndependent) {
  const std::vector<float> logits = log_of({0.4, 0.3, 0.2, 0.1});
  const std::vector<double> p = softmax(logits, 1.0);
  std::vector<double> joint;
  for (const double a : p) {
    for (const double b : p) joint.push_back(a * b);
  }
  for (const bool by_pos : {true, false}) {
    std::vector<SampleRow> rows;
    for (int64_t i = 0; i < 200000; ++i) {
      rows.push_back({.seed = by_pos ? 9 : static_cast<uint64_t>(i), .pos = by_pos ? i : 9});
    }
    const std::vector<int32_t> tokens = cpu_sampler()(logits, rows);
    std::vector<int64_t> counts(16);
    for (size_t i = 0; i + 1 < tokens.size(); i += 2) ++counts[tokens[i] * 4 + tokens[i + 1]];
    EXPECT_EQ(disagreement(counts, joint), "");
  }
}

TEST(SampleDistribution, PlantedFaultsAreRejected) {
  const Sampler good = cpu_sampler();
  const auto with_rows = [&](auto change) -> Sampler {
    return [=](std::vector<float> logits, std::vector<SampleRow> rows) {
      for (SampleRow& row : rows) change(row);
      return good(std::move(logits), std::move(rows));
    };
  };
  const Sampler too_hot = with_rows([](SampleRow& row) { row.temperature *= 1.05f; });
  const Sampler seed_ignored = with_rows([](SampleRow& row) { row.seed = 0; });
  const Sampler position_ignored = with_rows([](SampleRow& row) { row.pos = 0; });
  const Sampler best_too_likely = [&](std::vector<float> logits, std::vector<SampleRow> rows) {
    *std::max_element(logits.begin(), logits.end()) += std::log(1.02f) * rows[0].temperature;
    return good(std::move(logits), std::move(rows));
  };
  const Sampler no_tail = [&](std::vector<float> logits, std::vector<SampleRow> rows) {
    const std::vector<double> p = softmax(logits, rows[0].temperature);
    std::vector<size_t> order(p.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] < p[b]; });
    double mass = 0;
    for (const size_t token : order) {
      if ((mass += p[token]) > 0.01) break;
      logits[token] = -kInf;
    }
    return good(std::move(logits), std::move(rows));
  };
  EXPECT_NE(judge(too_hot, peaked_logits(), 1.0f, kDraws), "");
  EXPECT_NE(judge(too_hot, flat_logits(), 1.0f, kDraws), "");
  EXPECT_NE(judge(no_tail, peaked_logits(), 1.0f, kDraws), "");
  EXPECT_NE(judge(no_tail, flat_logits(), 1.0f, kDraws), "");
  EXPECT_NE(judge(best_too_likely, peaked_logits(), 1.0f, 500000), "");
  EXPECT_NE(judge(seed_ignored, peaked_logits(), 1.0f, kDraws), "");
  EXPECT_NE(judge(seed_ignored, flat_logits(), 1.0f, kDraws), "");
  EXPECT_NE(judge(position_ignored, peaked_logits(), 1.0f, kDraws), "");
  EXPECT_NE(judge(position_ignored, flat_logits(), 1.0f, kDraws), "");
}

}  // namespace
}  // namespace tensorfold::test
