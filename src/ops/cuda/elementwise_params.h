// What the launches of mlp_activation(), sigmoid_mul(), add_gated(), softcap() and gather_rows() are told:
// plain data shared by host and device. Device code includes no header with fmt or STL containers in it.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace tensorfold::cuda {

/// MlpActivation::Kind of ops.h, in its order.
enum class Activation : int32_t { kSilu, kGeluTanh, kClampedSilu, kRelu2 };

/// The elements that a launch computes. `width` neighbouring ones are a thread's: four, where all addresses
/// and strides allow loads of four and there are threads enough without splitting further; else one.
struct ElementShape {
  int num_rows;
  int num_columns;
  int width;
};

struct MlpActivationLaunch {
  ElementShape shape;  ///< [T, I]
  Activation kind;
  float alpha, limit;  ///< Of kClampedSilu.
  const float* gate;   ///< Null where the activation has none.
  const float* up;
  uint16_t* out;                               ///< bf16
  int64_t gate_stride, up_stride, out_stride;  ///< Elements.
};

struct SigmoidMulLaunch {
  ElementShape shape;  ///< [T, H*D]
  int head_dim;
  const uint16_t* x;                                            ///< bf16
  const float* gate;                                            ///< Heads gate_head_stride apart.
  uint16_t* out;                                                ///< bf16, may be x.
  int64_t x_stride, gate_stride, gate_head_stride, out_stride;  ///< Elements.
};

struct AddGatedLaunch {
  ElementShape shape;  ///< [T, E]
  const float* x;
  const float* gate;  ///< [T, 1]
  float* out;
  int64_t x_stride, gate_stride, out_stride;  ///< Elements.
};

struct SoftcapLaunch {
  ElementShape shape;  ///< [T, n]
  float limit;
  float* x;
  int64_t x_stride;  ///< Elements.
};

struct GatherRowsLaunch {
  const int32_t* rows;  ///< [R]
  const std::byte* x;
  std::byte* out;
  int64_t x_stride, out_stride;  ///< Units.
  int num_rows;                  ///< R
  int row_units;
  int unit_bytes;  ///< 16, 4, 2 or 1: the largest that addresses, strides and rows are multiples of. 0: a
                   ///< unit is an element, x f32, out bf16.
};

void launch_mlp_activation(CUstream_st* stream, const MlpActivationLaunch& launch);
void launch_sigmoid_mul(CUstream_st* stream, const SigmoidMulLaunch& launch);
void launch_add_gated(CUstream_st* stream, const AddGatedLaunch& launch);
void launch_softcap(CUstream_st* stream, const SoftcapLaunch& launch);
void launch_gather_rows(CUstream_st* stream, const GatherRowsLaunch& launch);

}  // namespace tensorfold::cuda
