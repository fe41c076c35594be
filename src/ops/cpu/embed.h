// embed() of the cpu backend; contract in ops/ops.h.
#pragma once

#include <span>

#include "ops/cpu/cpu_context.h"

namespace tensorfold::cpu {

void embed(CpuContext& cpu, View out, const LinearWeight& table, std::span<const int32_t> tokens,
           float scale);

}  // namespace tensorfold::cpu
