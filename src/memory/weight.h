// What a weight is to a kernel, and how a backend says where its bytes go. Formats describe checkpoints,
// backends describe their own layout; these structs are where the two meet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/dtype.h"
#include "base/status.h"
#include "base/view.h"

namespace tensorfold {

enum class WeightFormat : uint8_t {
  kFloat,   ///< Plain elements of `dtype`: bf16, f16 or f32.
  kAffine,  ///< MLX affine groups: w = scale * q + bias, q unsigned of `bits` bits; `dtype` is that of scale
            ///< and bias.
  kMxfp4,   ///< Blocks of 32 E2M1 values with an E8M0 scale (OCP MX 1.0).
};

/// The shape and number format of one linear layer's matrix W [out, in], independent of any backend.
struct LinearSpec {
  int64_t out = 0;
  int64_t in = 0;
  WeightFormat format = WeightFormat::kFloat;
  DType dtype = DType::kBF16;
  int bits = 16;       ///< Of one weight.
  int group_size = 0;  ///< Weights per scale along `in`; 0 for kFloat. Divides `in`.

  friend bool operator==(const LinearSpec&, const LinearSpec&) = default;
};

/// "affine 4-bit g64 bf16 [1536, 576]": for messages and `inspect`.
std::string to_string(const LinearSpec& spec);

/// One matrix in checkpoint order, rows contiguous: what packing starts from. `scales` and `biases` are empty
/// where the format has none. Row r of `weight` has in*bits/8 bytes, of `scales` and `biases` in/group_size
/// elements.
struct LinearSource {
  std::span<const std::byte> weight;
  std::span<const std::byte> scales;
  std::span<const std::byte> biases;
};

/// One matrix in a backend's layout, resident on its device. Copyable; owns nothing.
struct LinearWeight {
  LinearSpec spec;
  const std::byte* data = nullptr;  ///< packed_bytes(spec) bytes, aligned to 64.
  const float* bias = nullptr;      ///< [out] f32 on the device, or null: the `b` of y = W x + b.
};

/// The experts of one MoE layer: [num_experts] matrices each, gate and up [I, E], down [E, I]; gate_proj is
/// empty where the experts have none.
struct ExpertsWeight {
  int64_t num_experts = 0;
  std::span<const LinearWeight> gate_proj;
  std::span<const LinearWeight> up_proj;
  std::span<const LinearWeight> down_proj;
};

/// A sparse layer, independent of any backend: X experts of one shape and format, of which a router chooses k
/// for each row.
struct ExpertsSpec {
  int64_t num_experts = 0;          ///< X.
  int64_t num_experts_per_tok = 0;  ///< k.
  int64_t num_groups = 1;           ///< In which the router chooses.
  LinearSpec gate_proj;             ///< [I, E] of one expert; out 0 where the experts have none.
  LinearSpec up_proj;               ///< [I, E].
  LinearSpec down_proj;             ///< [E, I].
};

/// How a backend lays a matrix out in the order its kernels read. Implemented by each ops backend.
/// Thread-safe.
class WeightPacker {
 public:
  virtual ~WeightPacker() = default;

  /// Whether linear() of this backend takes the spec; otherwise kUnsupported naming the spec.
  virtual Status check_linear(const LinearSpec& spec) const = 0;

  /// Whether route() and experts() of this backend take such a layer; otherwise kUnsupported naming what they
  /// do not. Its matrices are for check_linear().
  virtual Status check_experts(const ExpertsSpec& spec) const {
    (void)spec;
    return {};
  }

  /// Bytes of the packed matrix, a multiple of 64.
  virtual int64_t packed_bytes(const LinearSpec& spec) const = 0;

  /// Writes packed_bytes(spec) bytes to `packed`, which is host memory; every byte is written.
  virtual void pack(const LinearSpec& spec, const LinearSource& source,
                    std::span<std::byte> packed) const = 0;
};

}  // namespace tensorfold
