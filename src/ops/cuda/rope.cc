// The host side of rotary embeddings on CUDA: from views to launches (see ops/cuda/rope.h).
#include "ops/cuda/rope.h"

#include <limits>

#include "base/check.h"

namespace tensorfold::cuda {
namespace {

RopeHeads heads_of(View out, View in, View norm, int64_t head_dim, int64_t head_stride) {
  TF_CHECK(out.dtype == DType::kBF16 && in.dtype == DType::kF32 && norm.dtype == DType::kF32);
  TF_DCHECK(out.dim(1) % head_dim == 0);
  return {.in = in.row<const float>(0),
          .out = out.row<uint16_t>(0),
          .norm = norm.row<const float>(0),
          .in_stride = in.row_stride,
          .out_stride = out.row_stride,
          .head_stride = head_stride,
          .num_heads = static_cast<int>(out.dim(1) / head_dim)};
}

}  // namespace

RopeTableLaunch rope_table_launch(View cos, View sin, const int32_t* positions, const double* inv_freq,
                                  double multiplier) {
  TF_CHECK(cos.dtype == DType::kF32 && sin.dtype == DType::kF32);
  TF_DCHECK(cos.dim(0) == sin.dim(0) && cos.dim(1) == sin.dim(1));
  return {.positions = positions,
          .inv_freq = inv_freq,
          .multiplier = multiplier,
          .cos = cos.row<float>(0),
          .sin = sin.row<float>(0),
          .cos_stride = cos.row_stride,
          .sin_stride = sin.row_stride,
          .num_rows = static_cast<int>(cos.dim(0)),
          .half = static_cast<int>(cos.dim(1))};
}

QkNormRopeLaunch qk_norm_rope_launch(const QkNormRopeCall& call) {
  const int64_t head_dim = call.head_dim, half = call.cos.dim(1);
  TF_CHECK(head_dim >= 1 && head_dim <= kMaxRopeHeadDim && 2 * half <= head_dim);
  TF_CHECK(call.cos.dtype == DType::kF32 && call.sin.dtype == DType::kF32);
  const int64_t q_stride = call.q_head_stride > 0 ? call.q_head_stride : head_dim;
  const QkNormRopeLaunch launch = {.q = heads_of(call.q_out, call.q, call.q_norm, head_dim, q_stride),
                                   .k = heads_of(call.k_out, call.k, call.k_norm, head_dim, head_dim),
                                   .cos = call.cos.row<const float>(0),
                                   .sin = call.sin.row<const float>(0),
                                   .cos_stride = call.cos.row_stride,
                                   .sin_stride = call.sin.row_stride,
                                   .num_rows = static_cast<int>(call.q_out.dim(0)),
                                   .head_dim = static_cast<int>(head_dim),
                                   .half = static_cast<int>(half),
                                   .reciprocal = 1.0f / static_cast<float>(head_dim),
                                   .eps = call.norm_eps};
  TF_CHECK(int64_t{launch.num_rows} * (launch.q.num_heads + launch.k.num_heads) <=
           std::numeric_limits<int>::max());
  return launch;
}

}  // namespace tensorfold::cuda
