// sample() on CUDA draws the tokens of the reference. The kernel's passes are followed on the host, where its
// arithmetic (sample_select.h) runs too; where there is a device, the kernel gets the same rows.
#include "ops/cuda/sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/fp_env.h"
#include "ops/cuda/sample_select.h"
#include "ops/token_probability.h"
#include "tests/ops/cuda/cuda_test_util.h"
#include "tests/ops/sample_test_support.h"

namespace tensorfold::cuda {
namespace {

using test::kInf;
using test::Random;

// Cases.

constexpr int kKinds = 17;

/// Logits that are hard for one step or another.
std::vector<float> logits_of_kind(int kind, int64_t n, Random& random) {
  std::vector<float> x(n);
  for (float& v : x) v = 3.0f * random.normal();
  const auto each = [&](auto&& f) { std::transform(x.begin(), x.end(), x.begin(), f); };
  switch (kind) {
    case 0:
      break;
    case 1:  // Ties.
      each([](float v) { return std::round(2.0f * v) / 2.0f; });
      break;
    case 2:  // All equal.
      each([](float) { return 1.5f; });
      break;
    case 3:  // Peaked.
      each([](float v) { return 8.0f * v; });
      break;
    case 4:  // Mostly excluded.
      each([&](float v) { return random.below(3) == 0 ? v : -kInf; });
      x[n / 2] = 0.0f;
      break;
    case 5:  // Zeros of both signs and denormals.
      each([&](float v) {
        return std::array{0.0f, -0.0f, bits_as<float>(0x80000001u),
                          bits_as<float>(0x007fffffu)}[random.below(4)] +
               (v > 100.0f ? v : 0.0f);
      });
      for (int64_t i = 0; i < n; i += 3) x[i] = bits_as<float>(i % 2 ? 0x80000001u : 0x00400000u);
      break;
    case 6:  // Coarse floats.
      each([](float v) { return 1000.0f + v / 64.0f; });
      break;
    case 7:  // Huge.
      each([](float v) { return -1e30f * (1 + v * v); });
      break;
    case 8:
      x[n - 1] = x[n / 3] = kInf;
      break;
    case 9:
      x[n / 2] = NAN;
      break;
    case 10:
      each([](float) { return -kInf; });
      break;
    case 11:  // Flat.
      each([](float v) { return v / 1000.0f; });
      break;
    case 12:  // One far above the rest.
      x[n - 1 - n / 7] = 90.0f;
      break;
    case 13:  // Two values: the cut is in one of two crowds.
      each([&](float) { return random.below(2) == 0 ? -2.0f : -2.5f; });
      break;
    case 14:  // Ascending, a unit in the last place apart.
      for (int64_t i = 0; i < n; ++i) x[i] = bits_as<float>(0x40a00000u + static_cast<uint32_t>(i));
      break;
    case 15:  // NaN with the sign set, as the last token.
      x[n - 1] = bits_as<float>(0xffc00000u);
      break;
    case 16:  // The largest finite floats of both signs.
      each([](float v) { return v > 0 ? 0x1.fffffep+127f : -0x1.fffffep+127f; });
      break;
  }
  return x;
}

std::string description(int64_t n, int kind, const SampleRow& row) {
  return fmt::format("V {} kind {} T {} top_k {} top_p {} min_p {}", n, kind, row.temperature, row.top_k,
                     row.top_p, row.min_p);
}

std::vector<SampleRow> rows_for(int64_t n, Random& random) {
  std::vector<SampleRow> rows;
  for (const float temperature : {0.0f, 1e-39f, 1e-13f, 0.05f, 0.7f, 1.0f, 8.0f}) {
    for (const int64_t top_k : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{40}, n / 2, n - 1, n + 1}) {
      for (const float top_p : {1.0f, 0.99999994f, 0.9f, 0.5f, 0.1f, 1e-9f, 1e-40f}) {
        const float min_p = std::array{0.0f, 0.0f, 1e-12f, 0.05f, 0.5f, 1.0f}[random.below(6)];
        rows.push_back({.temperature = temperature,
                        .top_k = static_cast<int32_t>(top_k),
                        .top_p = top_p,
                        .min_p = min_p,
                        .seed = random.bits(),
                        .pos = random.below(100000)});
      }
    }
  }
  return rows;
}

/// Rows as requests ask for them, of a large vocabulary.
std::vector<SampleRow> usual_rows(int64_t n, Random& random) {
  std::vector<SampleRow> rows = {{.temperature = 0.0f},
                                 {},
                                 {.temperature = 0.6f, .top_k = 20, .top_p = 0.95f},
                                 {.top_k = 64, .top_p = 0.95f, .min_p = 0.05f},
                                 {.top_p = 0.9f},
                                 {.temperature = 1.5f, .min_p = 0.02f},
                                 {.top_k = static_cast<int32_t>(n / 3), .top_p = 0.999f},
                                 {.top_k = static_cast<int32_t>(n - 1)}};
  for (SampleRow& row : rows) row.seed = random.bits(), row.pos = random.below(1000);
  return rows;
}

/// Calls body(logits, rows, expected tokens, kind) for every case: each row draws from the same logits.
void for_each_case(const std::function<void(const std::vector<float>&, const std::vector<SampleRow>&,
                                            const std::vector<int32_t>&, int)>& body) {
  const auto reference = make_reference_ops();
  Random random(1);
  for (const int64_t n : {1, 2, 3, 5, 8, 31, 257, 1000, 2049}) {
    for (int kind = 0; kind < kKinds; ++kind) {
      const std::vector<float> logits = logits_of_kind(kind, n, random);
      const std::vector<SampleRow> rows = rows_for(n, random);
      body(logits, rows, test::draw(*reference, logits, rows), kind);
    }
  }
  for (const int64_t n : {int64_t{151'936}, int64_t{248'320}, int64_t{kMaxSampleVocab}}) {
    for (const int kind : {0, 1, 2, 11, 13}) {
      if (n == 151'936 && kind > 1) continue;  // The reference sorts each row: a tenth of a second.
      const std::vector<float> logits = logits_of_kind(kind, n, random);
      const std::vector<SampleRow> rows = usual_rows(n, random);
      body(logits, rows, test::draw(*reference, logits, rows), kind);
    }
  }
}

// The kernel, followed on the host.

constexpr int kThreads = 1024, kColumns = 16;

struct Simulation {
  const std::vector<float>& logits;
  SampleRow row;
  int64_t slice = (static_cast<int64_t>(logits.size()) + 31) / 32 * 4;
  int num_passes = 0;      ///< Of select().
  int64_t num_scores = 0;  ///< Exact ones in draw(), beyond one a thread.

  float logit(int64_t token) const { return sampling::canonical(logits[token]); }
  int64_t block_of(int64_t token) const { return token / slice; }
  int64_t thread_of(int64_t token) const { return token % slice / 4 % kThreads; }

  int32_t sample() {
    Ranked top = kNoToken;
    std::vector<Ranked> best(kSampleBlocks * kThreads, kNoToken);  // of each thread
    for (size_t i = 0; i < logits.size(); ++i) {
      const auto token = static_cast<int32_t>(i);
      const float x = logit(token);
      const Ranked ranked{x != x ? kNanRank : sampling::order_key(x), token};
      Ranked& of_thread = best[block_of(token) * kThreads + thread_of(token)];
      of_thread = better_of(of_thread, ranked);
      top = better_of(top, ranked);
    }
    if (is_decided(top, row.temperature, row.top_k)) return decided_token(top);
    Candidates candidates{.least_order = 0,
                          .least_weight = sampling::min_p_weight(row.min_p),
                          .max = logit_of_key(static_cast<uint32_t>(top.rank)),
                          .temperature = row.temperature};
    if (row.top_k > 0 && row.top_k < static_cast<int64_t>(logits.size())) {
      candidates.least_order = select(CountMeasure{static_cast<uint64_t>(row.top_k)}, 0);
    }
    if (row.top_p < 1.0f) {
      candidates.least_order =
          select(WeightMeasure{candidates.max, row.temperature, row.top_p}, candidates.least_order);
    }
    return draw(candidates, top, best);
  }

  template <class Measure>
  uint64_t select(const Measure& measure, uint64_t floor) {
    Selection s;
    for (bool is_first = true; !s.is_done; is_first = false) {
      if (s.shift < 0) {
        ADD_FAILURE() << "a search of more than seven digits";
        return 0;
      }
      ++num_passes;
      const std::vector<uint64_t> sums = sums_of(measure, s, floor);
      uint64_t total = 0, above = 0;
      for (const uint64_t sum : sums) total += sum;
      if (is_first) s.needed = measure.target(total);
      const Selection before = s;
      int found = 0;
      for (int digit = kDigits - 1; digit >= 0; above += sums[digit--]) {
        if (!is_reached_in(before, above, sums[digit])) continue;
        narrow(s, measure, digit, above, sums[digit]);
        ++found;
      }
      if (found != 1) {
        ADD_FAILURE() << found << " digits hold the threshold, expected one";
        return 0;
      }
    }
    return threshold_of(s, floor);
  }

  template <class Measure>
  std::vector<uint64_t> sums_of(const Measure& measure, const Selection& s, uint64_t floor) const {
    static std::vector<uint64_t> low(kSampleBlocks * kDigits * kColumns),
        high(low.size());  // Zero between calls.
    std::vector<size_t> touched;
    std::vector<uint64_t> sums(kDigits);
    for (size_t i = 0; i < logits.size(); ++i) {
      const auto token = static_cast<int32_t>(i);
      const uint32_t key = sampling::order_key(logit(token)), digit = digit_of(s, key, token);
      EXPECT_EQ(digit < kDigits,
                order_of(key, token) >= s.low && order_of(key, token) - s.low < uint64_t{kDigits} << s.shift);
      if (digit >= kDigits || order_of(key, token) < floor) continue;
      const uint64_t amount = measure.of(logit(token));
      const size_t at = (block_of(token) * kDigits + digit) * kColumns + thread_of(token) % kColumns;
      low[at] += low_half(amount);
      high[at] += high_half(amount);
      touched.push_back(at);
    }
    for (const size_t at : touched) {
      EXPECT_TRUE(low[at] >> 32 == 0 && high[at] >> 32 == 0) << "a counter overflows";
      sums[at / kColumns % kDigits] += low[at] + (high[at] << kHalfWeightBits);
      low[at] = high[at] = 0;
    }
    return sums;
  }

  int32_t draw(const Candidates& candidates, const Ranked& top, std::vector<Ranked> best) {
    const uint64_t key = sampling::row_key(row.seed, row.pos);
    const auto consider = [&](int64_t token, Ranked& to) {
      const float x = logit(token);
      if (x == -kInf || !candidates.contains(x, static_cast<int32_t>(token))) return;
      const auto hash = sampling::token_hash(key, static_cast<int32_t>(token));
      to = better_of(to,
                     {rank_of_score(sampling::score(x, row.temperature, hash)), static_cast<int32_t>(token)});
    };
    Ranked result = kNoToken;
    for (int64_t block = 0; block < kSampleBlocks; ++block) {
      best[block * kThreads] = top;
      Ranked of_block = kNoToken;
      for (int64_t thread = 0; thread < kThreads; ++thread) {
        const Ranked& mine = best[block * kThreads + thread];
        if (mine.token != kNoToken.token) consider(mine.token, of_block);
      }
      const DrawFilter filter(candidates, key, score_of_rank(of_block.rank));
      const auto end = std::min<int64_t>((block + 1) * slice, static_cast<int64_t>(logits.size()));
      for (int64_t token = block * slice; token < end; ++token) {
        if (!filter.may_win(logit(token), static_cast<int32_t>(token))) continue;
        ++num_scores;
        consider(token, of_block);
      }
      result = better_of(result, of_block);
    }
    return result.token;
  }
};

TEST(CudaSampleOnTheHost, ThePassesOfTheKernelDrawTheReferencesTokens) {
  ScopedFlushDenormals flush;
  int most_passes = 0;
  for_each_case([&](const std::vector<float>& logits, const std::vector<SampleRow>& rows,
                    const std::vector<int32_t>& expected, int kind) {
    for (size_t i = 0; i < rows.size(); ++i) {
      Simulation simulation{logits, rows[i]};
      ASSERT_EQ(simulation.sample(), expected[i])
          << description(static_cast<int64_t>(logits.size()), kind, rows[i]);
      most_passes = std::max(most_passes, simulation.num_passes);
    }
  });
  // Ties at both cuts: the cases reach the last digit.
  EXPECT_EQ(most_passes, 14);
}

TEST(CudaSampleOnTheHost, AUsualRowTakesFewPassesAndScores) {
  ScopedFlushDenormals flush;
  Random random(3);
  const std::vector<float> logits = logits_of_kind(0, 248'320, random);
  Simulation both{logits, {.temperature = 0.6f, .top_k = 20, .top_p = 0.95f}};
  both.sample();
  EXPECT_LE(both.num_passes, 6);
  EXPECT_LE(both.num_scores, 200);
  Simulation plain{logits, {}};
  plain.sample();
  EXPECT_EQ(plain.num_passes, 0);
  EXPECT_LE(plain.num_scores, 2000);  // Of 248,320, over 8,192 threads.
}

TEST(CudaSampleOnTheHost, OrderIsThatOfLogitsThenTokens) {
  ScopedFlushDenormals flush;
  const std::vector<float> ascending = {-kInf, -3e38f, -1.0f, -1e-37f, 0.0f, 1e-37f, 1.0f, 3e38f, kInf};
  for (size_t i = 0; i < ascending.size(); ++i) {
    const uint32_t key = sampling::order_key(ascending[i]);
    EXPECT_EQ(logit_of_key(key), ascending[i]);
    EXPECT_GT(order_of(key, 5), order_of(key, 6));
    EXPECT_LT(uint64_t{key}, kNanRank);
    if (i == 0) continue;
    EXPECT_GT(order_of(key, kMaxSampleVocab - 1), order_of(sampling::order_key(ascending[i - 1]), 0));
  }
  EXPECT_EQ(sampling::order_key(kInf), kInfinityRank);
  EXPECT_EQ(sampling::order_key(-kInf), kMinusInfinityRank);
  const std::vector<double> scores = {-kInf, -1e300, -1.0, -1e-300, 0.0, 1e-300, 1.0, 1e300, kInf};
  for (size_t i = 0; i < scores.size(); ++i) {
    EXPECT_EQ(score_of_rank(rank_of_score(scores[i])), scores[i]);
    if (i == 0) continue;
    EXPECT_GT(rank_of_score(scores[i]), rank_of_score(scores[i - 1]));
  }
  EXPECT_EQ(rank_of_score(-0.0), rank_of_score(0.0));
}

TEST(CudaSampleOnTheHost, NoWeightOfAHigherKeyIsBelowTheLeast) {
  ScopedFlushDenormals flush;
  Random random(4);
  int64_t num_falls = 0;
  for (int i = 0; i < 3'000'000; ++i) {
    // Half of the tokens close to a maximum of 0: there the argument of exp2_f32 is finest, and it falls
    // itself.
    const bool is_close = random.below(2) == 0;
    const float max = is_close ? 0.0f : 20.0f * random.normal();
    const float temperature = is_close ? 1.0f : static_cast<float>(0.05 + 2.0 * random.uniform());
    const WeightMeasure measure{max, temperature, 0.9f};
    const float x = max - static_cast<float>((is_close ? 0.3 : 30.0) * random.uniform()) * temperature;
    const uint32_t key = sampling::order_key(sampling::canonical(x));
    const float higher = std::min(max, logit_of_key(key + static_cast<uint32_t>(random.below(4))));
    num_falls += measure.of(higher) < measure.of(logit_of_key(key));
    ASSERT_LE(measure.least(key), measure.of(higher))
        << x << " " << higher << " " << max << " " << temperature;
  }
  EXPECT_GT(num_falls, 100);
}

TEST(CudaSampleOnTheHost, TheFilterPassesEveryTokenThatBeatsTheBound) {
  ScopedFlushDenormals flush;
  Random random(5);
  int64_t num_winners = 0, num_passed = 0;
  for (int i = 0; i < 3'000'000; ++i) {
    const float temperature =
        std::array{1e-30f, 1e-16f, 1e-13f, 1e-9f, 0.05f, 0.7f, 1.0f, 30.0f}[random.below(8)];
    const float max = 20.0f * random.normal();
    // Within the reach of the noise, and often equal to the maximum.
    const float below =
        random.below(3) == 0 ? 0.0f : static_cast<float>(10.0 * random.uniform()) * temperature;
    const float x = sampling::canonical(max - below);
    const uint64_t hash = random.bits() | (random.below(2) == 0 ? ~uint64_t{0} << random.below(64) : 0);
    const double bound = sampling::score(max, temperature, random.bits());
    const DrawFilter filter({.least_order = 0, .least_weight = 0, .max = max, .temperature = temperature}, 0,
                            bound);
    const bool passes = filter.may_beat(x, hash);
    num_passed += passes;
    if (sampling::score(x, temperature, hash) < bound) continue;
    ++num_winners;
    ASSERT_TRUE(passes) << x << " " << max << " " << temperature << " " << hash;
  }
  EXPECT_GT(num_winners, 100'000);
  EXPECT_LT(num_passed, 2'900'000);
}

// The kernel.

std::vector<DeviceSampleRow> device_form(const std::vector<SampleRow>& rows) {
  std::vector<DeviceSampleRow> result;
  for (const SampleRow& row : rows) result.push_back(device_sample_row(row));
  return result;
}

/// Tokens of `rows`, row r drawing from logits + r * stride (0: all from the same).
std::vector<int32_t> draw_on_device(const DeviceArray<float>& logits, int64_t shift, int64_t vocab_size,
                                    int64_t stride, const std::vector<SampleRow>& rows) {
  const DeviceArray<DeviceSampleRow> device_rows(device_form(rows));
  const DeviceArray<int32_t> tokens(std::vector<int32_t>(rows.size(), -7));
  View view(logits.data() + shift, DType::kF32, {static_cast<int64_t>(rows.size()), vocab_size});
  view.row_stride = stride;
  launch_sample(nullptr, sample_launch(tokens.data(), view, device_rows.data()));
  cuda_check(cudaGetLastError());
  cuda_check(cudaDeviceSynchronize());
  EXPECT_TRUE(tokens.guards_intact());
  return tokens.download();
}

TEST(CudaSample, EqualsTheReference) {
  if (!have_device()) GTEST_SKIP() << "no CUDA device of compute capability 9";
  int64_t num_rows = 0;
  for_each_case([&](const std::vector<float>& logits, const std::vector<SampleRow>& rows,
                    const std::vector<int32_t>& expected, int kind) {
    const auto n = static_cast<int64_t>(logits.size());
    // On any multiple of four bytes, between NaNs.
    const int64_t shift = kind % 5;
    std::vector<float> padded(logits.size() + 8, NAN);
    std::copy(logits.begin(), logits.end(), padded.begin() + shift);
    const DeviceArray<float> device_logits(padded);
    const std::vector<int32_t> actual = draw_on_device(device_logits, shift, n, 0, rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_EQ(actual[i], expected[i]) << description(n, kind, rows[i]);
      ++num_rows;
    }
  });
  EXPECT_GT(num_rows, 50'000);
}

/// Rows of all kinds, each with logits of its own, `gap` NaNs between them.
struct MixedRows {
  int64_t vocab_size, stride;
  std::vector<float> logits;
  std::vector<SampleRow> rows;

  MixedRows(int64_t n, int64_t gap, uint64_t seed) : vocab_size(n), stride(n + gap) {
    Random random(seed);
    const std::vector<SampleRow> all = rows_for(n, random);
    for (int i = 0; i < 3 * kKinds; ++i) {
      const std::vector<float> x = logits_of_kind(i % kKinds, n, random);
      logits.insert(logits.end(), x.begin(), x.end());
      logits.insert(logits.end(), gap, NAN);
      rows.push_back(all[random.below(static_cast<int64_t>(all.size()))]);
    }
  }
  std::vector<int32_t> expected() const {
    std::vector<int32_t> tokens(rows.size());
    View view(const_cast<float*>(logits.data()), DType::kF32,
              {static_cast<int64_t>(rows.size()), vocab_size});
    view.row_stride = stride;
    make_reference_ops()->sample(tokens, view, rows);
    return tokens;
  }
};

TEST(CudaSample, RowsOfAllKindsShareALaunchAndAreDrawnAsAlone) {
  if (!have_device()) GTEST_SKIP() << "no CUDA device of compute capability 9";
  for (const int64_t gap : {0, 1, 4}) {
    const MixedRows mixed(5003 + gap, gap, 6);
    const DeviceArray<float> logits(mixed.logits);
    const std::vector<int32_t> expected = mixed.expected();
    EXPECT_EQ(draw_on_device(logits, 0, mixed.vocab_size, mixed.stride, mixed.rows), expected);
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto shift = static_cast<int64_t>(i) * mixed.stride;
      EXPECT_EQ(draw_on_device(logits, shift, mixed.vocab_size, 0, {mixed.rows[i]})[0], expected[i]) << i;
    }
    EXPECT_TRUE(logits.guards_intact());
  }
}

TEST(CudaSample, ANaNAtAnyTokenDrawsNothing) {
  if (!have_device()) GTEST_SKIP() << "no CUDA device of compute capability 9";
  Random random(9);
  const std::vector<SampleRow> rows = {
      {.temperature = 0}, {}, {.top_k = 3}, {.top_p = 0.5f}, {.min_p = 0.1f}};
  for (const int64_t n : {1, 5, 5003, 248320}) {
    const int64_t slice = (n + 4 * kSampleBlocks - 1) / (4 * kSampleBlocks) * 4;  // Of a block.
    for (const int64_t place : {int64_t{0}, std::min(slice, n - 1), std::min(slice - 1, n - 1), n - 1}) {
      for (const uint32_t nan : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xffffffffu}) {
        std::vector<float> logits = logits_of_kind(0, n, random);
        logits[(place + 1) % n] = kInf;
        logits[place] = bits_as<float>(nan);
        const DeviceArray<float> on_device(logits);
        EXPECT_EQ(draw_on_device(on_device, 0, n, 0, rows), std::vector<int32_t>(rows.size(), -1))
            << n << " at " << place;
      }
    }
  }
}

TEST(CudaSample, AGraphServesRowsOfOtherKinds) {
  if (!have_device()) GTEST_SKIP() << "no CUDA device of compute capability 9";
  const MixedRows first(4001, 3, 7);
  const auto num_rows = static_cast<int64_t>(first.rows.size());
  const DeviceArray<float> logits(first.logits);
  DeviceArray<DeviceSampleRow> rows(device_form(first.rows));
  const DeviceArray<int32_t> tokens(std::vector<int32_t>(first.rows.size(), -7));
  View view(logits.data(), DType::kF32, {num_rows, first.vocab_size});
  view.row_stride = first.stride;
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cuda_check(cudaStreamCreate(&stream));
  cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  // Twice: the second must wait for the first, whose tokens it overwrites.
  for (int i = 0; i < 2; ++i) launch_sample(stream, sample_launch(tokens.data(), view, rows.data()));
  cuda_check(cudaStreamEndCapture(stream, &graph));
  cuda_check(cudaGraphInstantiate(&executable, graph, 0));
  MixedRows now = first;
  for (int round = 0; round < 4; ++round) {
    std::rotate(now.rows.begin(), now.rows.begin() + 5, now.rows.end());
    rows.upload(device_form(now.rows));
    cuda_check(cudaGraphLaunch(executable, stream));
    cuda_check(cudaStreamSynchronize(stream));
    EXPECT_EQ(tokens.download(), now.expected()) << round;
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST(CudaSample, NoRowsAreNoLaunch) {
  if (!have_device()) GTEST_SKIP() << "no CUDA device of compute capability 9";
  launch_sample(nullptr, sample_launch(nullptr, View(nullptr, DType::kF32, {0, 10}), nullptr));
  cuda_check(cudaGetLastError());
}

TEST(CudaTokenProbabilities, AreThoseOfTheDefinitionButForTheLastBits) {
  if (!have_device()) GTEST_SKIP() << "no CUDA device of compute capability 9";
  Random random(7);
  for (const int64_t n : {int64_t{1}, int64_t{31}, int64_t{1000}, int64_t{248320}}) {
    const int64_t num_rows = 5, stride = n + 3;
    std::vector<float> values(num_rows * stride, 1e30f);  // between rows: not to be read
    for (int64_t t = 0; t < num_rows; ++t)
      for (int64_t v = 0; v < n; ++v) values[t * stride + v] = 4.0f * random.normal();
    const auto last = static_cast<int32_t>(n - 1);
    const std::vector<int32_t> tokens = {0, last, -1, last / 2, last / 3};
    std::vector<float> expected;
    for (int64_t t = 0; t < num_rows; ++t)
      expected.push_back(tokens[t] < 0 ? 0.0f : token_probability(values.data() + t * stride, n, tokens[t]));
    const DeviceArray<float> logits(values), probabilities(std::vector<float>(num_rows, -1.0f));
    const DeviceArray<int32_t> device_tokens(tokens);
    View view(logits.data(), DType::kF32, {num_rows, n});
    view.row_stride = stride;
    launch_token_probabilities(nullptr,
                               token_probabilities_launch(probabilities.data(), view, device_tokens.data()));
    cuda_check(cudaDeviceSynchronize());
    const std::vector<float> found = probabilities.download();
    for (int64_t t = 0; t < num_rows; ++t) EXPECT_NEAR(found[t], expected[t], 1e-4f * expected[t]) << n << " " << t;
    EXPECT_TRUE(probabilities.guards_intact());
  }
}

TEST(CudaSample, ACallGivesTokensAndTheirProbabilities) {
  if (!have_device()) GTEST_SKIP() << "no CUDA device of compute capability 9";
  auto ops = make_cuda_ops({.memory_bytes = int64_t{256} << 20}).value();
  const MixedRows mixed(5003, 4, 8);
  const auto num_rows = static_cast<int64_t>(mixed.rows.size());
  const auto bytes = static_cast<int64_t>(mixed.logits.size() * sizeof(float));
  const Buffer logits = ops->device().allocate(bytes, "logits").value();
  TF_CHECK(ops->device()
               .copy_to_device(logits.data(), reinterpret_cast<const std::byte*>(mixed.logits.data()), bytes)
               .ok());
  View view(logits.data(), DType::kF32, {num_rows, mixed.vocab_size});
  view.row_stride = mixed.stride;
  const std::vector<int32_t> expected = mixed.expected();
  for (int round = 0; round < 3; ++round) {  // The later ones as graphs.
    std::vector<int32_t> tokens(mixed.rows.size(), -7);
    std::vector<float> found(mixed.rows.size(), -7.0f);
    ops->begin_pass({});
    ops->sample(tokens, view, mixed.rows, found);
    ASSERT_TRUE(ops->end_pass().ok());
    EXPECT_EQ(tokens, expected);
    for (size_t i = 0; i < found.size(); ++i) {
      const float* row = mixed.logits.data() + static_cast<int64_t>(i) * mixed.stride;
      const float exact = tokens[i] < 0 ? 0.0f : token_probability(row, mixed.vocab_size, tokens[i]);
      if (std::isnan(exact))
        EXPECT_TRUE(std::isnan(found[i])) << i;  // An infinite logit was drawn.
      else
        EXPECT_NEAR(found[i], exact, 1e-4f * exact + 1e-30f) << i;
    }
  }
}

}  // namespace
}  // namespace tensorfold::cuda
