// LaunchList on the host: order and equality.
#include "ops/cuda/launch_list.h"

#include <gtest/gtest.h>

namespace tensorfold::cuda {
namespace {

struct First {
  int value;
};
struct Second {
  double value;
};
std::vector<double> ran;
void run_first(Stream, const First& launch) { ran.push_back(launch.value); }
void run_other_first(Stream, const First& launch) { ran.push_back(-launch.value); }
void run_second(Stream, const Second& launch) { ran.push_back(launch.value); }

TEST(LaunchList, RunsWhatWasAddedInOrder) {
  LaunchList list;
  EXPECT_TRUE(list.empty());
  list.add<run_first>(First{1});
  list.add<run_second>(Second{2.5});
  list.add<run_other_first>(First{4});
  ran.clear();
  list.run(nullptr);
  EXPECT_EQ(ran, (std::vector<double>{1, 2.5, -4}));
  list.clear();
  EXPECT_TRUE(list.empty());
}

TEST(LaunchList, KnowsHowManyThereAreAndTheLastOne) {
  LaunchList list;
  const auto ends_with_first = [&] { return list.ends_with<run_first, First>(); };
  EXPECT_EQ(list.size(), 0);
  EXPECT_FALSE(ends_with_first());
  list.add<run_other_first>(First{1});
  EXPECT_FALSE(ends_with_first());
  list.add<run_first>(First{2});
  EXPECT_TRUE(ends_with_first());
  EXPECT_EQ(list.size(), 2);
  list.add<run_second>(Second{3});
  EXPECT_FALSE(ends_with_first());
  EXPECT_TRUE((list.ends_with<run_second, Second>()));
  list.add<run_first>(First{4});
  list.clear();
  EXPECT_EQ(list.size(), 0);
  EXPECT_FALSE(ends_with_first());
}

TEST(LaunchList, EqualsAnotherByFunctionsAndValues) {
  LaunchList list, same, other_value, other_function;
  list.add<run_first>(First{1});
  same.add<run_first>(First{1});
  other_value.add<run_first>(First{2});
  other_function.add<run_other_first>(First{1});
  EXPECT_TRUE(list == same);
  EXPECT_EQ(list.hash(), same.hash());
  EXPECT_FALSE(list == other_value);
  EXPECT_FALSE(list == other_function);
}

}  // namespace
}  // namespace tensorfold::cuda
