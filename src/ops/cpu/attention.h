// attention of the cpu backend; contract in ops/ops.h.
#pragma once

#include "ops/cpu/cpu_context.h"

namespace tensorfold::cpu {

void attention(CpuContext& cpu, const AttentionCall& call);

}  // namespace tensorfold::cpu
