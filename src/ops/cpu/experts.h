// experts() of the cpu backend; contract in ops/ops.h.
#pragma once

#include "ops/cpu/cpu_context.h"

namespace tensorfold::cpu {

void experts(CpuContext& cpu, const ExpertsCall& call);

/// The experts of one row, to be added up.
struct CombineRow {
  const float* down;     ///< [slots, hidden_size]
  const int64_t* slots;  ///< [num_experts]: which rows of `down`.
  const float* weights;  ///< [num_experts]
  int64_t num_experts, hidden_size;
};

}  // namespace tensorfold::cpu
