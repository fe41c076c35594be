// rms_norm by its formula in ops.h.
#include "base/fp_env.h"
#include "ops/reference/reference_math.h"
#include "ops/reference/reference_ops.h"

namespace tensorfold {

void ReferenceOps::rms_norm(View out, View x, View weight, const RmsNormOptions& options) {
  ScopedFlushDenormals flush;
  const int64_t hidden_size = x.dim(1);
  for (int64_t t = 0; t < x.dim(0); ++t) {
    reference::ShortSum squares(short_sum_partials_);
    for (int64_t e = 0; e < hidden_size; ++e) squares.add_square(reference::load(x, t, e));
    const float mean = squares.total() * (1.0f / static_cast<float>(hidden_size));
    const float inverse = rsqrt_f32(mean + options.eps);
    for (int64_t e = 0; e < hidden_size; ++e) {
      const float y = (reference::load(x, t, e) * inverse) * weight.row<const float>(0)[e];
      reference::store(out, t, e, options.accumulate ? out.row<float>(t)[e] + y : y);
    }
  }
}

}  // namespace tensorfold
