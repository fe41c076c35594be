// The rotary rules against values worked out by hand from specs/llama.md §4.
#include "models/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

namespace tensorfold {
namespace {

using testing::HasSubstr;

constexpr double kTiny = 1e-12;  // relative: a few f64 roundings

Rotary rotary_of(const RopeConfig& config, const RotaryGeometry& geometry) {
  Result<Rotary> rotary = make_rotary(config, geometry);
  EXPECT_TRUE(rotary.ok()) << rotary.status().message();
  return rotary.ok() ? *rotary : Rotary{std::vector<double>(geometry.head_dim / 2), 0.0};
}

double base(double theta, int64_t width, int64_t j) { return std::pow(theta, -2.0 * j / width); }

TEST(Rope, DefaultFrequenciesArePowersOfTheta) {
  const Rotary rotary = rotary_of({.theta = 100000.0}, {64, 8192, 8192});
  ASSERT_EQ(rotary.num_pairs(), 32);
  EXPECT_EQ(rotary.inv_freq[0], 1.0);
  for (int j = 0; j < 32; ++j) EXPECT_NEAR(rotary.inv_freq[j] / base(1e5, 64, j), 1.0, kTiny) << j;
  EXPECT_EQ(rotary.multiplier, 1.0);
}

TEST(Rope, PartialFactorNarrowsTheRotaryWidth) {
  const Rotary rotary = rotary_of({.theta = 1e7, .partial_rotary_factor = 0.25}, {256, 8192, 8192});
  ASSERT_EQ(rotary.num_pairs(), 32);
  EXPECT_NEAR(rotary.inv_freq[5] / base(1e7, 64, 5), 1.0, kTiny);
}

TEST(Rope, LinearDividesEveryFrequency) {
  const Rotary rotary = rotary_of({.kind = RopeKind::kLinear, .factor = 2.5}, {32, 4096, 4096});
  for (int j = 0; j < 16; ++j) EXPECT_NEAR(rotary.inv_freq[j] * 2.5 / base(1e4, 32, j), 1.0, kTiny) << j;
}

TEST(Rope, DynamicTakesTheContextAsItsLength) {
  const RopeConfig config = {.kind = RopeKind::kDynamic, .factor = 2.0};
  const Rotary plain = rotary_of(config, {32, 4096, 1000});
  const Rotary stretched = rotary_of(config, {32, 4096, 8192});
  const double theta = 10000.0 * std::pow(2.0 * 2.0 - 1.0, 32.0 / 30.0);
  for (int j = 0; j < 16; ++j) {
    EXPECT_NEAR(plain.inv_freq[j] / base(1e4, 32, j), 1.0, kTiny) << j;
    EXPECT_NEAR(stretched.inv_freq[j] / base(theta, 32, j), 1.0, kTiny) << j;
  }
}

TEST(Rope, Llama3BlendsBetweenKeptAndDivided) {
  const RopeConfig config = {
      .kind = RopeKind::kLlama3, .theta = 5e5, .factor = 8.0, .original_max_position_embeddings = 8192};
  const Rotary rotary = rotary_of(config, {128, 131072, 131072});
  const double blended[] = {0.82817, 0.64374, 0.49351, 0.37112, 0.27143, 0.19021};
  for (int j = 0; j < 64; ++j) {
    const double ratio = rotary.inv_freq[j] / base(5e5, 128, j);
    const bool is_blended = j >= 29 && j <= 34;
    EXPECT_NEAR(ratio, is_blended ? blended[j - 29] : j < 29 ? 1.0 : 0.125, is_blended ? 5e-6 : kTiny) << j;
  }
}

/// Share of interpolation at pair j: 0 kept, 1 divided by the factor.
double yarn_ramp(const Rotary& rotary, const RopeConfig& config, int64_t width, int j) {
  const double ratio = rotary.inv_freq[j] / base(config.theta, width, j);
  return (1.0 - ratio) / (1.0 - 1.0 / config.factor);
}

TEST(Rope, YarnRampRunsBetweenItsRoundedBorders) {
  const RopeConfig config = {
      .kind = RopeKind::kYarn, .theta = 1e6, .factor = 4.0, .original_max_position_embeddings = 32768};
  const Rotary rotary = rotary_of(config, {128, 131072, 131072});
  for (int j = 0; j < 64; ++j) {
    const double expected = j <= 23 ? 0.0 : j >= 40 ? 1.0 : (j - 23) / 17.0;
    EXPECT_NEAR(yarn_ramp(rotary, config, 128, j), expected, 1e-10) << j;
  }
  EXPECT_NEAR(rotary.multiplier, 1.138629, 5e-7);
}

TEST(Rope, YarnWithoutTruncationKeepsFractionalBorders) {
  RopeConfig config = {.kind = RopeKind::kYarn,
                       .theta = 1e7,
                       .factor = 4.0,
                       .original_max_position_embeddings = 262144,
                       .truncate = false};
  const double low = 64 * std::log(262144 / (32 * 2 * M_PI)) / (2 * std::log(1e7));
  const double high = 64 * std::log(262144 / (2 * M_PI)) / (2 * std::log(1e7));
  ASSERT_EQ(std::floor(low), 14);
  ASSERT_EQ(std::ceil(high), 22);
  const Rotary rotary = rotary_of(config, {64, 1048576, 1048576});
  EXPECT_NEAR(yarn_ramp(rotary, config, 64, 18), (18 - low) / (high - low), 1e-10);
  config.truncate = true;
  EXPECT_NEAR(yarn_ramp(rotary_of(config, {64, 1048576, 1048576}), config, 64, 18), (18 - 14) / 8.0, 1e-10);
}

/// Frequencies of transformers 5.17 (fp32): the published GPT-OSS, and borders of the ramp that leave the
/// range of pairs or meet.
TEST(Rope, YarnBordersAreHeldAsInTheReference) {
  struct Case {
    int64_t width;
    double theta, factor;
    int64_t original;
    bool truncate;
    std::vector<std::pair<int, double>> inv_freq;
  };
  const Case cases[] = {
      {64,
       150000.0,
       32.0,
       4096,
       false,
       {{0, 1.0},
        {8, 0.05081327259540558},
        {9, 0.031705696135759354},
        {17, 0.00012931869423482567},
        {18, 3.830881178146228e-05},
        {31, 3.023511396804679e-07}}},
      // The lower border would be -0.3.
      {16, 150000.0, 4.0, 128, false, {{0, 1.0}, {1, 0.1418553590774536}, {2, 0.013140225782990456}}},
      {16, 150000.0, 4.0, 128, true, {{1, 0.1690634936094284}, {2, 0.02540663629770279}}},
      // Both borders below 0: the lower one is held to 0, the upper one is not, and nothing is divided.
      {16, 150000.0, 4.0, 6, false, {{0, 1.0}, {1, 0.22541800141334534}, {7, 2.957468677777797e-05}}},
      // They meet in 0.
      {16, 150000.0, 4.0, 6, true, {{0, 1.0}, {1, 0.056354500353336334}, {7, 7.3936716944444925e-06}}},
      // Both above the last pair: the upper one is held to it, so that every pair lies beyond.
      {8, 1.5, 4.0, 100000, false, {{0, 0.25}, {1, 0.22590050101280212}, {3, 0.18444699048995972}}},
  };
  for (const Case& c : cases) {
    const Rotary rotary = rotary_of({.kind = RopeKind::kYarn,
                                     .theta = c.theta,
                                     .factor = c.factor,
                                     .original_max_position_embeddings = c.original,
                                     .truncate = c.truncate},
                                    {c.width, 131072, 131072});
    for (const auto& [j, expected] : c.inv_freq)
      EXPECT_NEAR(rotary.inv_freq[j] / expected, 1.0, 1e-6) << c.original << " " << c.truncate << " " << j;
  }
}

TEST(Rope, YarnMultiplierFollowsItsKeysInOrder) {
  RopeConfig config = {
      .kind = RopeKind::kYarn, .theta = 1e4, .factor = 40.0, .original_max_position_embeddings = 4096};
  const RotaryGeometry geometry = {64, 163840, 163840};
  EXPECT_NEAR(rotary_of(config, geometry).multiplier, 0.1 * std::log(40.0) + 1.0, kTiny);
  config.mscale = 0.707;
  EXPECT_NEAR(rotary_of(config, geometry).multiplier, 0.1 * std::log(40.0) + 1.0, kTiny)
      << "mscale alone says nothing";
  config.mscale_all_dim = 1.0;
  EXPECT_NEAR(rotary_of(config, geometry).multiplier,
              (0.0707 * std::log(40.0) + 1.0) / (0.1 * std::log(40.0) + 1.0), kTiny);
  config.attention_factor = 0.5;
  EXPECT_EQ(rotary_of(config, geometry).multiplier, 0.5);
  config.attention_factor.reset();
  config.mscale.reset();
  config.factor = 0.5;
  EXPECT_EQ(rotary_of(config, geometry).multiplier, 1.0);
}

TEST(Rope, YarnWithoutOriginalLengthTakesTheModels) {
  RopeConfig config = {.kind = RopeKind::kYarn, .theta = 1e4, .factor = 4.0};
  const Rotary rotary = rotary_of(config, {128, 32768, 32768});
  config.original_max_position_embeddings = 32768;
  EXPECT_EQ(rotary.inv_freq, rotary_of(config, {128, 32768, 32768}).inv_freq);
}

TEST(Rope, LongRopeChoosesItsFactorsByTheContext) {
  const RopeConfig config = {.kind = RopeKind::kLongRope,
                             .factor = 0.0,
                             .original_max_position_embeddings = 4096,
                             .short_factor = {1.0, 1.5},
                             .long_factor = {2.0, 8.0}};
  const Rotary short_rotary = rotary_of(config, {4, 131072, 4096});
  const Rotary long_rotary = rotary_of(config, {4, 131072, 4097});
  EXPECT_NEAR(short_rotary.inv_freq[1], 0.01 / 1.5, kTiny);
  EXPECT_NEAR(long_rotary.inv_freq[0], 0.5, kTiny);
  EXPECT_NEAR(long_rotary.inv_freq[1], 0.01 / 8.0, kTiny);
  const double multiplier = std::sqrt(1.0 + std::log(32.0) / std::log(4096.0));
  EXPECT_NEAR(short_rotary.multiplier, multiplier, kTiny);
  EXPECT_NEAR(long_rotary.multiplier, multiplier, kTiny);
}

TEST(Rope, LongRopeMultiplierFollowsFactorAndAttentionFactor) {
  RopeConfig config = {.kind = RopeKind::kLongRope,
                       .factor = 16.0,
                       .original_max_position_embeddings = 4096,
                       .short_factor = {1.0, 1.5},
                       .long_factor = {2.0, 8.0}};
  EXPECT_NEAR(rotary_of(config, {4, 131072, 4096}).multiplier,
              std::sqrt(1.0 + std::log(16.0) / std::log(4096.0)), kTiny);
  config.factor = 1.0;
  EXPECT_EQ(rotary_of(config, {4, 131072, 4096}).multiplier, 1.0);
  config.attention_factor = 1.25;
  EXPECT_EQ(rotary_of(config, {4, 131072, 4096}).multiplier, 1.25);
}

TEST(Rope, WhatDoesNotFitIsRefusedByName) {
  const auto message = [](const RopeConfig& config, const RotaryGeometry& geometry) {
    const Result<Rotary> rotary = make_rotary(config, geometry);
    return rotary.ok() ? std::string("accepted") : rotary.status().message();
  };
  EXPECT_THAT(message({.partial_rotary_factor = 0.3}, {10, 64, 64}), HasSubstr("rotary width 3"));
  EXPECT_THAT(message({.theta = 1.0}, {8, 64, 64}), HasSubstr("rope_theta 1"));
  EXPECT_THAT(message({.kind = RopeKind::kDynamic}, {2, 64, 64}), HasSubstr("dynamic"));
  RopeConfig longrope = {.kind = RopeKind::kLongRope, .short_factor = {1.0}, .long_factor = {1.0, 0.0}};
  longrope.original_max_position_embeddings = 64;
  EXPECT_THAT(message(longrope, {4, 64, 64}), HasSubstr("short_factor has 1 numbers, expected 2"));
  EXPECT_THAT(message(longrope, {4, 128, 128}), HasSubstr("long_factor has 0, expected positive"));
}

}  // namespace
}  // namespace tensorfold
