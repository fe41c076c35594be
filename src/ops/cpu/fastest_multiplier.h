// Which instruction set multiplies many rows fastest on this CPU. AVX-512-BF16 is not always it: its dot
// products multiply twice as many pairs, but where they and the decoding of weights want the same ports, fp32
// is faster. The kernels give the same bits, so the choice is free.
#pragma once

#include "ops/ops.h"

namespace tensorfold::cpu {

/// `isa`, or a lesser set whose kernels take less time for several rows: measured on this CPU, in about a
/// millisecond.
CpuIsa fastest_multiplier(CpuIsa isa);

}  // namespace tensorfold::cpu
