// softcap of the cpu backend; contract in ops/ops.h.
#pragma once

#include "ops/cpu/cpu_context.h"

namespace tensorfold::cpu {

void softcap(CpuContext& cpu, View x, float limit);

}  // namespace tensorfold::cpu
