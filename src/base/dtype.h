// The element types of checkpoints and buffers: names, sizes, and the safetensors spelling of each.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tensorfold {

/// All dtypes of the safetensors format. Sub-byte types are packed, lowest bits first.
enum class DType : uint8_t {
  kBool, kU8, kI8, kF8E4M3, kF8E5M2, kF8E8M0, kF4, kF6E2M3, kF6E3M2,
  kU16, kI16, kF16, kBF16, kU32, kI32, kF32, kU64, kI64, kF64, kC64,
};

/// Bits of one element (4, 6 or a multiple of 8).
int dtype_bits(DType dtype);

/// Bytes of one element; TF_CHECKs that the dtype is made of whole bytes.
int64_t dtype_bytes(DType dtype);

/// The spelling of the safetensors header: "BF16", "F8_E4M3", ...
std::string_view dtype_name(DType dtype);

/// The inverse of dtype_name; nothing for an unknown spelling.
std::optional<DType> dtype_from_name(std::string_view name);

}  // namespace tensorfold
