// embed() on CUDA devices: what it takes from the host. Bits as on the CPU, whatever linear() makes of the
// same table.
#pragma once

#include "ops/cuda/embed_params.h"
#include "ops/ops.h"

namespace tensorfold::cuda {

/// Ops::embed(): `tokens` on the device, one for each row of `out`.
EmbedLaunch embed_launch(View out, const LinearWeight& table, const int32_t* tokens, float scale);

}  // namespace tensorfold::cuda
