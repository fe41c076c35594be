// MLX's packed weights (specs/mlx-quantization.md §1-§4): checking a module's tensors, unpacking and packing
// rows, and quantizing floats. Everything here is in checkpoint order; what kernels read is the backends'
// business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "formats/quantization_config.h"
#include "formats/safetensors.h"

namespace tensorfold {

/// A module `P.weight` [..., out, in] packed in affine groups: value i of a row is scale * q + bias with the
/// scale and bias of group i / group_size. Scales may be negative; the bias is the value at q = 0, not a zero
/// point. Row bytes: weight in*bits/8 (a multiple of 4), scales and biases in/group_size elements each.
struct AffineTensor {
  std::vector<int64_t>
      batch_shape;  ///< Leading axes: [num_experts] of stacked experts; empty for one matrix.
  int64_t out = 0;
  int64_t in = 0;
  int bits = 0;                      ///< 2, 3, 4, 5, 6 or 8.
  int group_size = 0;                ///< 32, 64 or 128; divides `in`.
  DType scale_dtype = DType::kBF16;  ///< Of scales and biases: bf16, f16 or f32.

  int64_t row_bytes() const { return in * bits / 8; }
  int64_t groups_per_row() const { return in / group_size; }
};

/// The three tensors of a module; `biases` is null where the checkpoint has none.
struct PackedModule {
  std::string_view name;
  const TensorInfo* weight = nullptr;
  const TensorInfo* scales = nullptr;
  const TensorInfo* biases = nullptr;
};

/// Checks dtypes and shapes of a module against `expected` (what config.json says). Where the shapes
/// contradict its bits but fit another width at its group size, that width is taken: overrides go missing
/// from configs. Modes other than affine are kUnsupported by name; anything else that does not fit is
/// kCorrupt, with the shapes.
Result<AffineTensor> describe_affine(const PackedModule& module, const ModuleQuantization& expected);

/// Whether affine packing has this width / group size.
bool is_affine_bits(int64_t bits);
bool is_affine_group_size(int64_t group_size);

/// Value i of a packed row: bits i*bits .. i*bits+bits-1 of its bytes, lowest first. Reads only bytes of the
/// value.
uint32_t packed_value(std::span<const std::byte> row, int bits, int64_t i);

/// All values of a packed row. values.size() is a multiple of 8 and row.size() == values.size() * bits / 8.
void unpack_row(std::span<const std::byte> row, int bits, std::span<uint8_t> values);

/// The inverse. Values must be below 2^bits (TF_DCHECK).
void pack_row(std::span<const uint8_t> values, int bits, std::span<std::byte> row);

/// How to quantize one row, and where to: spans of the caller.
struct QuantizedRow {
  std::span<uint8_t> values;  ///< [in]
  std::span<float> scales;    ///< [in / group_size]
  std::span<float> biases;    ///< [in / group_size]
};

/// Quantizes a row as MLX does on the CPU (§4: fp32, ties to even): per group, the end of larger magnitude
/// and zero are kept exactly. Scales and biases are unrounded; the caller rounds them to their dtype.
/// weights.size() is a multiple of group_size; values must be finite.
void quantize_row(std::span<const float> weights, int bits, int group_size, const QuantizedRow& result);

}  // namespace tensorfold
