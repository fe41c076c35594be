// The probabilities that sample() gives of the tokens it draws, on CUDA: a block takes a row, and reads it
// from memory twice.
#include <cuda_runtime.h>

#include "ops/cuda/device/async.cuh"
#include "ops/cuda/device/launch.cuh"
#include "ops/cuda/sample_params.h"

namespace tensorfold::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;

/// combine() of every thread's value, in all of them. `shared` [kWarps] is free again after the next barrier.
template <class Combine>
__device__ __forceinline__ float over_block(float value, float* shared, Combine combine) {
  for (int step = 16; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(~0u, value, step));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[threadIdx.x % 32];
  for (int step = 16; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(~0u, value, step));
  return value;
}

__global__ void __launch_bounds__(kThreads)
    token_probabilities_kernel(const __grid_constant__ TokenProbabilitiesLaunch p) {
  static_assert(kWarps == 32, "a warp combines the warps' values");
  launch_dependents();
  wait_for_previous_kernel();
  __shared__ float largest_of_warps[kWarps], sums_of_warps[kWarps];
  const float* logits = p.logits + static_cast<int64_t>(blockIdx.x) * p.logits_stride;
  // By the thread that needs it, and early: it may come from the host's memory.
  const int32_t token = threadIdx.x == 0 ? __ldcg(p.tokens + blockIdx.x) : -1;
  float largest = logits[0];
  for (int v = static_cast<int>(threadIdx.x); v < p.vocab_size; v += kThreads)
    largest = fmaxf(largest, logits[v]);
  largest = over_block(largest, largest_of_warps, [](float a, float b) { return fmaxf(a, b); });
  float sum = 0.0f;
  for (int v = static_cast<int>(threadIdx.x); v < p.vocab_size; v += kThreads)
    sum += __expf(logits[v] - largest);
  sum = over_block(sum, sums_of_warps, [](float a, float b) { return a + b; });
  if (threadIdx.x != 0) return;
  p.probabilities[blockIdx.x] = token < 0 ? 0.0f : __expf(logits[token] - largest) / sum;
}

}  // namespace

void launch_token_probabilities(CUstream_st* stream, const TokenProbabilitiesLaunch& launch) {
  if (launch.num_rows == 0) return;
  launch_kernel(token_probabilities_kernel, dim3(launch.num_rows), dim3(kThreads), 0, stream, launch);
}

}  // namespace tensorfold::cuda
