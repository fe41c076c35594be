// gated_delta of the cpu backend; contract in ops/ops.h.
#pragma once

#include "ops/cpu/cpu_context.h"

namespace tensorfold::cpu {

void gated_delta(CpuContext& cpu, const GatedDeltaCall& call);

}  // namespace tensorfold::cpu
