// What a launch of sample()'s kernel is told: plain data, shared by the host side (sample.cc) and the device
// side (sample.cu), which cannot include ops/ops.h.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace tensorfold::cuda {

/// SampleRow (ops/ops.h).
struct DeviceSampleRow {
  float temperature;
  int32_t top_k;
  float top_p;
  float min_p;
  uint64_t seed;
  int64_t pos;
};

/// All pointers are to device memory. Needs no scratch memory.
struct SampleLaunch {
  const float* logits;          ///< Row r begins at logits + r * logits_stride.
  int64_t logits_stride;        ///< Floats.
  const DeviceSampleRow* rows;  ///< [num_rows], read by the kernel: a graph may be replayed with others.
  int32_t* tokens;              ///< [num_rows]
  int32_t vocab_size;           ///< 1 .. kMaxSampleVocab.
  int32_t num_rows;
};

/// Blocks that share a row, as a cluster: the most that every sm_90 device can launch.
inline constexpr int kSampleBlocks = 8;
/// Logits that fit into a block's shared memory beside the sums.
inline constexpr int kMaxSampleSlice = 40960;
inline constexpr int kMaxSampleVocab = kSampleBlocks * kMaxSampleSlice;

/// One kernel, whatever the rows ask for.
void launch_sample(CUstream_st* stream, const SampleLaunch& launch);

/// The probabilities of Ops::sample(). All pointers are to device memory, or to what the device can reach.
struct TokenProbabilitiesLaunch {
  const float* logits;    ///< Row r begins at logits + r * logits_stride.
  int64_t logits_stride;  ///< Floats.
  const int32_t* tokens;  ///< [num_rows], each in [0, vocab_size) or -1.
  float* probabilities;   ///< [num_rows]
  int32_t vocab_size;
  int32_t num_rows;
};

void launch_token_probabilities(CUstream_st* stream, const TokenProbabilitiesLaunch& launch);

}  // namespace tensorfold::cuda
