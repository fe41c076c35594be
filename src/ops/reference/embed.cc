// Rows of the embedding out of the packed layout.
#include "base/fp_env.h"
#include "ops/contract_math.h"
#include "ops/reference/packed_matrix.h"
#include "ops/reference/reference_math.h"
#include "ops/reference/reference_ops.h"

namespace tensorfold {

void ReferenceOps::embed(View out, const LinearWeight& table, std::span<const int32_t> tokens, float scale) {
  ScopedFlushDenormals flush;
  const reference::PackedMatrix matrix(table.spec, table.data);
  for (int64_t t = 0; t < out.num_rows(); ++t) {
    const int64_t token = tokens[static_cast<size_t>(t)];
    for (int64_t e = 0; e < table.spec.in; ++e) {
      if (table.spec.format == WeightFormat::kFloat) {
        reference::store(out, t, e, matrix.element(token, e) * scale);
        continue;
      }
      const int64_t group = e / table.spec.group_size;
      const float q = matrix.unscaled(token, e), group_scale = matrix.scale(token, group);
      const float value = table.spec.format == WeightFormat::kMxfp4
                              ? group_scale * q
                              : contract::fused(group_scale, q, matrix.bias(token, group));
      reference::store(out, t, e, value * scale);
    }
  }
}

}  // namespace tensorfold
