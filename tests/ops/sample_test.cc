// sample: every instruction set draws the reference's tokens; each cut has its truth table on four tokens; draws have the
// distribution they claim, by statistics that reject planted faults.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <set>

#include "tests/ops/op_test_support.h"

namespace tensorfold::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Tokens of `rows`, all of the same logits.
std::vector<int32_t> draw(Ops& ops, std::vector<float> logits, const std::vector<SampleRow>& rows) {
  View view(logits.data(), DType::kF32, {static_cast<int64_t>(rows.size()), static_cast<int64_t>(logits.size())});
  view.row_stride = 0;
  std::vector<int32_t> tokens(rows.size(), -7);
  ops.sample(tokens, view, rows);
  return tokens;
}

// Equality with the reference.

/// Logits of many shapes: what the bounds and digit counts of the fast path must survive.
std::vector<float> logits_of_kind(int kind, int64_t n, Random& random) {
  std::vector<float> x(n);
  for (float& v : x) v = 3.0f * random.normal();
  switch (kind) {
    case 0: break;
    case 1: for (float& v : x) v = std::round(2.0f * v) / 2.0f; break;                    // ties
    case 2: for (float& v : x) v = 1.5f; break;                                          // all equal
    case 3: for (float& v : x) v *= 8.0f; break;                                         // peaked
    case 4: for (float& v : x) v = random.below(3) == 0 ? v : -kInf; x[n / 2] = 0; break;  // mostly excluded
    case 5: for (float& v : x) v = v > 0 ? 0.0f : bits_as<float>(0x80000001u); break;    // zeros and denormals
    case 6: for (float& v : x) v = 1000.0f + v / 64.0f; break;                           // coarse floats
    case 7: for (float& v : x) v = -1e30f * (1 + v * v); break;                          // huge
    case 8: x[n - 1] = kInf; x[n / 3] = kInf; break;
    case 9: x[n / 2] = NAN; break;
    case 10: for (float& v : x) v = -kInf; break;
    case 11: for (float& v : x) v = v / 1000.0f; break;                                  // flat
  }
  return x;
}

class SampleOnEveryIsa : public EveryIsa {};

TEST_P(SampleOnEveryIsa, EqualsTheReference) {
  Random random(1);
  for (const int64_t n : {1, 2, 3, 4, 7, 8, 15, 16, 17, 63, 64, 65, 127, 129, 1000, 4099}) {
    for (int kind = 0; kind < 12; ++kind) {
      const std::vector<float> logits = logits_of_kind(kind, n, random);
      std::vector<SampleRow> rows;
      for (const float temperature : {0.0f, 1e-39f, 0.05f, 0.7f, 1.0f, 8.0f}) {
        for (const int32_t top_k : {0, 1, 2, 5, 40, static_cast<int32_t>(n - 1), static_cast<int32_t>(n + 1)}) {
          for (const float top_p : {1.0f, 0.99999994f, 0.9f, 0.5f, 0.1f, 1e-9f}) {
            const float min_p = std::array{0.0f, 0.0f, 1e-12f, 0.05f, 0.5f, 1.0f}[random.below(6)];
            rows.push_back({.temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p,
                            .seed = random.bits(), .pos = random.below(100000)});
          }
        }
      }
      const std::vector<int32_t> expected = draw(reference(), logits, rows);
      for (auto& ops : backends()) {
        const std::vector<int32_t> actual = draw(*ops, logits, rows);
        for (size_t i = 0; i < rows.size(); ++i) {
          ASSERT_EQ(actual[i], expected[i])
              << fmt::format("V {} kind {} T {} top_k {} top_p {} min_p {}", n, kind, rows[i].temperature,
                             rows[i].top_k, rows[i].top_p, rows[i].min_p);
        }
      }
    }
  }
}

TEST_P(SampleOnEveryIsa, RowsAreDrawnApart) {
  Random random(2);
  Array logits(DType::kF32, 7, 333, {5, 1});
  logits.fill(random, 2.0f);
  logits.set(3, 100, NAN);
  std::vector<SampleRow> rows;
  for (int64_t i = 0; i < 7; ++i) rows.push_back({.top_k = i == 2 ? 3 : 0, .seed = 5, .pos = i});
  for (auto& ops : backends()) {
    std::vector<int32_t> all(7);
    ops->sample(all, logits.view(), rows);
    for (int64_t i = 0; i < 7; ++i) {
      int32_t alone = -7;
      ops->sample({&alone, 1}, logits.view().rows(i, 1), {&rows[i], 1});
      EXPECT_EQ(alone, all[i]) << i;
    }
    EXPECT_EQ(all[3], -1);
    ops->sample({}, logits.view().rows(0, 0), {});
  }
}

TF_INSTANTIATE_FOR_EVERY_ISA(SampleOnEveryIsa);

// Truth tables.

/// The tokens that 400 positions draw.
std::set<int32_t> support(const std::vector<float>& logits, SampleRow row) {
  auto reference = make_reference_ops();
  std::vector<SampleRow> rows(400, row);
  for (size_t i = 0; i < rows.size(); ++i) rows[i].pos = static_cast<int64_t>(i);
  const std::vector<int32_t> tokens = draw(*reference, logits, rows);
  return {tokens.begin(), tokens.end()};
}

std::vector<float> log_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

using Tokens = std::set<int32_t>;

TEST(SampleReference, TemperatureZeroIsArgmaxWithTheLowestIdOfEquals) {
  EXPECT_EQ(support({1, 3, 3, 2}, {.temperature = 0}), Tokens{1});
  EXPECT_EQ(support({-0.0f, 0.0f, -1, -0.0f}, {.temperature = 0}), Tokens{0});
  EXPECT_EQ(support({-5, -5, -5, -4}, {.temperature = 0, .top_k = 2, .top_p = 0.5f}), Tokens{3});
}

