// softcap by its formula in ops.h.
#include "base/fp_env.h"
#include "ops/contract_math.h"
#include "ops/reference/reference_ops.h"

namespace tensorfold {

void ReferenceOps::softcap(View x, float limit) {
  ScopedFlushDenormals flush;
  for (int64_t t = 0; t < x.dim(0); ++t) {
    float* row = x.row<float>(t);
    for (int64_t i = 0; i < x.dim(1); ++i) row[i] = limit * tanh_f32(row[i] / limit);
  }
}

}  // namespace tensorfold
