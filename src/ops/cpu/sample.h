// sample of the cpu backend; contract in ops/ops.h.
#pragma once

#include <span>

#include "ops/cpu/cpu_context.h"

namespace tensorfold::cpu {

void sample(CpuContext& cpu, std::span<int32_t> tokens, View logits, std::span<const SampleRow> rows,
            std::span<float> probabilities);

}  // namespace tensorfold::cpu
