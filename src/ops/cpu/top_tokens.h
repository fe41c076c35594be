// top_tokens of the cpu backend; contract in ops/ops.h.
#pragma once

#include "ops/cpu/cpu_context.h"

namespace tensorfold::cpu {

void top_tokens(CpuContext& cpu, std::span<int32_t> tokens, std::span<float> values, View logits, int64_t k);

}  // namespace tensorfold::cpu
