// gated_rms_norm of the cpu backend; contract in ops/ops.h.
#pragma once

#include "ops/cpu/cpu_context.h"

namespace tensorfold::cpu {

void gated_rms_norm(CpuContext& cpu, const GatedRmsNormCall& call);

}  // namespace tensorfold::cpu
