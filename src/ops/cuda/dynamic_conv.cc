// See dynamic_conv.h.
#include "ops/cuda/dynamic_conv.h"

#include "base/check.h"

namespace tensorfold::cuda {

DynamicConvLaunch dynamic_conv_launch(const DynamicConvCall& call, const AttentionRows& rows) {
  const int64_t num_channels = call.x.dim(1), num_taps = call.base.dim(0);
  const int64_t num_groups = call.dynamic.dim(1) / num_taps;
  TF_CHECK(call.x.dtype == DType::kF32 && call.base.dtype == DType::kF32 &&
           call.dynamic.dtype == DType::kF32);
  TF_CHECK(call.out.dtype == DType::kF32 || (call.out.dtype == DType::kBF16 && !call.accumulate));
  TF_DCHECK(num_channels % num_groups == 0);
  return {.sequences = rows.sequences,
          .num_sequences = rows.num_sequences,
          .max_rows = static_cast<int>(rows.max_rows),
          .num_channels = static_cast<int>(num_channels),
          .group_size = static_cast<int>(num_channels / num_groups),
          .num_taps = static_cast<int>(num_taps),
          .accumulates = call.accumulate,
          .is_bf16 = call.out.dtype == DType::kBF16,
          .x = call.x.row<const float>(0),
          .base = call.base.row<const float>(0),
          .dynamic = call.dynamic.row<const float>(0),
          .out = call.out.data,
          .x_stride = call.x.row_stride,
          .base_stride = call.base.row_stride,
          .dynamic_stride = call.dynamic.row_stride,
          .out_stride = call.out.row_stride};
}

}  // namespace tensorfold::cuda
