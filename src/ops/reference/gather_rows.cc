// gather_rows: copies of rows.
#include <cstring>

#include "ops/reference/reference_math.h"
#include "ops/reference/reference_ops.h"

namespace tensorfold {

void ReferenceOps::gather_rows(View out, View x, std::span<const int32_t> rows) {
  const int64_t row_bytes = x.row_size() * dtype_bytes(x.dtype);
  for (int64_t i = 0; i < std::ssize(rows); ++i) {
    if (out.dtype != x.dtype) {
      for (int64_t j = 0; j < x.row_size(); ++j) reference::store(out, i, j, reference::load(x, rows[i], j));
    } else if (row_bytes > 0) {
      std::memcpy(out.rows(i, 1).data, x.rows(rows[i], 1).data, row_bytes);
    }
  }
}

}  // namespace tensorfold
