// sample() on CUDA devices: what the kernel takes from the host. The numbers are those of
// ops/sampling_math.h, the same on every backend; how the kernel finds the cuts: sample_select.h and
// sample.cu.
#pragma once

#include "base/view.h"
#include "ops/cuda/sample_params.h"
#include "ops/ops.h"

namespace tensorfold::cuda {

/// `row` as the kernel reads it.
DeviceSampleRow device_sample_row(const SampleRow& row);

/// Ops::sample() for logits [R, V] f32 in device memory, row stride free, V at most kMaxSampleVocab. `rows`
/// [R] and `tokens` [R] are device memory too; the kernel reads the rows when it runs.
SampleLaunch sample_launch(int32_t* tokens, View logits, const DeviceSampleRow* rows);

/// The probabilities of Ops::sample() for logits [R, V] f32 in device memory, row stride free. tokens and
/// probabilities [R] are where the device can reach them; the kernel reads the tokens when it runs.
TokenProbabilitiesLaunch token_probabilities_launch(float* probabilities, View logits, const int32_t* tokens);

}  // namespace tensorfold::cuda
