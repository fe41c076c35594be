// The host side of sample() on CUDA: from views to a launch (see ops/cuda/sample.h).
#include "ops/cuda/sample.h"

#include "base/check.h"

namespace tensorfold::cuda {

DeviceSampleRow device_sample_row(const SampleRow& row) {
  return {.temperature = row.temperature,
          .top_k = row.top_k,
          .top_p = row.top_p,
          .min_p = row.min_p,
          .seed = row.seed,
          .pos = row.pos};
}

SampleLaunch sample_launch(int32_t* tokens, View logits, const DeviceSampleRow* rows) {
  TF_CHECK(logits.dtype == DType::kF32 && logits.rank == 2);
  TF_CHECK(logits.dim(1) >= 1 && logits.dim(1) <= kMaxSampleVocab);
  return {.logits = reinterpret_cast<const float*>(logits.data),
          .logits_stride = logits.row_stride,
          .rows = rows,
          .tokens = tokens,
          .vocab_size = static_cast<int32_t>(logits.dim(1)),
          .num_rows = static_cast<int32_t>(logits.dim(0))};
}

TokenProbabilitiesLaunch token_probabilities_launch(float* probabilities, View logits,
                                                    const int32_t* tokens) {
  TF_CHECK(logits.dtype == DType::kF32 && logits.rank == 2);
  return {.logits = reinterpret_cast<const float*>(logits.data),
          .logits_stride = logits.row_stride,
          .tokens = tokens,
          .probabilities = probabilities,
          .vocab_size = static_cast<int32_t>(logits.dim(1)),
          .num_rows = static_cast<int32_t>(logits.dim(0))};
}

}  // namespace tensorfold::cuda
