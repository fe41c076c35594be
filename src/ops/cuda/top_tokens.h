// top_tokens() on CUDA: from views to a launch.
#pragma once

#include "base/view.h"
#include "ops/cuda/top_tokens_params.h"

namespace tensorfold::cuda {

/// Scratch of a launch.
int64_t top_tokens_scratch_bytes(View logits, int64_t k);

/// Ops::top_tokens() for logits [R, V] f32 in device memory; `tokens` and `values` [R, k] are memory that the
/// device can write.
TopTokensLaunch top_tokens_launch(int32_t* tokens, float* values, View logits, int64_t k, std::byte* scratch);

}  // namespace tensorfold::cuda
