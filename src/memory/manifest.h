// The manifest: every weight that a model needs, found in the checkpoint and checked, with the bytes it is
// made of. No tensor is read to make one. WeightTable fills it; loading, plans and `info` read it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "memory/weight.h"

namespace tensorfold {

/// Handles of declared weights; -1 means "this model has none" and may be tested, not leased.
struct LinearId {
  int32_t index = -1;
  explicit operator bool() const { return index >= 0; }
};
struct VectorId {
  int32_t index = -1;
  explicit operator bool() const { return index >= 0; }
};
struct ExpertsId {
  int32_t index = -1;
  explicit operator bool() const { return index >= 0; }
};

/// The group of weights that are leased together: a layer, or what lies outside the layers.
inline constexpr int kOutsideLayers = -1;

/// Bytes of a checkpoint's tensor: consecutive, or pieces at equal distances (every second row). `tensor` is
/// null where there is none; it lives in the Checkpoint.
struct TensorSlice {
  const TensorInfo* tensor = nullptr;
  int64_t first_byte = 0;    ///< From the start of the tensor.
  int64_t bytes = 0;         ///< Of all pieces.
  int64_t piece_bytes = 0;   ///< 0: one piece.
  int64_t stride_bytes = 0;  ///< From piece to piece.

  /// From the first byte to the last, what lies between the pieces included.
  int64_t span_bytes() const {
    return piece_bytes == 0 ? bytes : (bytes / piece_bytes - 1) * stride_bytes + piece_bytes;
  }
};

/// One matrix and where its parts are. Of a quantized matrix also the scales, and where the format has them
/// biases.
struct LinearBinding {
  int layer = kOutsideLayers;
  std::string name;  ///< "layer 3 k_proj": for messages.
  LinearSpec spec;
  TensorSlice weight;
  TensorSlice scales;
  TensorSlice biases;
  TensorSlice bias;  ///< [out] of bf16, f16 or f32: the `b` of y = W x + b.
  /// Of a float matrix stored [in, columns]: the distance of its outputs in a piece of `weight`, which is one
  /// input's outputs. Turned while loading. 0: stored [out, in].
  int64_t transposed_step = 0;
};

/// One vector [size] of bf16, f16 or f32, or a small matrix that kernels read as f32.
struct VectorBinding {
  int layer = kOutsideLayers;
  std::string name;
  TensorSlice values;
  int64_t size = 0;  ///< Elements.
  float added = 0;   ///< To every element, in f32: 1 for norms that are stored around zero.
  /// Of the view [num_rows, size / num_rows] when leased, stored transposed. 0: a vector [size].
  int64_t num_rows = 0;
};

/// The experts of one layer: runs of num_experts linears each, named by the index of their first one; no
/// gate: -1.
struct ExpertsBinding {
  int layer = kOutsideLayers;
  std::string name;  ///< "layer 3 mlp": for messages.
  int64_t num_experts = 0;
  int64_t num_experts_per_tok = 0;  ///< As ExpertsSpec.
  int64_t num_groups = 1;           ///< As ExpertsSpec.
  int32_t first_gate_proj = -1;
  int32_t first_up_proj = -1;
  int32_t first_down_proj = -1;
};

struct Manifest {
  std::string family;                   ///< Opens every message.
  std::vector<LinearBinding> linears;   ///< By LinearId::index, those of experts among them.
  std::vector<VectorBinding> vectors;   ///< By VectorId::index.
  std::vector<ExpertsBinding> experts;  ///< By ExpertsId::index.

  /// Layers that have weights: 1 + the highest layer.
  int num_layers() const;

  /// Bytes of checkpoint tensors that are read.
  int64_t checkpoint_bytes() const;
};

}  // namespace tensorfold
