// What a launch of dynamic_conv() is told: plain data shared by host and device.
#pragma once

#include "ops/cuda/attention_params.h"

namespace tensorfold::cuda {

struct DynamicConvLaunch {
  const AttentionSequence* sequences;  ///< Of the pass.
  int num_sequences;
  int max_rows;  ///< Of a sequence.
  int num_channels;
  int group_size;
  int num_taps;
  bool accumulates;
  bool is_bf16;                                               ///< `out`; else f32.
  const float* x;                                             ///< [T, C]
  const float* base;                                          ///< [taps, C]
  const float* dynamic;                                       ///< [T, taps*G]
  void* out;                                                  ///< [T, C]
  int64_t x_stride, base_stride, dynamic_stride, out_stride;  ///< Elements.
};

void launch_dynamic_conv(CUstream_st* stream, const DynamicConvLaunch& launch);

}  // namespace tensorfold::cuda
