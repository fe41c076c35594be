// top_tokens of the cpu backend: the few tokens that can be among the k largest, sorted.
#include "ops/cpu/top_tokens.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "ops/cpu/top_candidates.h"

namespace tensorfold::cpu {
namespace {

/// Lists of one task.
struct Lists : CandidateLists {
  int32_t* order;  ///< [V]

  static Lists take(Workspace& workspace, int64_t vocab_size) {
    return {CandidateLists::take(workspace, vocab_size), workspace.take<int32_t>(vocab_size)};
  }
};

/// One row; `tokens` and `values` [k] are as if it had no token.
void find_top(const SampleKernels& kernels, const Lists& lists, std::span<const float> logits,
              std::span<int32_t> tokens, std::span<float> values) {
  const int64_t size = std::ssize(logits), k = std::ssize(tokens);
  LogitScan scan;
  kernels.scan(logits.data(), size, lists.block_max, &scan);
  if (size == 0 || scan.has_nan) return;
  const int64_t count = collect_candidates(kernels, lists, logits.data(), size, k);
  const int64_t num_found = std::min(k, count);
  std::iota(lists.order, lists.order + count, 0);
  // The list is in order of token.
  std::partial_sort(lists.order, lists.order + num_found, lists.order + count, [&](int32_t a, int32_t b) {
    return lists.logits[a] > lists.logits[b] || (lists.logits[a] == lists.logits[b] && a < b);
  });
  for (int64_t i = 0; i < num_found; ++i) {
    tokens[i] = lists.tokens[lists.order[i]];
    values[i] = lists.logits[lists.order[i]];
  }
}

}  // namespace

void top_tokens(CpuContext& cpu, std::span<int32_t> tokens, std::span<float> values, View logits, int64_t k) {
  const SampleKernels kernels = sample_kernels(cpu.isa);
  const int64_t vocab_size = logits.dim(1), num_rows = logits.num_rows();
  std::ranges::fill(tokens, -1);
  std::ranges::fill(values, -std::numeric_limits<float>::infinity());
  const int64_t num_tasks = std::min<int64_t>(num_rows, cpu.pool.num_threads());
  Workspace::Frame frame(cpu.workspace);
  Lists* lists = cpu.workspace.take<Lists>(num_tasks);
  for (int64_t i = 0; i < num_tasks; ++i) lists[i] = Lists::take(cpu.workspace, vocab_size);
  cpu.pool.run(num_tasks, [&](int64_t task) {
    for (int64_t row = task; row < num_rows; row += num_tasks)
      find_top(kernels, lists[task], {logits.row<const float>(row), static_cast<size_t>(vocab_size)},
               tokens.subspan(row * k, k), values.subspan(row * k, k));
  });
}

}  // namespace tensorfold::cpu
