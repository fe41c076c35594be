// The host side of the norms on CUDA: from views to launches (see ops/cuda/norms.h).
#include "ops/cuda/norms.h"

#include "base/check.h"

namespace tensorfold::cuda {

RmsNormLaunch rms_norm_launch(View out, View x, View weight, const RmsNormOptions& options) {
  TF_CHECK(x.dtype == DType::kF32 && weight.dtype == DType::kF32 && x.dim(1) <= kMaxNormColumns);
  TF_CHECK(out.dtype == DType::kF32 || (out.dtype == DType::kBF16 && !options.accumulate));
  TF_DCHECK(out.dim(0) == x.dim(0) && out.dim(1) == x.dim(1) && weight.num_elements() == x.dim(1));
  return {.x = x.row<const float>(0),
          .weight = weight.row<const float>(0),
          .out = out.data,
          .x_stride = x.row_stride,
          .out_stride = out.row_stride,
          .num_rows = static_cast<int>(x.dim(0)),
          .num_columns = static_cast<int>(x.dim(1)),
          .reciprocal = 1.0f / static_cast<float>(x.dim(1)),
          .eps = options.eps,
          .out_is_bf16 = out.dtype == DType::kBF16,
          .accumulate = options.accumulate};
}

GatedRmsNormLaunch gated_rms_norm_launch(const GatedRmsNormCall& call) {
  const int64_t n = call.x.dim(1), group = call.group_size, num_weights = call.weight.num_elements();
  TF_CHECK(call.out.dtype == DType::kBF16 && call.x.dtype == DType::kF32 && call.gate.dtype == DType::kF32 &&
           call.weight.dtype == DType::kF32);
  TF_CHECK(group > 0 && group <= kMaxNormColumns && n % group == 0);
  TF_CHECK(num_weights == n || num_weights == group);
  return {.x = call.x.row<const float>(0),
          .gate = call.gate.row<const float>(0),
          .weight = call.weight.row<const float>(0),
          .out = call.out.row<uint16_t>(0),
          .x_stride = call.x.row_stride,
          .gate_stride = call.gate.row_stride,
          .out_stride = call.out.row_stride,
          .num_rows = static_cast<int>(call.x.dim(0)),
          .num_groups = static_cast<int>(n / group),
          .group_size = static_cast<int>(group),
          .weight_stride = num_weights == n ? static_cast<int>(group) : 0,
          .reciprocal = 1.0f / static_cast<float>(group),
          .eps = call.eps,
          .gates_first = call.order == GatedRmsNormCall::Order::kGateThenNorm};
}

}  // namespace tensorfold::cuda
