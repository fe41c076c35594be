// What the launches of rms_norm() and gated_rms_norm() are told: plain data shared by host and device. Device
// code includes no header with fmt or STL containers in it.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace tensorfold::cuda {

/// Elements of a row of rms_norm(), or of a group of gated_rms_norm(): they are kept in registers.
inline constexpr int kMaxNormColumns = 16384;

struct RmsNormLaunch {
  const float* x;                ///< [T, E]
  const float* weight;           ///< [E]
  void* out;                     ///< [T, E] f32 or bf16.
  int64_t x_stride, out_stride;  ///< Elements.
  int num_rows;
  int num_columns;
  float reciprocal;  ///< 1 / E.
  float eps;
  bool out_is_bf16;
  bool accumulate;  ///< Adds to out, which is f32.
};

struct GatedRmsNormLaunch {
  const float* x;                             ///< [T, n]
  const float* gate;                          ///< [T, n]
  const float* weight;                        ///< Of the first group.
  uint16_t* out;                              ///< [T, n] bf16.
  int64_t x_stride, gate_stride, out_stride;  ///< Elements.
  int num_rows;
  int num_groups;  ///< Of a row.
  int group_size;
  int weight_stride;  ///< From a group's weights to the next's: group_size, or 0 where all groups share them.
  float reciprocal;   ///< 1 / group_size.
  float eps;
  bool gates_first;
};

void launch_rms_norm(CUstream_st* stream, const RmsNormLaunch& launch);
void launch_gated_rms_norm(CUstream_st* stream, const GatedRmsNormLaunch& launch);

}  // namespace tensorfold::cuda
