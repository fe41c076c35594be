// dynamic_conv() on CUDA, bound by launches: a block has few rows. Formula: Ops::dynamic_conv().
#include <cuda_runtime.h>

#include "ops/cuda/device/async.cuh"
#include "ops/cuda/device/launch.cuh"
#include "ops/cuda/device/values.cuh"
#include "ops/cuda/dynamic_conv_params.h"

namespace tensorfold::cuda {
namespace {

constexpr int kThreads = 256;

/// Grid: x channels, y rows of a sequence, z sequences. A thread: one channel of one row. Traffic: x and the
/// base once a tap (later taps find both in L2), the row's additions and out once.
__global__ void __launch_bounds__(kThreads) dynamic_conv_kernel(const __grid_constant__ DynamicConvLaunch p) {
  launch_dependents();
  wait_for_previous_kernel();
  const AttentionSequence s = p.sequences[blockIdx.z];
  const int channel = blockIdx.x * kThreads + threadIdx.x, r = blockIdx.y;
  if (channel >= p.num_channels || r >= s.num_rows) return;
  const int64_t t = s.first_row + r;
  const int num_groups = p.num_channels / p.group_size;
  const float* dynamic = p.dynamic + t * p.dynamic_stride + channel / p.group_size;
  float y = 0.0f;
  for (int o = 0; o < p.num_taps && o <= r; ++o) {
    const float weight = __fadd_rn(p.base[o * p.base_stride + channel], dynamic[o * num_groups]);
    y = __fmaf_rn(weight, p.x[(t - o) * p.x_stride + channel], y);
  }
  const int64_t at = t * p.out_stride + channel;
  if (p.is_bf16) {
    static_cast<uint16_t*>(p.out)[at] = float_to_bf16(y);
  } else {
    float* out = static_cast<float*>(p.out) + at;
    *out = p.accumulates ? __fadd_rn(*out, y) : y;
  }
}

}  // namespace

void launch_dynamic_conv(CUstream_st* stream, const DynamicConvLaunch& p) {
  if (p.num_sequences == 0 || p.max_rows == 0 || p.num_channels == 0) return;
  const dim3 grid((p.num_channels + kThreads - 1) / kThreads, p.max_rows, p.num_sequences);
  launch_kernel(dynamic_conv_kernel, grid, kThreads, 0, stream, p);
}

}  // namespace tensorfold::cuda
