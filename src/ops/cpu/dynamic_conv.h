// dynamic_conv of the cpu backend; contract in ops/ops.h.
#pragma once

#include "ops/cpu/cpu_context.h"

namespace tensorfold::cpu {

void dynamic_conv(CpuContext& cpu, const DynamicConvCall& call);

}  // namespace tensorfold::cpu
