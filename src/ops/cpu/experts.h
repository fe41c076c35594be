// experts() of the cpu backend; contract in ops/ops.h.
#pragma once

#include "ops/cpu/cpu_context.h"

namespace tensorfold::cpu {

void experts(CpuContext& cpu, const ExpertsCall& call);

}  // namespace tensorfold::cpu
