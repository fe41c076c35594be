// silu_mul of the cpu backend; contract in ops/ops.h.
#pragma once

#include "ops/cpu/cpu_context.h"

namespace tensorfold::cpu {

void silu_mul(CpuContext& cpu, View out, View gate, View up);

}  // namespace tensorfold::cpu
