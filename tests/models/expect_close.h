// Numbers of a reference implementation, computed in f32 as ours are.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>
#include <string>

namespace tensorfold {

/// Within 1e-4 of the spread of `expected`.
inline void expect_close(std::span<const float> found, std::span<const float> expected,
                         const std::string& name) {
  ASSERT_EQ(found.size(), expected.size()) << name;
  double sum = 0, squares = 0, max = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    sum += expected[i], squares += double{expected[i]} * expected[i];
    const double difference = std::abs(double{found[i]} - double{expected[i]});
    max = std::isnan(difference) ? INFINITY : std::max(max, difference);
  }
  const auto n = static_cast<double>(expected.size());
  const double spread = std::sqrt(squares / n - sum / n * (sum / n));
  std::printf("%s: max %.2e of the spread %.2f\n", name.c_str(), max / spread, spread);
  ASSERT_GT(spread, 0.5) << name;
  EXPECT_LE(max, 1e-4 * spread) << name;
}

}  // namespace tensorfold
