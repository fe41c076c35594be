// qk_norm_rope of the cpu backend; contract in ops/ops.h.
#pragma once

#include "ops/cpu/cpu_context.h"

namespace tensorfold::cpu {

void qk_norm_rope(CpuContext& cpu, const QkNormRopeCall& call);

/// What the kernel gets: the heads of one row of q or of k.
struct NormRopeRow {
  std::byte* out;  ///< [num_heads * head_dim] bf16 or f32.
  const float* x;  ///< num_heads heads, head_stride elements apart.
  int64_t num_heads, head_stride, head_dim;
  int64_t half;         ///< Half of the rotary width.
  const float* weight;  ///< [head_dim], or null: no norm.
  float eps;
  const float* cos;  ///< [half]
  const float* sin;  ///< [half]
};

}  // namespace tensorfold::cpu
