// The tokens of a row that can be among its k largest, without sorting: what sample and top_tokens of the cpu
// backend start from.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>

#include "ops/cpu/cpu_context.h"
#include "ops/cpu/sample_kernels.h"

namespace tensorfold::cpu {

/// Elements that vector stores may write past a list.
inline constexpr int64_t kListMargin = 16;

/// Lists of one task.
struct CandidateLists {
  float* logits;     ///< [V + kListMargin] canonical.
  int32_t* tokens;   ///< [V + kListMargin] ascending.
  float* block_max;  ///< [V / kMaxBlock + 1], of SampleKernels::scan().

  static CandidateLists take(Workspace& workspace, int64_t vocab_size) {
    const int64_t n = vocab_size + kListMargin;
    return {workspace.take<float>(n), workspace.take<int32_t>(n), workspace.take<float>(n / kMaxBlock + 1)};
  }
};

/// Fills logits and tokens with those of a row, scanned into block_max, that are above -inf and no smaller
/// than a bound of its k-th largest: little more than k of them, k >= 1. The bound is the k-th largest of the
/// blocks' maxima, which leaves block_max in another order. Returns how many.
inline int64_t collect_candidates(const SampleKernels& kernels, const CandidateLists& lists,
                                  const float* logits, int64_t size, int64_t k) {
  const int64_t num_blocks = (size + kMaxBlock - 1) / kMaxBlock;
  float bound = std::numeric_limits<float>::lowest();
  if (k <= num_blocks) {
    std::nth_element(lists.block_max, lists.block_max + k - 1, lists.block_max + num_blocks,
                     std::greater<>());
    bound = std::max(bound, lists.block_max[k - 1]);
  }
  return kernels.collect(logits, size, bound, lists.logits, lists.tokens);
}

}  // namespace tensorfold::cpu
