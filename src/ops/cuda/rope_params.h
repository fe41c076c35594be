// What the launches of rope_table() and qk_norm_rope() are told: plain data shared by host and device. Device
// code includes no header with fmt or STL containers in it.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace tensorfold::cuda {

/// head_dim of qk_norm_rope(): a warp keeps a head in registers.
inline constexpr int kMaxRopeHeadDim = 256;

struct RopeTableLaunch {
  const int32_t* positions;  ///< [T]
  const double* inv_freq;    ///< [R/2]
  double multiplier;
  float* cos;  ///< [T, R/2]
  float* sin;
  int64_t cos_stride, sin_stride;  ///< Elements.
  int num_rows;
  int half;  ///< R/2.
};

/// The heads of q, or of k.
struct RopeHeads {
  const float* in;                ///< [T, num_heads, D], heads head_stride apart.
  uint16_t* out;                  ///< [T, num_heads * D] bf16.
  const float* norm;              ///< [D], or null for none.
  int64_t in_stride, out_stride;  ///< Elements between rows.
  int64_t head_stride;
  int num_heads;
};

struct QkNormRopeLaunch {
  RopeHeads q, k;
  const float* cos;  ///< [T, R/2]
  const float* sin;
  int64_t cos_stride, sin_stride;  ///< Elements.
  int num_rows;
  int head_dim;
  int half;          ///< R/2, 0 for no rotation.
  float reciprocal;  ///< 1 / D.
  float eps;
};

void launch_rope_table(CUstream_st* stream, const RopeTableLaunch& launch);
void launch_qk_norm_rope(CUstream_st* stream, const QkNormRopeLaunch& launch);

}  // namespace tensorfold::cuda
