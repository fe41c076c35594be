// LaunchList on the host: order, equality, and knowing the last launch again.
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

TEST(LaunchList, KnowsTheLastLaunchByItsFunction) {
  LaunchList list;
  EXPECT_EQ((list.last<run_first, First>()), nullptr);
  list.add<run_first>(First{1});
  list.add<run_second>(Second{2.5});
  EXPECT_EQ((list.last<run_first, First>()), nullptr);
  ASSERT_NE((list.last<run_second, Second>()), nullptr);
  EXPECT_EQ((list.last<run_second, Second>()->value), 2.5);
  list.add<run_other_first>(First{3});
  EXPECT_EQ((list.last<run_first, First>()), nullptr);
  list.clear();
  EXPECT_EQ((list.last<run_other_first, First>()), nullptr);
}

TEST(LaunchList, WithoutItsLastLaunchIsWhatItWasBefore) {
  LaunchList list, expected;
  for (LaunchList* each : {&list, &expected}) {
    each->add<run_first>(First{1});
    each->add<run_second>(Second{2});
  }
  list.add<run_first>(First{7});
  EXPECT_FALSE(list == expected);
  list.remove_last();
  EXPECT_TRUE(list == expected);
  EXPECT_EQ(list.hash(), expected.hash());
  EXPECT_EQ((list.last<run_second, Second>()), nullptr);  // Not known any more.
  list.add<run_other_first>(First{4});
  ran.clear();
  list.run(nullptr);
  EXPECT_EQ(ran, (std::vector<double>{1, 2, -4}));
}

}  // namespace
}  // namespace tensorfold::cuda
