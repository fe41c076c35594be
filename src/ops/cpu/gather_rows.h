// gather_rows of the cpu backend; contract in ops/ops.h.
#pragma once

#include <span>

#include "ops/cpu/cpu_context.h"

namespace tensorfold::cpu {

void gather_rows(CpuContext& cpu, View out, View x, std::span<const int32_t> rows);

}  // namespace tensorfold::cpu
