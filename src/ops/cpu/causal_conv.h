// causal_conv of the cpu backend; contract in ops/ops.h.
#pragma once

#include "ops/cpu/cpu_context.h"

namespace tensorfold::cpu {

void causal_conv(CpuContext& cpu, const CausalConvCall& call);

}  // namespace tensorfold::cpu
