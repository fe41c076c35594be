// qk_norm_rope by its formula in ops.h: per head, the norm of rms_norm over D, then the rotation.
#include <vector>

#include "base/fp_env.h"
#include "ops/reference/reference_math.h"
#include "ops/reference/reference_ops.h"

namespace tensorfold {
namespace {

void norm_head(std::vector<float>& x, const float* weight, float eps, int short_sum_partials) {
  reference::ShortSum squares(short_sum_partials);
  for (const float value : x) squares.add_square(value);
  const float mean = squares.total() * (1.0f / static_cast<float>(x.size()));
  const float inverse = rsqrt_f32(mean + eps);
  for (size_t d = 0; d < x.size(); ++d) x[d] = (x[d] * inverse) * weight[d];
}

void rotate_head(std::vector<float>& x, const float* cos, const float* sin, int64_t half) {
  for (int64_t j = 0; j < half; ++j) {
    const float a = x[j], b = x[j + half];
    x[j] = contract::fused(a, cos[j], -(b * sin[j]));
    x[j + half] = contract::fused(b, cos[j], a * sin[j]);
  }
}

void norm_rope(View out, View in, View norm, int64_t head_stride, const QkNormRopeCall& call,
               int short_sum_partials) {
  std::vector<float> head(call.head_dim);
  for (int64_t t = 0; t < out.dim(0); ++t) {
    for (int64_t first = 0; first < out.dim(1); first += call.head_dim) {
      const float* x = in.row<const float>(t) + first / call.head_dim * head_stride;
      for (int64_t d = 0; d < call.head_dim; ++d) head[d] = x[d];
      if (norm.data != nullptr) norm_head(head, norm.row<const float>(0), call.norm_eps, short_sum_partials);
      rotate_head(head, call.cos.row<const float>(t), call.sin.row<const float>(t), call.cos.dim(1));
      for (int64_t d = 0; d < call.head_dim; ++d) reference::store(out, t, first + d, head[d]);
    }
  }
}

}  // namespace

void ReferenceOps::qk_norm_rope(const QkNormRopeCall& call) {
  ScopedFlushDenormals flush;
  norm_rope(call.q_out, call.q, call.q_norm, call.q_head_stride > 0 ? call.q_head_stride : call.head_dim,
            call, short_sum_partials_);
  norm_rope(call.k_out, call.k, call.k_norm, call.head_dim, call, short_sum_partials_);
}

}  // namespace tensorfold
