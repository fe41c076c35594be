// rope_table of the cpu backend; contract in ops/ops.h.
#pragma once

#include <span>

#include "ops/cpu/cpu_context.h"

namespace tensorfold::cpu {

void rope_table(CpuContext& cpu, View cos, View sin, std::span<const int32_t> positions,
                std::span<const double> inv_freq, double multiplier);

}  // namespace tensorfold::cpu
