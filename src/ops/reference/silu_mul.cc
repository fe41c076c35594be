// silu_mul by its formula in ops.h.
#include "base/fp_env.h"
#include "ops/reference/reference_math.h"
#include "ops/reference/reference_ops.h"

namespace tensorfold {

void ReferenceOps::silu_mul(View out, View gate, View up) {
  ScopedFlushDenormals flush;
  for (int64_t t = 0; t < out.dim(0); ++t) {
    for (int64_t i = 0; i < out.dim(1); ++i) {
      reference::store(out, t, i, silu_f32(reference::load(gate, t, i)) * reference::load(up, t, i));
    }
  }
}

}  // namespace tensorfold
