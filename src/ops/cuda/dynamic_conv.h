// dynamic_conv() on CUDA: from views to a launch.
#pragma once

#include "ops/cuda/attention.h"
#include "ops/cuda/dynamic_conv_params.h"
#include "ops/ops.h"

namespace tensorfold::cuda {

/// Ops::dynamic_conv(); `rows` are those of call.rows, on the device.
DynamicConvLaunch dynamic_conv_launch(const DynamicConvCall& call, const AttentionRows& rows);

}  // namespace tensorfold::cuda
