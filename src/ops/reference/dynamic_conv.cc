// dynamic_conv by its formula in ops.h: a row, a channel, tap by tap.
#include <algorithm>

#include "base/fp_env.h"
#include "ops/reference/reference_math.h"
#include "ops/reference/reference_ops.h"

namespace tensorfold {

void ReferenceOps::dynamic_conv(const DynamicConvCall& call) {
  ScopedFlushDenormals flush;
  const int64_t C = call.x.dim(1), taps = call.base.dim(0), G = call.dynamic.dim(1) / taps;
  for (const SequenceRows& sequence : call.rows.sequences) {
    for (int64_t r = 0; r < sequence.num_rows; ++r) {
      const int64_t t = sequence.first_row + r;
      for (int64_t c = 0; c < C; ++c) {
        float y = 0.0f;
        for (int64_t o = 0; o <= std::min(r, taps - 1); ++o) {
          const float weight =
              reference::load(call.base, o, c) + reference::load(call.dynamic, t, o * G + c / (C / G));
          y = contract::fused(weight, reference::load(call.x, t - o, c), y);
        }
        if (call.accumulate) y = reference::load(call.out, t, c) + y;
        reference::store(call.out, t, c, y);
      }
    }
  }
}

}  // namespace tensorfold
