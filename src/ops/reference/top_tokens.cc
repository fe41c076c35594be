// top_tokens by its definition: sort everything.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/fp_env.h"
#include "ops/reference/reference_ops.h"
#include "ops/sampling_math.h"

namespace tensorfold {

void ReferenceOps::top_tokens(std::span<int32_t> tokens, std::span<float> values, View logits, int64_t k) {
  ScopedFlushDenormals flush;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  std::ranges::fill(tokens, -1);
  std::ranges::fill(values, kNone);
  for (int64_t row = 0; row < logits.num_rows(); ++row) {
    const std::span all(logits.row<const float>(row), static_cast<size_t>(logits.dim(1)));
    if (std::ranges::any_of(all, [](float x) { return std::isnan(x); })) continue;
    std::vector<std::pair<float, int32_t>> sorted;
    for (float x : all) sorted.emplace_back(sampling::canonical(x), static_cast<int32_t>(sorted.size()));
    std::ranges::stable_sort(sorted, std::greater<>(), &std::pair<float, int32_t>::first);
    for (int64_t i = 0; i < std::min(k, std::ssize(sorted)) && sorted[i].first > kNone; ++i) {
      values[row * k + i] = sorted[i].first;
      tokens[row * k + i] = sorted[i].second;
    }
  }
}

}  // namespace tensorfold