TEST(SampleReference, NeutralValuesKeepEveryToken) {
  EXPECT_EQ(support(log_of({0.4, 0.3, 0.2, 0.1}), {}), (Tokens{0, 1, 2, 3}));
}

TEST(SampleReference, TopKKeepsTheLargestLowestIdFirst) {
  const std::vector<float> logits = log_of({0.1, 0.4, 0.3, 0.2});
  EXPECT_EQ(support(logits, {.top_k = 1}), Tokens{1});
  EXPECT_EQ(support(logits, {.top_k = 2}), (Tokens{1, 2}));
  EXPECT_EQ(support(logits, {.top_k = 3}), (Tokens{1, 2, 3}));
  EXPECT_EQ(support(logits, {.top_k = 4}), (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(support(logits, {.top_k = 9}), (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(support({1, 1, 1, 1}, {.top_k = 2}), (Tokens{0, 1}));
}

TEST(SampleReference, TopPKeepsTheShortestPrefixThatReachesIt) {
  const std::vector<float> logits = log_of({0.1, 0.4, 0.3, 0.2});
  EXPECT_EQ(support(logits, {.top_p = 1e-6f}), Tokens{1});
  EXPECT_EQ(support(logits, {.top_p = 0.39f}), Tokens{1});
  EXPECT_EQ(support(logits, {.top_p = 0.41f}), (Tokens{1, 2}));
  EXPECT_EQ(support(logits, {.top_p = 0.69f}), (Tokens{1, 2}));
  EXPECT_EQ(support(logits, {.top_p = 0.71f}), (Tokens{1, 2, 3}));
  EXPECT_EQ(support(logits, {.top_p = 0.91f}), (Tokens{0, 1, 2, 3}));
  // Equal weights are exact: half of the mass is two tokens, a little more is three.
  EXPECT_EQ(support({1, 1, 1, 1}, {.top_p = 0.5f}), (Tokens{0, 1}));
  EXPECT_EQ(support({1, 1, 1, 1}, {.top_p = std::nextafter(0.5f, 1.0f)}), (Tokens{0, 1, 2}));
}

TEST(SampleReference, MinPKeepsWhatIsCloseToTheBest) {
  const std::vector<float> logits = log_of({0.1, 0.4, 0.3, 0.2});
  EXPECT_EQ(support(logits, {.min_p = 0.24f}), (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(support(logits, {.min_p = 0.26f}), (Tokens{1, 2, 3}));
  EXPECT_EQ(support(logits, {.min_p = 0.51f}), (Tokens{1, 2}));
  EXPECT_EQ(support(logits, {.min_p = 0.76f}), Tokens{1});
  EXPECT_EQ(support({1, 1, 1, 0.999f}, {.min_p = 1.0f}), (Tokens{0, 1, 2}));
}

TEST(SampleReference, CutsAreAtTheTemperature) {
  const std::vector<float> logits = log_of({0.1, 0.4, 0.3, 0.2});
  // T = 1/2 squares the probabilities: 16/30, 9/30, 4/30, 1/30.
  EXPECT_EQ(support(logits, {.temperature = 0.5f, .top_p = 0.53f}), Tokens{1});
  EXPECT_EQ(support(logits, {.temperature = 0.5f, .top_p = 0.83f}), (Tokens{1, 2}));
  EXPECT_EQ(support(logits, {.temperature = 0.5f, .min_p = 0.24f}), (Tokens{1, 2, 3}));
  EXPECT_EQ(support(logits, {.temperature = 0.5f, .min_p = 0.26f}), (Tokens{1, 2}));
}

TEST(SampleReference, CutsApplyInOrderToWhatIsLeft) {
  const std::vector<float> logits = log_of({0.1, 0.4, 0.3, 0.2});
  // Of the top two, the first has 4/7 = 0.571.
  EXPECT_EQ(support(logits, {.top_k = 2, .top_p = 0.56f}), Tokens{1});
  EXPECT_EQ(support(logits, {.top_k = 2, .top_p = 0.58f}), (Tokens{1, 2}));
  EXPECT_EQ(support(logits, {.top_k = 3, .top_p = 0.95f, .min_p = 0.6f}), (Tokens{1, 2}));
}

TEST(SampleReference, InfinitiesAndNaN) {
  EXPECT_EQ(support({-kInf, 0, -kInf, 0}, {.temperature = 50}), (Tokens{1, 3}));
  EXPECT_EQ(support({0, kInf, 5, kInf}, {}), Tokens{1});
  EXPECT_EQ(support({0, NAN, 5, 6}, {}), Tokens{-1});
  EXPECT_EQ(support({0, NAN, 5, 6}, {.temperature = 0}), Tokens{-1});
  EXPECT_EQ(support({-kInf, -kInf, -kInf, -kInf}, {}), Tokens{-1});
}

// Distribution.

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
  std::vector<float> logits(1000);
  for (float& x : logits) x = 0.5f * random.normal();
  return logits;
}

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
  EXPECT_NE(judge(best_too_likely, peaked_logits(), 1.0f, kDraws), "");
  EXPECT_NE(judge(seed_ignored, peaked_logits(), 1.0f, kDraws), "");
  EXPECT_NE(judge(seed_ignored, flat_logits(), 1.0f, kDraws), "");
  EXPECT_NE(judge(position_ignored, peaked_logits(), 1.0f, kDraws), "");
  EXPECT_NE(judge(position_ignored, flat_logits(), 1.0f, kDraws), "");
}

}  // namespace
}  // namespace tensorfold::test
