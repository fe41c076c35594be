// The packed layout one weight at a time: pack() and the accessors of PackedMatrix.
#include <cstring>

#include "base/bf16.h"
#include "base/check.h"
#include "base/mxfp4.h"
#include "ops/reference/packed_matrix.h"
#include "ops/reference/reference_ops.h"

namespace tensorfold {
namespace reference {
namespace {

float load_float(DType dtype, const std::byte* address) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, address, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, address, sizeof bits);
  return dtype == DType::kBF16 ? to_float(bf16{bits}) : to_float(f16{bits});
}

uint16_t load_half_word(const std::byte* address) {
  uint16_t word;
  std::memcpy(&word, address, sizeof word);
  return word;
}

/// Value `index` of a row in checkpoint order: bits index*b .. index*b+b-1 of the row's bytes, lowest first.
uint32_t source_integer(const std::byte* row, int64_t index, int bits) {
  uint32_t value = 0;
  for (int b = 0; b < bits; ++b) {
    const int64_t bit = index * bits + b;
    value |= (static_cast<uint32_t>(row[bit / 8]) >> (bit % 8) & 1u) << b;
  }
  return value;
}

void pack_float(const LinearSpec& spec, const LinearLayout& layout, const LinearSource& source,
                std::byte* packed) {
  const int64_t size = dtype_bytes(spec.dtype);
  for (int64_t o = 0; o < spec.out; ++o) {
    for (int64_t k = 0; k < spec.in; ++k) {
      std::memcpy(packed + packed_float_offset(spec, layout, o, k),
                  source.weight.data() + (o * spec.in + k) * size, static_cast<size_t>(size));
    }
  }
}

void put_integer(const LinearSpec& spec, const LinearLayout& layout, int64_t o, int64_t k, uint32_t value,
                 std::byte* packed) {
  const FieldPieces pieces = field_pieces(spec.bits, static_cast<int>(k % kUnitColumns / 2));
  value ^= field_inversion(spec.bits);
  for (int i = 0; i < pieces.size; ++i) {
    const FieldPiece& piece = pieces.piece[static_cast<size_t>(i)];
    std::byte* address = packed + packed_field_offset(layout, o, k, piece);
    const uint32_t part = value & ((1u << piece.count) - 1);
    const auto word = static_cast<uint16_t>(load_half_word(address) | part << piece.bit);
    std::memcpy(address, &word, sizeof word);
    value >>= piece.count;
  }
}

void pack_affine(const LinearSpec& spec, const LinearLayout& layout, const LinearSource& source,
                 std::byte* packed) {
  const int64_t groups = spec.in / spec.group_size, size = dtype_bytes(spec.dtype);
  for (int64_t o = 0; o < spec.out; ++o) {
    for (int64_t g = 0; g < groups; ++g) {
      std::byte* scale = packed + packed_scale_offset(spec, layout, o, g);
      std::memcpy(scale, source.scales.data() + (o * groups + g) * size, static_cast<size_t>(size));
      std::memcpy(scale + layout.scale_bytes, source.biases.data() + (o * groups + g) * size,
                  static_cast<size_t>(size));
    }
    const std::byte* row = source.weight.data() + o * spec.in * spec.bits / 8;
    for (int64_t k = 0; k < spec.in; ++k)
      put_integer(spec, layout, o, k, source_integer(row, k, spec.bits), packed);
  }
}

void pack_mxfp4(const LinearSpec& spec, const LinearLayout& layout, const LinearSource& source,
                std::byte* packed) {
  const int64_t blocks = spec.in / kMxfp4BlockSize;
  for (int64_t o = 0; o < spec.out; ++o) {
    for (int64_t g = 0; g < blocks; ++g) {
      const uint16_t scale =
          e8m0_bf16_bits(static_cast<uint8_t>(source.scales[static_cast<size_t>(o * blocks + g)]));
      std::memcpy(packed + packed_scale_offset(spec, layout, o, g), &scale, sizeof scale);
    }
    const std::byte* row = source.weight.data() + o * spec.in / 2;
    for (int64_t k = 0; k < spec.in; ++k)
      put_integer(spec, layout, o, k, source_integer(row, k, spec.bits), packed);
  }
}

}  // namespace

float PackedMatrix::element(int64_t output, int64_t column) const {
  return load_float(spec_.dtype, data_ + packed_float_offset(spec_, layout_, output, column));
}

uint32_t PackedMatrix::integer(int64_t output, int64_t column) const {
  const FieldPieces pieces = field_pieces(spec_.bits, static_cast<int>(column % kUnitColumns / 2));
  uint32_t value = 0;
  for (int i = 0, at = 0; i < pieces.size; ++i) {
    const FieldPiece& piece = pieces.piece[static_cast<size_t>(i)];
    const uint32_t word = load_half_word(data_ + packed_field_offset(layout_, output, column, piece));
    value |= (word >> piece.bit & ((1u << piece.count) - 1)) << at;
    at += piece.count;
  }
  return value ^ field_inversion(spec_.bits);
}

float PackedMatrix::unscaled(int64_t output, int64_t column) const {
  const uint32_t value = integer(output, column);
  return spec_.format == WeightFormat::kMxfp4 ? e2m1_value(value) : static_cast<float>(value);
}

float PackedMatrix::scale(int64_t output, int64_t group) const {
  return load_float(spec_.dtype, data_ + packed_scale_offset(spec_, layout_, output, group));
}

float PackedMatrix::bias(int64_t output, int64_t group) const {
  return load_float(spec_.dtype,
                    data_ + packed_scale_offset(spec_, layout_, output, group) + layout_.scale_bytes);
}

}  // namespace reference

Status ReferenceOps::check_linear(const LinearSpec& spec) const { return check_linear_layout(spec); }

int64_t ReferenceOps::packed_bytes(const LinearSpec& spec) const { return LinearLayout(spec).packed_bytes(); }

void ReferenceOps::pack(const LinearSpec& spec, const LinearSource& source,
                        std::span<std::byte> packed) const {
  const LinearLayout layout(spec);
  TF_CHECK(static_cast<int64_t>(packed.size()) == layout.packed_bytes());
  std::memset(packed.data(), 0, packed.size());
  // Outputs that fill up the last panel are those of zeros (for 8 bits: of the code that inverts to zero).
  if (spec.format == WeightFormat::kAffine) {
    reference::pack_affine(spec, layout, source, packed.data());
  } else if (spec.format == WeightFormat::kMxfp4) {
    reference::pack_mxfp4(spec, layout, source, packed.data());
  } else {
    reference::pack_float(spec, layout, source, packed.data());
  }
}

}  // namespace tensorfold
