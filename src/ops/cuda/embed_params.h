// What a launch of embed() is told: plain data shared by host and device. Device code includes no header with
// fmt or STL containers in it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/linear_layout.h"

struct CUstream_st;

namespace tensorfold::cuda {

struct EmbedLaunch {
  const int32_t* tokens;   ///< [T]
  const std::byte* table;  ///< [V, E] packed.
  void* out;               ///< [T, E] f32 or bf16.
  int64_t out_stride;      ///< Elements.
  int num_rows;
  int num_columns;
  float scale;
  LinearLayout layout;
  bool out_is_bf16;
};

void launch_embed(CUstream_st* stream, const EmbedLaunch& launch);

}  // namespace tensorfold::cuda
