// mlp_activation(), sigmoid_mul(), add_gated(), softcap() and gather_rows() on CUDA devices: what they take
// from the host. Each element is computed alone, by the CPU's formulas and to its bits.
#pragma once

#include "ops/cuda/elementwise_params.h"
#include "ops/ops.h"

namespace tensorfold::cuda {

MlpActivationLaunch mlp_activation_launch(View out, View gate, View up, const MlpActivation& activation);
SigmoidMulLaunch sigmoid_mul_launch(View out, View x, View gate, int64_t head_dim, int64_t gate_head_stride);
AddGatedLaunch add_gated_launch(View out, View x, View gate);
SoftcapLaunch softcap_launch(View x, float limit);

/// Ops::gather_rows(): `rows` on the device, one for each row of `out`.
GatherRowsLaunch gather_rows_launch(View out, View x, const int32_t* rows);

}  // namespace tensorfold::cuda
