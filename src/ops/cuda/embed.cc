// The host side of embed() on CUDA: from views to a launch (see ops/cuda/embed.h).
#include "ops/cuda/embed.h"

#include "base/check.h"
#include "ops/cuda/linear.h"

namespace tensorfold::cuda {

EmbedLaunch embed_launch(View out, const LinearWeight& table, const int32_t* tokens, float scale) {
  TF_CHECK(out.dtype == DType::kF32 || out.dtype == DType::kBF16);
  TF_CHECK(out.dim(1) == table.spec.in);
  return {.tokens = tokens,
          .table = table.data,
          .out = out.data,
          .out_stride = out.row_stride,
          .num_rows = static_cast<int>(out.dim(0)),
          .num_columns = static_cast<int>(out.dim(1)),
          .scale = scale,
          .layout = layout_of(table.spec),
          .out_is_bf16 = out.dtype == DType::kBF16};
}

}  // namespace tensorfold::cuda
