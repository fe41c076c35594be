// causal_conv() on CUDA: the short convolution before a recurrence, bound by memory. Formula:
// Ops::causal_conv().
#include <cuda_runtime.h>

#include "ops/contract_math.h"
#include "ops/cuda/device/async.cuh"
#include "ops/cuda/device/launch.cuh"
#include "ops/cuda/recurrences_params.h"

namespace tensorfold::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kStepRows = 8;  ///< Loads in flight of a thread.

/// Rows of a thread: the kTaps - 1 rows before a run are read twice, so runs are long where there are enough
/// of them.
int run_rows_of(const CausalConvLaunch& p) { return p.max_rows > 2048 ? 64 : p.max_rows > 256 ? 16 : 8; }

/// Row r of what the taps reach: the kept rows are -kTail .. -1, then come the sequence's own.
template <int kTaps>
__device__ __forceinline__ float reached(const CausalConvLaunch& p, const RecurrentSequence& s,
                                         const float* kept, int channel, int r) {
  if (r >= 0) return p.x.data[(s.first_row + int64_t{r}) * p.x.stride + channel];
  return s.is_start ? 0.0f : kept[(r + kTaps - 1) * p.num_channels];
}

/// Grid: x channels, y runs of rows, z sequences. A thread: one channel, a run of rows. Traffic: x once (and
/// the kept rows or kTaps - 1 more a run), out once. The kept rows are those that an earlier pass left, which
/// has ended: the first run reads them while earlier kernels of this one run.
template <int kTaps>
__global__ void __launch_bounds__(kThreads)
    causal_conv_kernel(const __grid_constant__ CausalConvLaunch p, int run_rows) {
  constexpr int kTail = kTaps - 1;
  launch_dependents();
  const RecurrentSequence s = p.sequences[blockIdx.z];
  const int channel = blockIdx.x * kThreads + threadIdx.x, first = blockIdx.y * run_rows;
  if (channel >= p.num_channels || first >= s.num_rows) return wait_for_previous_kernel();
  float* kept = p.states + s.state_slot * p.slot_stride + channel;
  const int end = min(first + run_rows, s.num_rows);
  float weight[kTaps];
  float window[kTail + kStepRows];  // Rows t - kTail .. t + kStepRows - 1.
#pragma unroll
  for (int j = 0; j < kTaps; ++j) weight[j] = __ldg(p.weight.data + j * p.weight.stride + channel);
  const float bias = p.bias != nullptr ? __ldg(p.bias + channel) : 0.0f;
  if (first > 0) wait_for_previous_kernel();
#pragma unroll
  for (int j = 0; j < kTail; ++j) window[j] = reached<kTaps>(p, s, kept, channel, first - kTail + j);
  if (first == 0) wait_for_previous_kernel();

  const float* x = p.x.data + (s.first_row + int64_t{first}) * p.x.stride + channel;
  float* out = p.out + (s.first_row + int64_t{first}) * p.out_stride + channel;
  for (int t = first; t < end; t += kStepRows) {
#pragma unroll
    for (int i = 0; i < kStepRows; ++i) window[kTail + i] = t + i < end ? x[i * p.x.stride] : 0.0f;
#pragma unroll
    for (int i = 0; i < kStepRows; ++i) {
      float y = bias;
#pragma unroll
      for (int j = 0; j < kTaps; ++j) y = __fmaf_rn(weight[j], window[i + j], y);
      if (t + i < end) out[i * p.out_stride] = silu_f32(y);
    }
#pragma unroll
    for (int j = 0; j < kTail; ++j) window[j] = window[kStepRows + j];
    x += kStepRows * p.x.stride, out += kStepRows * p.out_stride;
  }

  // The thread that has read the kept rows is the one that writes them: no other may.
  if (first > 0 || s.num_stored == 0) return;
  float last[kTaps];
#pragma unroll
  for (int j = 0; j < kTail; ++j) last[j] = reached<kTaps>(p, s, kept, channel, s.num_stored - kTail + j);
#pragma unroll
  for (int j = 0; j < kTail; ++j) kept[j * p.num_channels] = last[j];
}

template <int kTaps>
void launch(CUstream_st* stream, const CausalConvLaunch& p) {
  const int run_rows = run_rows_of(p), runs = (p.max_rows + run_rows - 1) / run_rows;
  const dim3 grid((p.num_channels + kThreads - 1) / kThreads, runs, p.num_sequences);
  launch_kernel(causal_conv_kernel<kTaps>, grid, dim3(kThreads), 0, stream, p, run_rows);
}

}  // namespace

void launch_causal_conv(CUstream_st* stream, const CausalConvLaunch& p) {
  switch (p.num_taps) {
    case 1:
      return launch<1>(stream, p);
    case 2:
      return launch<2>(stream, p);
    case 3:
      return launch<3>(stream, p);
    case 4:
      return launch<4>(stream, p);
  }
}

}  // namespace tensorfold::cuda
