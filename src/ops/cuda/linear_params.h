// What a launch of linear()'s kernels is told: plain data, shared by the host side (linear.cc) and the device side
// (linear.cu). Device code includes no header with fmt or STL containers in it: nvcc cannot compile fmt's.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace tensorfold::cuda {

inline constexpr int kLinearSegments = 8;
inline constexpr int kLinearTileRows = 16;
inline constexpr int kLinearChunkColumns = 64;
inline constexpr int kMaxLinearCalls = 4;  ///< Products of one x that share a launch.

enum class LinearLayout { kBf16, kAffine4G32, kAffine4G64, kAffine4G128 };

/// One matrix of a launch.
struct LinearDeviceCall {
  const std::byte* weights;
  const float* bias;        ///< Null for none.
  void* out;
  int64_t out_stride;       ///< Elements between rows of out.
  int out_size;
  int first_tile;           ///< Of the launch's tiles.
  bool out_is_bf16;
  bool accumulate;
};

struct LinearLaunch {
  LinearDeviceCall calls[kMaxLinearCalls];
  int num_calls;
  int num_tiles;           ///< Tiles of 16 outputs of all calls.
  int num_rows;
  int chunks;              ///< 64-column chunks of a padded row of weights.
  int chunks_per_segment;
  int64_t x_stride;        ///< Elements.
  const std::byte* x;      ///< bf16.
};

/// Launches the decode kernel: any number of rows, 16 at a time.
void launch_linear_decode(CUstream_st* stream, LinearLayout layout, const LinearLaunch& launch);

/// Launches the wide kernel: tiles of 128 outputs by 128 rows (sm_90).
void launch_linear_wide(CUstream_st* stream, LinearLayout layout, const LinearLaunch& launch);

}  // namespace tensorfold::cuda
