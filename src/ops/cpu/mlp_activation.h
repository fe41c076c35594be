// The element-wise products of MLPs and gates in the cpu backend; contracts in ops/ops.h.
#pragma once

#include "ops/cpu/cpu_context.h"

namespace tensorfold::cpu {

void mlp_activation(CpuContext& cpu, View out, View gate, View up, const MlpActivation& activation);
void sigmoid_mul(CpuContext& cpu, View out, View x, View gate, int64_t head_dim, int64_t gate_head_stride);
void add_gated(CpuContext& cpu, View out, View x, View gate);

}  // namespace tensorfold::cpu
