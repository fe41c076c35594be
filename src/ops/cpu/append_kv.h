// append_kv of the cpu backend; contract in ops/ops.h.
#pragma once

#include "ops/cpu/cpu_context.h"

namespace tensorfold::cpu {

void append_kv(CpuContext& cpu, const KvPages& pages, View k, View v, const RowBatch& rows);

}  // namespace tensorfold::cpu
