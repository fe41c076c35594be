// rope_table() and qk_norm_rope() on CUDA devices: what they take from the host. The bits of rope_table() are
// those of the CPU; those of qk_norm_rope() are the formulas of ops.h with short sums of 256 partials.
#pragma once

#include "ops/cuda/rope_params.h"
#include "ops/ops.h"

namespace tensorfold::cuda {

/// Ops::rope_table(): one position for each row of `cos`, one frequency for each column; both on the device.
RopeTableLaunch rope_table_launch(View cos, View sin, const int32_t* positions, const double* inv_freq,
                                  double multiplier);

/// Ops::qk_norm_rope(): head_dim at most kMaxRopeHeadDim.
QkNormRopeLaunch qk_norm_rope_launch(const QkNormRopeCall& call);

}  // namespace tensorfold::cuda
