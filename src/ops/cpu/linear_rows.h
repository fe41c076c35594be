// The activations of a linear() dispatch as the kernels want them: in the kernels' dtype, whole steps long,
// with group sums. Made once per dispatch and shared by all outputs and calls.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/cpu_context.h"
#include "ops/cpu/linear_kernels.h"

namespace tensorfold::cpu {

/// Group sums of all rows.
struct RowSums {
  int64_t num_groups = 0;
  const float* sums = nullptr;  ///< [T][num_groups]
};

/// Rows of one dtype.
struct PreparedRows {
  DType dtype = DType::kF32;
  const std::byte* x = nullptr;
  int64_t stride_bytes = 0;
};

/// Prepares rows on demand and remembers them. Memory is of the workspace frame that is open when prepare is
/// called.
class LinearRows {
 public:
  LinearRows(CpuContext& cpu, View x) : cpu_(cpu), x_(x) {}

  /// The rows in `dtype`: bf16 only if x is; f32 always.
  const PreparedRows& rows(DType dtype);
  /// Sums of the groups of those rows.
  const RowSums& sums(DType dtype, GroupSumsKernel kernel, int64_t group_columns);

 private:
  PreparedRows copy(DType dtype);

  CpuContext& cpu_;
  View x_;
  PreparedRows rows_[2];  ///< bf16, f32; x == nullptr: not made yet.
  RowSums sums_[6];       ///< By dtype and group of 32, 64 or 128 columns.
};

}  // namespace tensorfold::cpu
