// mamba2 of the cpu backend; contract in ops/ops.h.
#pragma once

#include "ops/cpu/cpu_context.h"

namespace tensorfold::cpu {

void mamba2(CpuContext& cpu, const Mamba2Call& call);

}  // namespace tensorfold::cpu
