// The end of a sum of linear(): the linear bias, and the way into the output.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "ops/ops.h"

namespace tensorfold::cpu {

/// Where 32 finished sums of one row go.
struct FinishArgs {
  const float* sums = nullptr;  ///< [32], aligned to 64.
  const float* bias = nullptr;  ///< [count] or null: added to the sums.
  std::byte* out = nullptr;     ///< [count] of `dtype`.
  DType dtype = DType::kF32;    ///< f32 or bf16 (rounded).
  int64_t count = 0;            ///< 1 .. 32: outputs of the panel that exist.
  bool accumulate = false;      ///< out += instead of out =; f32 only.
};
using FinishKernel = void (*)(const FinishArgs&);

/// Writes one row of a panel.
FinishKernel finish_kernel(CpuIsa isa);

}  // namespace tensorfold::cpu
