// What the sampling tests share.
#pragma once

#include <limits>
#include <utility>

#include "tests/ops/op_test_support.h"

namespace tensorfold::test {

inline constexpr float kInf = std::numeric_limits<float>::infinity();

/// Tokens of `rows`, all of the same logits.
inline std::vector<int32_t> draw(Ops& ops, std::vector<float> logits, const std::vector<SampleRow>& rows) {
  View view(logits.data(), DType::kF32, {static_cast<int64_t>(rows.size()), static_cast<int64_t>(logits.size())});
  view.row_stride = 0;
  std::vector<int32_t> tokens(rows.size(), -7);
  ops.sample(tokens, view, rows);
  return tokens;
}

inline std::vector<float> log_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

}  // namespace tensorfold::test
