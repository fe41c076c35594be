// sample: every instruction set draws the reference's tokens; each cut has its truth table on four tokens.
#include <fmt/format.h>

#include <set>

#include "base/fp_env.h"
#include "ops/token_probability.h"
#include "tests/ops/sample_test_support.h"

namespace tensorfold::test {
namespace {

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

TEST_P(SampleOnEveryIsa, ANaNAtAnyTokenDrawsNothing) {
  Random random(4);
  const std::vector<SampleRow> rows = {
      {.temperature = 0}, {}, {.top_k = 3}, {.top_p = 0.5f}, {.min_p = 0.1f}};
  for (const int64_t n : {1, 2, 5, 64, 65, 1000}) {
    for (const int64_t place : {int64_t{0}, std::min<int64_t>(1, n - 1), n / 2, n - 1}) {
      for (const uint32_t nan : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xffffffffu}) {
        std::vector<float> logits = logits_of_kind(0, n, random);
        logits[(place + 1) % n] = kInf;
        logits[place] = bits_as<float>(nan);
        const std::vector<int32_t> none(rows.size(), -1);
        EXPECT_EQ(draw(reference(), logits, rows), none) << n << " at " << place;
        for (auto& ops : backends()) EXPECT_EQ(draw(*ops, logits, rows), none) << n << " at " << place;
      }
    }
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

// Probabilities of what is drawn.

TEST_P(SampleOnEveryIsa, ProbabilitiesAreThoseOfTheDrawnTokensAndChangeNone) {
  Random random(5);
  int64_t num_none = 0, num_unlikely = 0;
  for (const int64_t n : {1, 3, 64, 1000, 20000}) {
    for (const int kind : {0, 1, 3, 4, 6, 9, 10, 11}) {
      Array logits(DType::kF32, 5, n);
      std::vector<SampleRow> rows;
      for (int64_t t = 0; t < 5; ++t) {
        const std::vector<float> row = logits_of_kind(kind, n, random);
        for (int64_t v = 0; v < n; ++v) logits.set(t, v, row[v]);
        const float temperature = std::array{0.0f, 0.7f, 1.0f, 8.0f, 1e4f}[t];
        rows.push_back({.temperature = temperature, .top_k = t == 1 ? 40 : 0, .seed = 3, .pos = t});
      }
      for (auto& ops : backends()) {
        std::vector<int32_t> alone(5, -7), tokens(5, -7);
        std::vector<float> found(5, -1.0f);
        ops->sample(alone, logits.view(), rows);
        ops->sample(tokens, logits.view(), rows, found);
        EXPECT_EQ(tokens, alone);
        ScopedFlushDenormals flush;
        for (int64_t t = 0; t < 5; ++t) {
          const float expected =
              tokens[t] < 0 ? 0.0f : token_probability(logits.view().row<float>(t), n, tokens[t]);
          EXPECT_EQ(found[t], expected) << n << " logits of kind " << kind << ", row " << t;
          num_none += tokens[t] < 0;
          num_unlikely += tokens[t] >= 0 && expected < 0.5f;
        }
      }
    }
  }
  EXPECT_GT(num_none, 10);
  EXPECT_GT(num_unlikely, 10);
}

TEST(SampleReference, ProbabilitiesAreTheSoftmax) {
  Random random(6);
  auto ops = make_reference_ops();
  for (const float scale : {0.1f, 3.0f, 30.0f}) {
    std::vector<float> logits(1000);
    for (float& x : logits) x = scale * random.normal();
    View view(logits.data(), DType::kF32, {200, 1000});
    view.row_stride = 0;
    std::vector<SampleRow> rows;
    for (int64_t i = 0; i < 200; ++i) rows.push_back({.temperature = 1000 * scale, .seed = 1, .pos = i});
    std::vector<int32_t> tokens(200);
    std::vector<float> found(200, -1.0f);
    ops->sample(tokens, view, rows, found);
    EXPECT_GT(std::set<int32_t>(tokens.begin(), tokens.end()).size(), 150u);
    double largest = -INFINITY, sum = 0;
    for (const float x : logits) largest = std::max(largest, double{x});
    for (const float x : logits) sum += std::exp(x - largest);
    for (size_t i = 0; i < 200; ++i) {
      const double expected = std::exp(logits[static_cast<size_t>(tokens[i])] - largest) / sum;
      EXPECT_NEAR(found[i], expected, 1e-6 * expected + 1e-12);
    }
  }
}

}  // namespace
}  // namespace tensorfold::test
