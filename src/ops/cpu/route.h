// route of the cpu backend; contract in ops/ops.h.
#pragma once

#include "ops/cpu/cpu_context.h"

namespace tensorfold::cpu {

void route(CpuContext& cpu, const RouteCall& call);

}  // namespace tensorfold::cpu
