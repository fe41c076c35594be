// gather_rows of the cpu backend: copies of rows.
#include "ops/cpu/gather_rows.h"

#include <cstring>

#include "base/bf16.h"
#include "ops/cpu/split.h"

namespace tensorfold::cpu {

void gather_rows(CpuContext& cpu, View out, View x, std::span<const int32_t> rows) {
  const int64_t row_bytes = x.row_size() * dtype_bytes(x.dtype);
  if (row_bytes == 0) return;
  for_row_blocks(cpu.pool, static_cast<int64_t>(rows.size()), row_bytes / 16, [&](int64_t i) {
    if (out.dtype == x.dtype) {
      std::memcpy(out.rows(i, 1).data, x.rows(rows[i], 1).data, row_bytes);
      return;
    }
    const float* from = x.row<const float>(rows[i]);
    bf16* to = out.row<bf16>(i);
    for (int64_t j = 0; j < x.row_size(); ++j) to[j] = to_bf16(from[j]);
  });
}

}  // namespace tensorfold::cpu
