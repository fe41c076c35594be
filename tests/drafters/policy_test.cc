// The policy's parts one by one, and on simulated text: what it gains where guesses are right, and what it
// loses where none are.
#include "drafters/policy.h"

#include <gtest/gtest.h>

#include "base/hash.h"

namespace tensorfold {
namespace {

TEST(PassCosts, AreMeasuredAndInBetweenInterpolated) {
  PassCosts costs;
  EXPECT_EQ(costs.estimate(3), 0);
  costs.add(1, 10);
  EXPECT_EQ(costs.estimate(1), 10);
  EXPECT_GT(costs.estimate(2), 10);
  costs.add(5, 18);
  EXPECT_DOUBLE_EQ(costs.estimate(3), 14);
  EXPECT_DOUBLE_EQ(costs.estimate(7), 22);
  costs.add(5, 100);  // an outlier
  EXPECT_LT(costs.estimate(5), 20);
  for (int i = 0; i < 50; ++i) costs.add(5, 30);
  EXPECT_NEAR(costs.estimate(5), 30, 1);
  for (int i = 0; i < 50; ++i) costs.add(8, 20);  // then five rows cannot take longer
  EXPECT_LE(costs.estimate(5), 20);
}

TEST(PassCosts, ForgetSizesThatAreNoLongerSeen) {
  PassCosts costs;
  costs.add(1, 10);
  costs.add(6, 1000);
  for (int i = 0; i < 2000; ++i) costs.add(1, 10);
  EXPECT_LT(costs.estimate(6), 50);
}

TEST(Acceptance, FollowsWhatHappenedAndFadesToTheAssumption) {
  Acceptance acceptance;
  const double assumed = acceptance.probability(0);
  EXPECT_GT(acceptance.probability(3), assumed);
  for (int i = 0; i < 80; ++i) acceptance.add(0, true);
  EXPECT_GT(acceptance.probability(0), 0.9);
  for (int i = 0; i < 200; ++i) acceptance.add(0, false);
  EXPECT_LT(acceptance.probability(0), 0.05);
  for (int i = 0; i < 1000; ++i) acceptance.fade(0);
  EXPECT_NEAR(acceptance.probability(0), assumed, 0.01);
  for (int i = 0; i < 1500; ++i) acceptance.add(1, i % 3 != 0);
  EXPECT_NEAR(acceptance.probability(1), 2.0 / 3, 0.05);
}

PassCosts linear_costs(double first, double per_row) {
  PassCosts costs;
  for (int64_t n = 1; n <= 40; ++n) costs.add(n, first + per_row * static_cast<double>(n));
  return costs;
}

/// Gains of a chain of guesses that are right with this probability each.
std::vector<double> chain(double probability, int64_t size) {
  std::vector<double> gains;
  for (double gain = probability; std::ssize(gains) < size; gain *= probability) gains.push_back(gain);
  return gains;
}

TEST(ChooseDrafts, TakesWhatPaysAndNoMore) {
  const PassCosts costs = linear_costs(8, 2);  // one row 10 ms, each more 2 ms
  const auto chosen = [&](double probability, int64_t available, int64_t max_rows) {
    const std::vector<double> gains = chain(probability, available);
    DraftChoice choice{.gains = gains};
    choose_drafts(costs, 1, 1, max_rows, {&choice, 1});
    return choice.chosen;
  };
  EXPECT_EQ(chosen(0.1, 8, 40), 0);
  EXPECT_EQ(chosen(1.0, 8, 40), 8);
  EXPECT_EQ(chosen(1.0, 8, 3), 3);
  EXPECT_EQ(chosen(1.0, 0, 40), 0);
  // (1 + 0.5 + 0.25) / 14 is less than (1 + 0.5) / 12.
  EXPECT_EQ(chosen(0.5, 8, 40), 1 + ((1 + 0.5 + 0.25) / 14 > 1.5 / 12));
  EXPECT_GT(chosen(0.8, 8, 40), 1);
  EXPECT_LT(chosen(0.8, 8, 40), 8);
}

TEST(ChooseDrafts, GivesRowsToTheLikeliestGuesses) {
  const PassCosts costs = linear_costs(8, 1);
  const std::vector<double> unlikely = chain(0.3, 8), likely = chain(0.95, 8);
  std::vector<DraftChoice> choices = {{.gains = unlikely}, {.gains = likely}};
  choose_drafts(costs, 2, 2, 6, choices);
  EXPECT_EQ(choices[0].chosen, 0);
  EXPECT_GE(choices[1].chosen, 4);
}

TEST(ChooseDrafts, WaitsForASerialPass) {
  const std::vector<double> gains = chain(1, 8);
  DraftChoice choice{.gains = gains};
  choose_drafts(PassCosts(), 1, 1, 8, {&choice, 1});
  EXPECT_EQ(choice.chosen, 0);
}

// Two guesses for each of two places: the second chain begins with the known row again.
TEST(ChooseDrafts, CountsTheRowsThatBranchesRepeat) {
  const std::vector<double> gains = {0.5, 0.4, 0.4, 0.35};
  const std::vector<int32_t> rows = {1, 1, 2, 1}, one_each = {1, 1, 1, 1};
  const auto chosen = [&](double per_row, std::span<const int32_t> added, int64_t max_rows) {
    DraftChoice choice{.gains = gains, .rows = added};
    choose_drafts(linear_costs(10, per_row), 1, 1, max_rows, {&choice, 1});
    return choice.chosen;
  };
  // Of 1, 1.5, 1.9, 2.3 and 2.65 tokens in 13, 16, 19, 25 and 28 ms the third is best, and with a row each
  // (22 and 25 ms) the last.
  EXPECT_EQ(chosen(3, one_each, 40), 4);
  EXPECT_EQ(chosen(3, rows, 40), 2);
  EXPECT_EQ(chosen(0.1, rows, 40), 4) << "rows cost little";
  EXPECT_EQ(chosen(0.1, rows, 5), 4);
  EXPECT_EQ(chosen(0.1, rows, 4), 3);
  EXPECT_EQ(chosen(0.1, rows, 3), 2) << "the third guess takes two";
  // What one has no room for may fit another.
  const std::vector<double> other = {0.1};
  std::vector<DraftChoice> choices = {{.gains = gains, .rows = rows}, {.gains = other}};
  choose_drafts(linear_costs(10, 0.001), 2, 2, 3, choices);
  EXPECT_EQ(choices[0].chosen, 2);
  EXPECT_EQ(choices[1].chosen, 1);
}

// Guesses of one sequence are taken in their order, however their gains lie: a later one may follow an
// earlier.
TEST(ChooseDrafts, TakesADraftFromItsBeginning) {
  const PassCosts costs = linear_costs(8, 1);
  const std::vector<double> gains = {0.1, 0.9, 0.9};
  DraftChoice choice{.gains = gains};
  choose_drafts(costs, 1, 1, 8, {&choice, 1});
  EXPECT_EQ(choice.chosen, 3);
}

TEST(ChooseDepth, WeighsTheDrafterAgainstThePass) {
  const PassCosts passes = linear_costs(9, 0.1);  // rows cost little
  const auto depth = [&](double turn_ms, std::vector<double> chances, int64_t max_tokens = 8) {
    return choose_depth({.passes = passes,
                         .turns = linear_costs(0.1, turn_ms),
                         .base_rows = 1,
                         .num_sequences = 1,
                         .max_tokens = max_tokens,
                         .max_rows = 64,
                         .chances = chances});
  };
  EXPECT_EQ(depth(0.1, {0.99}), 8);
  EXPECT_EQ(depth(0.1, {0.99}, 3), 3);
  EXPECT_EQ(depth(9, {0.5}), 0) << "a guess takes as long as a pass";
  EXPECT_EQ(depth(0.1, {}), 0);
  EXPECT_EQ(depth(0.1, std::vector<double>(20, 0.99)), 3) << "20 sequences of 64 rows";
  const int64_t some = depth(1, {0.7});
  EXPECT_GE(some, 1);
  EXPECT_LT(some, 8);
  EXPECT_LE(depth(2, {0.7}), some);
  EXPECT_GE(depth(1, {0.9}), some);
}

TEST(ChooseDepth, WeighsWhatComesAnyway) {
  const PassCosts passes = linear_costs(9, 0.1), turns = linear_costs(0, 6);
  const std::vector<double> likely = {0.7};
  DepthQuery query{
      .passes = passes, .turns = turns, .base_rows = 1, .num_sequences = 1, .max_tokens = 8, .max_rows = 64};
  query.chances = likely;
  EXPECT_EQ(choose_depth(query), 0) << "1.7 tokens in 21 ms are no gain over one in 9";
  query.idle_ms = 30;
  EXPECT_GT(choose_depth(query), 0) << "a turn without guesses would take most of it";
  query.found_tokens = 3;
  query.found_rows = 4;
  EXPECT_EQ(choose_depth(query), 0) << "those that were found are better";
}

TEST(ChooseDepth, WaitsForASerialPassAndGoesTwiceAsDeepAsWasMeasured) {
  PassCosts turns;
  DepthQuery query{
      .passes = turns, .turns = turns, .base_rows = 1, .num_sequences = 1, .max_tokens = 8, .max_rows = 64};
  const std::vector<double> sure = {0.99};
  query.chances = sure;
  EXPECT_EQ(choose_depth(query), 0);
  const PassCosts passes = linear_costs(9, 0.1);
  const auto after = [&](std::vector<int64_t> depths) {
    PassCosts measured;
    for (const int64_t d : depths) measured.add(1 + d, 0.1 * static_cast<double>(1 + d));
    return choose_depth({.passes = passes,
                         .turns = measured,
                         .base_rows = 1,
                         .num_sequences = 1,
                         .max_tokens = 8,
                         .max_rows = 64,
                         .chances = sure});
  };
  EXPECT_EQ(after({}), 1);
  EXPECT_EQ(after({0}), 1);
  EXPECT_EQ(after({0, 1}), 3);
  EXPECT_EQ(after({0, 1, 3}), 7);
  EXPECT_EQ(after({0, 1, 3, 7}), 8);
}

/// Tokens per serial millisecond of a reply whose guesses are right with these probabilities, one for each of
/// the four highest evidences.
double simulated_speed(const std::array<double, 4>& truth, double per_row, int64_t num_tokens) {
  PassCosts costs;
  Acceptance acceptance;
  DraftLoss loss;
  const double serial_ms = 10;
  double total_ms = 0;
  int64_t done = 0;
  for (uint64_t pass = 0; done < num_tokens; ++pass) {
    const uint64_t word = mix64(pass + 77);
    const int evidence = 2 + static_cast<int>(word % 4);
    const std::vector<double> gains = chain(acceptance.probability(evidence), 8);
    DraftChoice choice{.gains = gains};
    if (loss.allows(costs.estimate(1))) choose_drafts(costs, 1, 1, 8, {&choice, 1});
    int64_t right = 0;
    while (right < choice.chosen && static_cast<double>(mix64(word + 1 + right) >> 11) * 0x1p-53 <
                                        truth[static_cast<size_t>(evidence - 2)])
      ++right;
    const double noise = 1 + 0.05 * static_cast<double>(mix64(word + 99) >> 11) * 0x1p-53;
    const double ms = (serial_ms + per_row * static_cast<double>(choice.chosen)) * noise;
    costs.add(1 + choice.chosen, ms);
    if (choice.chosen > 0) {
      for (int64_t i = 0; i < std::min(choice.chosen, right + 1); ++i) acceptance.add(evidence, i < right);
    } else {
      acceptance.fade(evidence);
    }
    const double extra = costs.estimate(1 + choice.chosen) - costs.estimate(1);
    loss.add(ms, extra, static_cast<double>(right) * costs.estimate(1));
    total_ms += ms / 1.025;
    done += 1 + right;
  }
  return static_cast<double>(num_tokens) * serial_ms / total_ms;
}

TEST(Policy, NovelTextStaysNearSerialSpeedWhateverRowsCost) {
  for (const double per_row : {0.1, 0.5, 1.5, 4.0, 10.0}) {
    for (const int64_t num_tokens : {100, 400, 4000})
      EXPECT_GT(simulated_speed({0.02, 0.03, 0.05, 0.05}, per_row, num_tokens), 0.97)
          << per_row << " ms a row, " << num_tokens << " tokens";
  }
}

TEST(ChooseCatchUp, StaysInTheBudgetAndGrowsWithWhatIsMeasured) {
  const PassCosts passes = linear_costs(9, 1), none;  // 10 ms a serial pass, so 160 ms at first
  CatchUpBudget budget;
  const auto count = [&](const PassCosts& turns, int64_t num_missing, int64_t num_left = 100'000,
                         int64_t max_rows = 512) {
    return choose_catch_up({.passes = passes,
                            .turns = turns,
                            .budget = budget,
                            .num_missing = num_missing,
                            .max_rows = max_rows,
                            .num_left = num_left,
                            .base_rows = 1});
  };
  PassCosts turns;
  turns.add(16, 3);
  EXPECT_EQ(count(none, 1000), 16);
  EXPECT_EQ(count(none, 7), 7);
  EXPECT_EQ(count(none, 0), 0);
  EXPECT_EQ(count(turns, 20), 20);
  EXPECT_EQ(count(turns, 1000), 64);
  EXPECT_EQ(count(turns, 1000, 100'000, 40), 40);
  EXPECT_EQ(count(turns, 64, 4), 64) << "9.6 ms, of at least 40";
  EXPECT_EQ(count(turns, 64, 3), 0) << "more than a quarter of what may follow";
  EXPECT_EQ(choose_catch_up({.passes = none,
                             .turns = turns,
                             .budget = budget,
                             .num_missing = 20,
                             .max_rows = 512,
                             .num_left = 1000,
                             .base_rows = 1}),
            0)
      << "a serial pass comes first";
  budget.spend(150);
  EXPECT_EQ(count(turns, 64), 64) << "there are 10 ms left";
  EXPECT_EQ(count(turns, 70), 0) << "less than what all of it takes";
  budget.spend(1);
  EXPECT_EQ(count(turns, 64), 0);
  budget.add(100, 0);
  EXPECT_EQ(count(turns, 64), 64) << "1 % of the time";
  budget.spend(1);
  budget.add(0, 2);
  EXPECT_EQ(count(turns, 64), 64) << "half of what was saved";
  budget.add(0, -2);
  EXPECT_EQ(count(turns, 64), 0);
  turns.add(600, 100);
  budget.add(0, 1'000'000);
  EXPECT_EQ(count(turns, 10'000), 512);
  budget.spend(10'100);
  EXPECT_EQ(count(turns, 10'000), 0) << "credit has a limit";
}

/// An engine that serves one request after the other with a draft model, and knows what it measured.
struct SimulatedEngine {
  double turn_ms = 1, turn_row_ms = 0.05;  ///< Of the draft model: of one row, and of each more.
  PassCosts passes = PassCosts(), turns = PassCosts(), catch_ups = PassCosts(2048);
  CatchUpBudget budget = {};
  GuessRate chance = GuessRate(0.7);   ///< Of all requests.
  double serial_ms = 0, total_ms = 0;  ///< Of all replies so far: without drafts, and as it was.

  double ms(int64_t num_rows) const { return turn_ms + turn_row_ms * static_cast<double>(num_rows - 1); }

  /// Tokens per serial millisecond of a reply in a model of 10 ms a pass and 0.4 ms a row more. A guess is
  /// right with this probability.
  double reply(int64_t num_prompt_tokens, int64_t num_tokens, double truth, uint64_t seed) {
    GuessRate own = chance;
    DraftLoss loss;
    int64_t known = num_prompt_tokens + 1, absorbed = 0;
    double reply_ms = 0;
    for (uint64_t pass = 0; known < num_prompt_tokens + num_tokens; ++pass) {
      double computing_ms = 0;
      DraftChoice choice;
      const std::vector<double> chances = {own.probability()};
      const bool is_allowed = loss.allows(passes.estimate(1));
      const int64_t depth = choose_depth({.passes = passes,
                                          .turns = turns,
                                          .base_rows = 1,
                                          .num_sequences = 1,
                                          .max_tokens = 8,
                                          .max_rows = 32,
                                          .chances = std::span(chances).first(is_allowed ? 1 : 0)});
      const auto must_catch_up = [&] {
        const int64_t missing = known - 1 - absorbed;
        return missing > 0 && (absorbed == 0 || missing >= 9);
      };
      if (depth > 0 && must_catch_up()) {
        const int64_t count = choose_catch_up({.passes = passes,
                                               .turns = catch_ups,
                                               .budget = budget,
                                               .num_missing = known - 1 - absorbed,
                                               .max_rows = 512,
                                               .num_left = num_prompt_tokens + num_tokens - known,
                                               .base_rows = 1});
        if (count > 0) {
          catch_ups.add(count, ms(count));
          budget.spend(ms(count));
          reply_ms += ms(count);
          absorbed += count;
        } else {
          catch_ups.skip();
        }
      }
      std::vector<double> gains;
      if (depth > 0 && !must_catch_up()) {
        computing_ms = ms(known - absorbed) + static_cast<double>(depth - 1) * ms(1);
        turns.add(1 + depth, computing_ms);
        absorbed = known;
        gains = chain(own.probability(), depth);
        choice.gains = gains;
        choose_drafts(passes, 1, 1, 32, {&choice, 1});
      } else {
        own.fade();
        chance.fade();
        if (depth == 0 && is_allowed) turns.skip();
      }
      int64_t right = 0;
      const uint64_t word = mix64(seed * 1000 + pass);
      while (right < choice.chosen && static_cast<double>(mix64(word + right) >> 11) * 0x1p-53 < truth)
        ++right;
      for (int64_t i = 0; i < std::min(right + 1, choice.chosen); ++i) {
        own.add(i < right);
        chance.add(i < right);
      }
      const double pass_ms = 10 + 0.4 * static_cast<double>(choice.chosen);
      passes.add(1 + choice.chosen, pass_ms);
      const double extra_ms = passes.estimate(1 + choice.chosen) - passes.estimate(1) + computing_ms;
      const double saved_ms = static_cast<double>(right) * passes.estimate(1);
      loss.add(pass_ms, extra_ms, saved_ms);
      budget.add(pass_ms, saved_ms - extra_ms);
      reply_ms += computing_ms + pass_ms;
      known += 1 + right;
    }
    const auto as_serial_ms = static_cast<double>(known - num_prompt_tokens - 1) * 10;
    serial_ms += as_serial_ms;
    total_ms += reply_ms;
    return as_serial_ms / reply_ms;
  }
};

TEST(Policy, ADraftModelThatIsWrongCostsLittleOverall) {
  for (const double turn_ms : {0.3, 1.0, 3.0, 8.0}) {
    for (const double row_ms : {0.01, 0.1, 1.0}) {
      for (const int64_t num_prompt_tokens : {1, 10, 60, 300, 2000}) {
        for (const int64_t num_tokens : {10, 20, 40, 80, 150, 400}) {
          SimulatedEngine engine{.turn_ms = turn_ms, .turn_row_ms = row_ms};
          for (uint64_t reply = 0; reply < 20; ++reply) {
            engine.reply(num_prompt_tokens, num_tokens, 0.05, reply);
            EXPECT_LT(engine.total_ms, engine.serial_ms / 0.97 + 16 * 10)
                << turn_ms << " ms a pass, " << row_ms << " ms a row, " << num_prompt_tokens << " + "
                << num_tokens << " tokens, reply " << reply;
          }
        }
      }
    }
  }
}

// Rows of 0.2 to 10 % of a pass of the model.
TEST(Policy, ADraftModelThatIsRightIsUsedWhateverItsPromptCosts) {
  for (const double row_ms : {0.02, 0.1, 0.3, 0.8, 1.0}) {
    SimulatedEngine engine{.turn_ms = 1, .turn_row_ms = row_ms};
    double last = 0;
    for (uint64_t reply = 0; reply < 10; ++reply) last = engine.reply(300, 400, 0.9, reply);
    const double prompt_ms = 300 * row_ms;
    EXPECT_GT(last, 0.9 * 4000 / (4000 / 2.2 + prompt_ms)) << row_ms << " ms a row";
  }
  SimulatedEngine engine{.turn_ms = 0.5, .turn_row_ms = 0.02};
  EXPECT_GT(engine.reply(300, 400, 0.9, 1), 2.0) << "the first reply of an engine";
}

TEST(Policy, ADraftModelThatSeemedDearOnceIsTriedAgain) {
  SimulatedEngine engine{.turn_ms = 0.5, .turn_row_ms = 0.02};
  engine.passes.add(1, 10);
  engine.turns.add(2, 200);
  engine.catch_ups.add(16, 200);
  double last = 0;
  for (uint64_t reply = 0; reply < 20; ++reply) last = engine.reply(100, 400, 0.9, reply);
  EXPECT_GT(last, 2.0);
}

TEST(Policy, RightGuessesAreUsed) {
  EXPECT_GT(simulated_speed({0.95, 0.95, 0.98, 0.98}, 1.0, 400), 3.0);
  EXPECT_GT(simulated_speed({0.02, 0.02, 0.02, 0.95}, 1.0, 800), 1.4);
}

}  // namespace
}  // namespace tensorfold
