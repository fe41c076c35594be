// linear() of the cpu backend, and the form of it that experts() needs; contract in ops/ops.h.
#pragma once

#include <span>

#include "ops/cpu/cpu_context.h"

namespace tensorfold::cpu {

/// out = W x + b for each call, all of the same x.
void linear(CpuContext& cpu, View x, std::span<const LinearCall> calls);

/// A product whose rows are [first_row, first_row + call.out.num_rows()) of a common x.
struct LinearJob {
  LinearCall call;
  int64_t first_row = 0;
};

/// All jobs in one dispatch.
void linear_jobs(CpuContext& cpu, View x, std::span<const LinearJob> jobs);

}  // namespace tensorfold::cpu
