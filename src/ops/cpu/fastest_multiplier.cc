// See fastest_multiplier.h.
#include "ops/cpu/fastest_multiplier.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <vector>

#include "base/fp_env.h"
#include "ops/cpu/linear_kernels.h"
#include "ops/linear_layout.h"

namespace tensorfold::cpu {
namespace {

/// A panel that is typical of what people serve, small enough for L1 and L2.
constexpr LinearSpec kTypical{.out = kPanelOutputs,
                              .in = 512,
                              .format = WeightFormat::kAffine,
                              .dtype = DType::kBF16,
                              .bits = 4,
                              .group_size = 64};
constexpr int kRounds = 25;

struct alignas(64) Line {
  std::byte bytes[64];
};

std::vector<Line> zeros(int64_t num_bytes) {
  return std::vector<Line>(static_cast<size_t>(num_bytes / 64 + 1));
}

/// Nanoseconds that the kernels take for a row, the least of some runs: others only lengthen a run.
double ns_per_row(const LinearKernels& kernels) {
  using Clock = std::chrono::steady_clock;
  const RowsKernel& kernel = kernels.many_rows;
  const LinearLayout layout(kTypical);
  const int64_t row_bytes = layout.padded_columns * dtype_bytes(kernels.x_dtype);
  const int64_t num_groups = kTypical.in / kTypical.group_size;
  const std::vector<Line> panel = zeros(layout.panel_bytes), x = zeros(kernel.max_rows * row_bytes);
  const std::vector<float> group_sums(static_cast<size_t>(kernel.max_rows * num_groups));
  alignas(64) float sums[kMaxKernelRows * kPanelOutputs];
  const PanelArgs args{.panel = panel.front().bytes,
                       .prefetch_end = panel.front().bytes + layout.panel_bytes,
                       .shape = {.columns = layout.padded_columns,
                                 .segment_columns = layout.segment_columns,
                                 .group_columns = kTypical.group_size,
                                 .chunk_bytes = layout.chunk_bytes,
                                 .scale_dtype = kTypical.dtype},
                       .x = x.front().bytes,
                       .x_stride_bytes = row_bytes,
                       .group_sums = group_sums.data(),
                       .group_sums_stride = num_groups,
                       .sums = sums,
                       .num_rows = kernel.max_rows};
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    const Clock::time_point start = Clock::now();
    kernel.panel(args);
    best = std::min(best, std::chrono::duration<double, std::nano>(Clock::now() - start).count());
  }
  return best / kernel.max_rows;
}

}  // namespace

CpuIsa fastest_multiplier(CpuIsa isa) {
  if (isa != CpuIsa::kAvx512Bf16) return isa;
  const ScopedFlushDenormals flush;
  const double bf16_ns = ns_per_row(linear_kernels(isa, kTypical, DType::kBF16));
  const double f32_ns = ns_per_row(linear_kernels(CpuIsa::kAvx512, kTypical, DType::kBF16));
  // Rows of bf16 are half as long, which shows outside this loop: only a clear advantage counts.
  return f32_ns < 0.9 * bf16_ns ? CpuIsa::kAvx512 : isa;
}

}  // namespace tensorfold::cpu
