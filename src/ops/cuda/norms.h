// rms_norm() and gated_rms_norm() on CUDA devices: what they take from the host. A row's bits are those of
// the formulas in ops.h with short sums of 256 partials, whatever the other rows.
#pragma once

#include "ops/cuda/norms_params.h"
#include "ops/ops.h"

namespace tensorfold::cuda {

/// Ops::rms_norm(): at most kMaxNormColumns columns.
RmsNormLaunch rms_norm_launch(View out, View x, View weight, const RmsNormOptions& options);

/// Ops::gated_rms_norm(): groups of at most kMaxNormColumns.
GatedRmsNormLaunch gated_rms_norm_launch(const GatedRmsNormCall& call);

}  // namespace tensorfold::cuda
