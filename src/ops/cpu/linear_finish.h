// The end of the sums of linear(): the linear bias, and the way into the output.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "ops/ops.h"

namespace tensorfold::cpu {

/// Where the finished sums of some rows and one panel go.
struct FinishArgs {
  const float* sums = nullptr;  ///< [num_rows][32], aligned to 64.
  const float* bias = nullptr;  ///< [count] or null: added to the sums.
  std::byte* out = nullptr;     ///< [num_rows][count] of `dtype`.
  DType dtype = DType::kF32;    ///< f32 or bf16 (rounded).
  int64_t out_stride = 0;       ///< Elements from row to row.
  int64_t num_rows = 0;
  int64_t count = 0;        ///< 1 .. 32: outputs of the panel that exist.
  bool accumulate = false;  ///< out += instead of out =; f32 only.
};
using FinishKernel = void (*)(const FinishArgs&);

/// Writes the panel's part of the rows.
FinishKernel finish_kernel(CpuIsa isa);

}  // namespace tensorfold::cpu
