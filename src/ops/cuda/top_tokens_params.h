// What a launch of top_tokens() is told: plain data shared by host and device.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace tensorfold::cuda {

/// Logits that one block looks through.
inline constexpr int kTopSlice = 8192;

constexpr int num_top_slices(int vocab_size) { return (vocab_size + kTopSlice - 1) / kTopSlice; }

struct TopTokensLaunch {
  const float* logits;  ///< [R, V]
  int64_t logits_stride;
  uint64_t* partial;  ///< [R][slices][k] scratch: the best of each slice.
  int32_t* tokens;    ///< [R, k]
  float* values;      ///< [R, k]
  int num_rows;
  int vocab_size;
  int k;
};

void launch_top_tokens(CUstream_st* stream, const TopTokensLaunch& launch);

}  // namespace tensorfold::cuda
