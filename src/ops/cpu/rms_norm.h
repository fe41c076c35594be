// rms_norm of the cpu backend; contract in ops/ops.h.
#pragma once

#include "ops/cpu/cpu_context.h"

namespace tensorfold::cpu {

void rms_norm(CpuContext& cpu, View out, View x, View weight, const RmsNormOptions& options);

}  // namespace tensorfold::cpu
