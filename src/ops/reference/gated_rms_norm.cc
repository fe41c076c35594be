// gated_rms_norm by its formulas in ops.h.
#include "base/fp_env.h"
#include "ops/reference/reference_math.h"
#include "ops/reference/reference_ops.h"

namespace tensorfold {

void ReferenceOps::gated_rms_norm(const GatedRmsNormCall& call) {
  ScopedFlushDenormals flush;
  const int64_t n = call.x.dim(1), group = call.group_size;
  const bool gate_first = call.order == GatedRmsNormCall::Order::kGateThenNorm;
  const float* weight = call.weight.row<const float>(0);
  const auto normed = [&](int64_t t, int64_t i) {
    const float x = call.x.row<const float>(t)[i];
    return gate_first ? x * silu_f32(call.gate.row<const float>(t)[i]) : x;
  };
  for (int64_t t = 0; t < call.x.dim(0); ++t) {
    for (int64_t first = 0; first < n; first += group) {
      reference::ShortSum squares(short_sum_partials_);
      for (int64_t i = first; i < first + group; ++i) squares.add_square(normed(t, i));
      const float mean = squares.total() * (1.0f / static_cast<float>(group));
      const float inverse = rsqrt_f32(mean + call.eps);
      for (int64_t i = first; i < first + group; ++i) {
        const float y = (normed(t, i) * inverse) * weight[call.weight.dim(0) == n ? i : i - first];
        reference::store(call.out, t, i, gate_first ? y : y * silu_f32(call.gate.row<const float>(t)[i]));
      }
    }
  }
}

}  // namespace tensorfold
