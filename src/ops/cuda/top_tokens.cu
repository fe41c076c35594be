// top_tokens() on CUDA: the best of each slice of a row, then the best of those.
//
// A token is ranked by one number, larger first: its logit's key, then the token counted down; no two are
// equal. The best so far is taken k times over: each thread keeps the best of its own that is left, the block
// finds the best of these, and only the thread that had it looks for its next.
#include <cuda_runtime.h>

#include "ops/cuda/device/async.cuh"
#include "ops/cuda/device/launch.cuh"
#include "ops/cuda/sample_select.h"
#include "ops/cuda/top_tokens_params.h"

namespace tensorfold::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

/// 0: not to be found. A NaN comes before all others.
__device__ __forceinline__ uint64_t rank_of(float logit, int token) {
  const float x = sampling::canonical(logit);
  const uint32_t key = x != x ? static_cast<uint32_t>(kNanRank) : sampling::order_key(x);
  return key <= kMinusInfinityRank ? 0 : uint64_t{key} << 32 | (0xffffffffu - static_cast<uint32_t>(token));
}

__device__ __forceinline__ uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/// The block's largest, in every thread. Two calls in a row take different buffers.
__device__ __forceinline__ uint64_t largest_of_block(uint64_t (&buffer)[kWarps], uint64_t mine) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    mine = larger(mine, __shfl_xor_sync(~0u, mine, distance));
  if (threadIdx.x % 32 == 0) buffer[threadIdx.x / 32] = mine;
  __syncthreads();
  uint64_t largest = buffer[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) largest = larger(largest, buffer[i]);
  return largest;
}

/// Calls take(i, rank) for the k largest ranks, 0 where there are no more, on every thread. rank_at(j) is
/// that of element j < n, which is thread j % kThreads's.
template <class RankAt, class Take>
__device__ __forceinline__ void for_largest(int n, int k, const RankAt& rank_at, const Take& take) {
  __shared__ uint64_t buffers[2][kWarps];
  const auto best_up_to = [&](uint64_t limit) {
    uint64_t best = 0;
    for (int j = threadIdx.x; j < n; j += kThreads) {
      const uint64_t rank = rank_at(j);
      if (rank <= limit) best = larger(best, rank);
    }
    return best;
  };
  uint64_t mine = best_up_to(~uint64_t{0});
  for (int i = 0; i < k; ++i) {
    const uint64_t largest = largest_of_block(buffers[i % 2], mine);
    take(i, largest);
    if (largest != 0 && mine == largest) mine = best_up_to(largest - 1);
  }
}

/// Grid: x slices, y rows. Traffic: the logits once.
__global__ void __launch_bounds__(kThreads) top_of_slice_kernel(const __grid_constant__ TopTokensLaunch p) {
  __shared__ float slice[kTopSlice];
  launch_dependents();
  wait_for_previous_kernel();
  const int first = blockIdx.x * kTopSlice, n = min(kTopSlice, p.vocab_size - first);
  const float* logits = p.logits + blockIdx.y * p.logits_stride + first;
  // A thread reads again only what it has written itself.
  for (int j = threadIdx.x; j < n; j += kThreads) slice[j] = __ldcg(logits + j);
  uint64_t* out = p.partial + (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * p.k;
  for_largest(
      n, p.k, [&](int j) { return rank_of(slice[j], first + j); },
      [&](int i, uint64_t rank) {
        if (threadIdx.x == 0) out[i] = rank;
      });
}

/// Grid: rows. Traffic: k ranks a slice, a few times.
__global__ void __launch_bounds__(kThreads)
    top_of_row_kernel(const __grid_constant__ TopTokensLaunch p, int slices) {
  launch_dependents();
  wait_for_previous_kernel();
  const int n = slices * p.k;
  const uint64_t* partial = p.partial + int64_t{blockIdx.x} * n;
  int32_t* tokens = p.tokens + int64_t{blockIdx.x} * p.k;
  float* values = p.values + int64_t{blockIdx.x} * p.k;
  bool has_nan = false;
  for_largest(
      n, p.k, [&](int j) { return __ldcg(partial + j); },
      [&](int i, uint64_t rank) {
        if (i == 0) has_nan = rank >> 32 == kNanRank;
        if (threadIdx.x != 0) return;
        const bool is_none = has_nan || rank == 0;
        tokens[i] = is_none ? -1 : static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(rank));
        values[i] = is_none ? bits_as<float>(0xff800000u) : logit_of_key(static_cast<uint32_t>(rank >> 32));
      });
}

}  // namespace

void launch_top_tokens(CUstream_st* stream, const TopTokensLaunch& p) {
  if (p.num_rows == 0) return;
  const int slices = num_top_slices(p.vocab_size);
  launch_kernel(top_of_slice_kernel, dim3(slices, p.num_rows), kThreads, 0, stream, p);
  launch_kernel(top_of_row_kernel, p.num_rows, kThreads, 0, stream, p, slices);
}

}  // namespace tensorfold::cuda
