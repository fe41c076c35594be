// rope_table by its formula in ops.h.
#include "base/fp_env.h"
#include "ops/reference/reference_math.h"
#include "ops/reference/reference_ops.h"

namespace tensorfold {

void ReferenceOps::rope_table(View cos, View sin, std::span<const int32_t> positions,
                              std::span<const double> inv_freq, double multiplier) {
  ScopedFlushDenormals flush;
  for (size_t t = 0; t < positions.size(); ++t) {
    for (size_t j = 0; j < inv_freq.size(); ++j) {
      const SinCos angle = sincos_f64(static_cast<double>(positions[t]) * inv_freq[j]);
      cos.row<float>(t)[j] = static_cast<float>(angle.cos * multiplier);
      sin.row<float>(t)[j] = static_cast<float>(angle.sin * multiplier);
    }
  }
}

}  // namespace tensorfold
