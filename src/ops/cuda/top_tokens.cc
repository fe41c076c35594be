// See top_tokens.h.
#include "ops/cuda/top_tokens.h"

#include "base/check.h"
#include "ops/cuda/sample_params.h"
#include "ops/ops.h"

namespace tensorfold::cuda {

int64_t top_tokens_scratch_bytes(View logits, int64_t k) {
  return logits.dim(0) * num_top_slices(static_cast<int>(logits.dim(1))) * k * int64_t{sizeof(uint64_t)};
}

TopTokensLaunch top_tokens_launch(int32_t* tokens, float* values, View logits, int64_t k,
                                  std::byte* scratch) {
  TF_CHECK(logits.dtype == DType::kF32 && logits.rank == 2 && k >= 1 && k <= kMaxTopTokens);
  TF_CHECK(logits.dim(1) >= 1 && logits.dim(1) <= kMaxSampleVocab);
  return {.logits = logits.row<const float>(0),
          .logits_stride = logits.row_stride,
          .partial = reinterpret_cast<uint64_t*>(scratch),
          .tokens = tokens,
          .values = values,
          .num_rows = static_cast<int>(logits.dim(0)),
          .vocab_size = static_cast<int>(logits.dim(1)),
          .k = static_cast<int>(k)};
}

}  // namespace tensorfold::cuda
