// Rows and group sums for linear()'s kernels (linear_rows.h).
#include "ops/cpu/linear_rows.h"

#include <algorithm>
#include <cstring>

#include "base/bf16.h"
#include "ops/cpu/split.h"

namespace tensorfold::cpu {
namespace {

/// Rows that lie a multiple of this apart compete for the same sets of the L1 cache, and a kernel reads eight
/// at once.
constexpr int64_t kBadStrideBytes = 1024;

/// Bytes between copied rows: whole lines, and an odd number of them.
int64_t copy_stride_bytes(int64_t row_bytes) { return (row_bytes + 63) / 64 * 64 / 128 * 128 + 64 + 128; }

void copy_row(std::byte* out, DType dtype, const View& x, int64_t t) {
  const int64_t n = x.dim(1);
  if (dtype == x.dtype) {
    const int64_t bytes = n * dtype_bytes(dtype);
    std::memcpy(out, x.data + t * x.row_stride * dtype_bytes(dtype), static_cast<size_t>(bytes));
    std::memset(out + bytes, 0,
                static_cast<size_t>(dtype_bytes(dtype)));  // the other half of an odd row's last step
    return;
  }
  auto* wide = reinterpret_cast<float*>(out);
  const bf16* row = x.row<bf16>(t);
  for (int64_t k = 0; k < n; ++k) wide[k] = to_float(row[k]);
  wide[n] = 0.0f;
}

}  // namespace

PreparedRows LinearRows::copy(DType dtype) {
  const int64_t stride = copy_stride_bytes((x_.dim(1) + 1) * dtype_bytes(dtype));
  auto* out = cpu_.workspace.take<std::byte>(stride * x_.num_rows());
  for_row_blocks(cpu_.pool, x_.num_rows(), x_.dim(1),
                 [&](int64_t t) { copy_row(out + t * stride, dtype, x_, t); });
  return {dtype, out, stride};
}

const PreparedRows& LinearRows::rows(DType dtype) {
  PreparedRows& rows = rows_[dtype == DType::kBF16 ? 0 : 1];
  if (rows.x != nullptr) return rows;
  const int64_t stride = x_.row_stride * dtype_bytes(x_.dtype);
  const bool fits_as_is =
      dtype == x_.dtype && x_.dim(1) % 2 == 0 && (x_.num_rows() == 1 || stride % kBadStrideBytes != 0);
  rows = fits_as_is ? PreparedRows{dtype, x_.data, stride} : copy(dtype);
  return rows;
}

const RowSums& LinearRows::sums(DType dtype, GroupSumsKernel kernel, int64_t group_columns) {
  RowSums& result = sums_[(dtype == DType::kBF16 ? 0 : 3) + group_columns / 64];
  if (result.sums != nullptr) return result;
  const int64_t num_groups = x_.dim(1) / group_columns;
  float* sums = cpu_.workspace.take<float>(x_.num_rows() * num_groups);
  const PreparedRows& prepared = rows(dtype);
  for_row_blocks(cpu_.pool, x_.num_rows(), x_.dim(1), [&](int64_t t) {
    kernel(sums + t * num_groups, prepared.x + t * prepared.stride_bytes, num_groups, group_columns);
  });
  result = {num_groups, sums};
  return result;
}

}  // namespace tensorfold::cpu
