// The packed layout of weights on CUDA: where every element lies, and its value. Plain functions for the
// host, which packs, and for kernels that read single elements; the kernels of linear() stream it
// (device/linear_operand.cuh).
//
//   matrix = tiles of 16 outputs; the last one is filled up with zeros
//   tile   = units, in the order of UnitOrder
//   unit   = 64 columns (128 with groups of 128; short ones are filled up with zeros): its chunks of 64
//            columns, then the scales of its groups, so that any run of units is one copy
//   chunk  = four steps of 16 columns, each the A operand of one m16n8k16. In a step lane l of a warp owns
//            what the instruction wants of it: rows l/4 and l/4 + 8, columns 2*(l%4) + {0, 1, 8, 9}; its
//            registers are r0 (row, low columns), r1 (row + 8, low), r2 (row, high), r3 (row + 8, high), two
//            elements each.
//
//   bf16, f16: a step is 512 bytes, lane l's four registers at 16*l. f32: 1,024 bytes, r0 and r1 of lane l at
//   16*l, r2 and r3 512 bytes on.
//
//   Integers of n bits: a lane's share of a chunk is 16 fields, one a register (field 4*step + register), in
//   n words. A field has its first element in a word's low half and its second at the same place of the high
//   half, so that one `and` cuts out both. Where they lie in a half: field_bit(). The words of all lanes:
//   word_offset().
//
//   Scales and biases of an affine group: 16 x {scale, bias}, rows in the order 0, 8, 1, 9, ..., so that a
//   lane's two rows are one load. MXFP4: a byte for each row and block, in the order [row % 8][block][row /
//   8].
//
// Integers cost nothing to turn into bf16 where they lie: a field alone in bits 0..7 of a half, with its
// lowest bit at p, *is* the bf16 number q * 2^(p - 133), denormal or barely normal, so what is left is to
// multiply. Formats whose weights are rounded to bf16 (arithmetic.md) with bf16 scales therefore store the
// scale times 2^133 (rows 0..7 of a tile, whose fields are cut out at bit 0) or 2^(133 - n) (rows 8..15, at
// bit n). So that this stays a number, weights are computed times 2^-32 (kResultShift) and the finished sum
// times 2^32; both are exact: products scaled by a power of two round alike. (Scales from 2^27 on become
// infinite, and weights below 2^-94 lose bits.) MXFP4 does the same: a code's magnitude at bits 6..8 of a
// half is its value times 2^-126.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/contract_math.h"

namespace tensorfold::cuda {

inline constexpr int kLinearSegments = 8;
inline constexpr int kLinearTileRows = 16;
inline constexpr int kLinearChunkColumns = 64;
/// See above: what weights rounded to bf16 are scaled by, and sums are scaled back by.
inline constexpr int kResultShift = 32;

enum class LinearFormat : uint8_t { kBf16, kF16, kF32, kAffine, kMxfp4 };
/// Of affine groups.
enum class ScaleType : uint8_t { kBf16, kF16, kF32 };

/// How one matrix is packed, apart from its size. Equal layouts share kernels and launches.
struct LinearLayout {
  LinearFormat format = LinearFormat::kBf16;
  ScaleType scale_type = ScaleType::kBf16;  ///< kAffine only.
  uint8_t bits = 16;                        ///< Of an element as stored.
  uint8_t group_size = 0;                   ///< Columns; 0 for floats.

  friend bool operator==(const LinearLayout&, const LinearLayout&) = default;

  TF_CONTRACT_FUNCTION constexpr int unit_columns() const { return group_size > 64 ? group_size : 64; }
  TF_CONTRACT_FUNCTION constexpr int unit_chunks() const { return unit_columns() / kLinearChunkColumns; }
  TF_CONTRACT_FUNCTION constexpr int chunk_bytes() const { return 128 * bits; }
  TF_CONTRACT_FUNCTION constexpr int unit_weight_bytes() const { return unit_chunks() * chunk_bytes(); }
  TF_CONTRACT_FUNCTION constexpr int scale_bytes() const { return scale_type == ScaleType::kF32 ? 4 : 2; }
  /// Of one group's scales (and biases) for the 16 rows of a tile.
  TF_CONTRACT_FUNCTION constexpr int group_bytes() const {
    if (format == LinearFormat::kMxfp4) return 16;
    return format == LinearFormat::kAffine ? 32 * scale_bytes() : 0;
  }
  TF_CONTRACT_FUNCTION constexpr int unit_bytes() const {
    return unit_weight_bytes() + (group_size > 0 ? unit_columns() / group_size * group_bytes() : 0);
  }
  /// Whether weights are rounded to bf16 and kept times 2^-kResultShift, their scales as written above.
  TF_CONTRACT_FUNCTION constexpr bool is_prescaled() const {
    return format == LinearFormat::kMxfp4 ||
           (format == LinearFormat::kAffine && bits <= 4 && scale_type == ScaleType::kBf16);
  }
  /// Whether the integers are kept and scale and bias applied to a group's sum.
  TF_CONTRACT_FUNCTION constexpr bool keeps_integers() const {
    return format == LinearFormat::kAffine && bits > 4;
  }

  /// Units of a row of `in` columns, and bytes of a tile.
  TF_CONTRACT_FUNCTION constexpr int64_t units(int64_t in) const {
    return (in + unit_columns() - 1) / unit_columns();
  }
  TF_CONTRACT_FUNCTION constexpr int64_t tile_bytes(int64_t in) const { return units(in) * unit_bytes(); }
};

/// The order of a tile's units. Its columns are eight segments (ops/cuda/linear.h), which
/// decoding multiplies side by side. They lie in pairs, one pair after the other; of a pair the first unit of
/// both, then the second of both, and so on: what is multiplied next is a run of memory. Segments have
/// `per_segment` units, but for the last one that has any; those behind it have none.
struct UnitOrder {
  int units, per_segment;

  TF_CONTRACT_FUNCTION explicit constexpr UnitOrder(int units_)
      : units(units_), per_segment((units_ + kLinearSegments - 1) / kLinearSegments) {}
  /// Units of a segment.
  TF_CONTRACT_FUNCTION constexpr int length(int segment) const {
    const int left = units - segment * per_segment;
    return left < 0 ? 0 : left < per_segment ? left : per_segment;
  }
  /// Where a segment begins, in units.
  TF_CONTRACT_FUNCTION constexpr int first(int segment) const {
    return (segment - segment % 2) * per_segment + segment % 2;
  }
  /// How far from there its unit `unit` lies; `odd_length`: units of the second segment of its pair.
  TF_CONTRACT_FUNCTION static constexpr int offset(int unit, int odd_length) {
    return unit + (unit < odd_length ? unit : odd_length);
  }
  TF_CONTRACT_FUNCTION constexpr int place(int segment, int unit) const {
    return first(segment) + offset(unit, length(segment - segment % 2 + 1));
  }
  /// Of a unit counted in increasing column.
  TF_CONTRACT_FUNCTION constexpr int place(int unit) const {
    return place(unit / per_segment, unit % per_segment);
  }
};

/// An element's place in its chunk: the lane and register that own it, and which half of the register.
struct FragmentPlace {
  int lane, step, reg, half;
};
TF_CONTRACT_FUNCTION constexpr FragmentPlace fragment_place(int row, int column) {
  return {.lane = row % 8 * 4 + column % 8 / 2,
          .step = column / 16,
          .reg = column % 16 / 8 * 2 + row / 8,
          .half = column % 2};
}
/// The inverse: row of the tile and column of the chunk.
TF_CONTRACT_FUNCTION constexpr int fragment_row(const FragmentPlace& p) { return p.lane / 4 + p.reg % 2 * 8; }
TF_CONTRACT_FUNCTION constexpr int fragment_column(const FragmentPlace& p) {
  return p.step * 16 + p.reg / 2 * 8 + p.lane % 4 * 2 + p.half;
}

/// A bit of a half word.
struct FieldBit {
  int word, bit;
};

/// Where bit b of integer field `field` (0..15) lies. 2, 4 and 8 bits fill the halves. With 3 and 6 bits
/// twelve fields fill bits 0..11 of the words, a step or half a step each, and the four bits above, three
/// words together, hold twelve bits more of the same form. With 5 bits three fields fill a half and the last
/// one has the top bits.
TF_CONTRACT_FUNCTION constexpr FieldBit field_bit(int bits, int field, int b) {
  if (bits == 5) {
    if (field == 15) return {b, 15};
    return {field / 3, field % 3 * 5 + b};
  }
  if (bits == 3 || bits == 6) {
    const int per_word = 12 / bits;
    if (field < 12) return {field / per_word, field % per_word * bits + b};
    const int at = (field - 12) % per_word * bits + b, gathered = (field - 12) / per_word;
    return {gathered * 3 + at / 4, 12 + at % 4};
  }
  const int per_word = 16 / bits;
  return {field / per_word, field % per_word * bits + b};
}

/// Where bit b of an MXFP4 code lies in its step's word (b = 3 is the sign): those of registers 0, 1 and 2
/// come to bits 15 and 6..8 of a half by a shift to the left of 3 * register; register 3 has the bits left
/// over.
TF_CONTRACT_FUNCTION constexpr int mxfp4_bit(int reg, int b) {
  if (reg < 3) return (b == 3 ? 15 : 6 + b) - 3 * reg;
  return b == 3 ? 14 : b == 2 ? 13 : 10 + b;
}

/// Bytes from a chunk's start to word `word` of a lane: all lanes' runs of four words, then their runs of the
/// two and of the one left over, so that each run is one load.
TF_CONTRACT_FUNCTION constexpr int word_offset(int bits, int lane, int word) {
  const int fours = bits / 4, rest = bits % 4, in_rest = word - 4 * fours;
  if (word < 4 * fours) return word / 4 * 512 + lane * 16 + word % 4 * 4;
  if (rest == 1) return fours * 512 + lane * 4;
  if (in_rest < 2) return fours * 512 + lane * 8 + in_rest * 4;
  return fours * 512 + 256 + lane * 4;
}

/// Bytes from a chunk's start to a float element.
TF_CONTRACT_FUNCTION constexpr int float_offset(int bits, const FragmentPlace& p) {
  if (bits == 16) return p.step * 512 + p.lane * 16 + p.reg * 4 + p.half * 2;
  return p.step * 1024 + p.reg / 2 * 512 + p.lane * 16 + p.reg % 2 * 8 + p.half * 4;
}

/// Bytes from a unit's start to the scale of row `row` in the unit's group `group`; an affine bias follows
/// its scale.
TF_CONTRACT_FUNCTION constexpr int scale_offset(const LinearLayout& layout, int row, int group) {
  if (layout.format == LinearFormat::kMxfp4)
    return layout.unit_weight_bytes() + row % 8 * 4 + group * 2 + row / 8;
  return layout.unit_weight_bytes() + group * layout.group_bytes() +
         (row % 8 * 2 + row / 8) * 2 * layout.scale_bytes();
}

/// The power of two that the stored scale of row `row` of a tile is above the real one (is_prescaled(),
/// affine).
TF_CONTRACT_FUNCTION constexpr int scale_exponent(const LinearLayout& layout, int row) {
  return 133 - kResultShift - (row < 8 ? 0 : layout.bits);
}
/// What is added to an MXFP4 scale byte where it is stored: 126 for the denormal codes, less kResultShift.
/// The sum is the exponent field of a bf16; 255 (infinity) stands for every scale that does not fit.
inline constexpr int kMxfp4StoredOffset = 126 - kResultShift;

// Reading. Loads of single elements, for embed() and for tests.

TF_CONTRACT_FUNCTION uint32_t load_half_bits(const std::byte* at) {
  uint16_t bits;
  memcpy(&bits, __builtin_assume_aligned(at, 2), 2);
  return bits;
}
TF_CONTRACT_FUNCTION uint32_t load_word(const std::byte* at) {
  uint32_t bits;
  memcpy(&bits, __builtin_assume_aligned(at, 4), 4);
  return bits;
}
TF_CONTRACT_FUNCTION float bf16_value(uint32_t bits) { return bits_as<float>(bits << 16); }
/// 2^exponent, normal.
TF_CONTRACT_FUNCTION float power_of_two(int exponent) {
  return bits_as<float>(static_cast<uint32_t>(exponent + 127) << 23);
}
TF_CONTRACT_FUNCTION float f16_value(uint32_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u, fraction = bits & 1023u;
  if (exponent == 31) return bits_as<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent > 0) return bits_as<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}
/// A scale or bias as stored, `index` of its type further on.
TF_CONTRACT_FUNCTION float load_scale(ScaleType type, const std::byte* at, int index) {
  if (type == ScaleType::kF32) return bits_as<float>(load_word(at + 4 * index));
  const uint32_t bits = load_half_bits(at + 2 * index);
  return type == ScaleType::kF16 ? f16_value(bits) : bf16_value(bits);
}

/// Integer of an affine matrix or code of an MXFP4 one: of `place` in the chunk at `chunk`.
TF_CONTRACT_FUNCTION uint32_t packed_integer(const LinearLayout& layout, const std::byte* chunk,
                                             const FragmentPlace& place) {
  uint32_t q = 0;
  for (int b = 0; b < layout.bits; ++b) {
    const FieldBit at = layout.format == LinearFormat::kMxfp4
                            ? FieldBit{place.step, mxfp4_bit(place.reg, b)}
                            : field_bit(layout.bits, place.step * 4 + place.reg, b);
    const uint32_t word = load_word(chunk + word_offset(layout.bits, place.lane, at.word));
    q |= ((word >> (at.bit + 16 * place.half)) & 1u) << b;
  }
  return q;
}

/// The value of an E2M1 code.
TF_CONTRACT_FUNCTION float e2m1_code_value(uint32_t code) {
  const uint32_t exponent = (code >> 1) & 3u, fraction = code & 1u;
  const float magnitude = exponent == 0 ? 0.5f * static_cast<float>(fraction)
                                        : (1.0f + 0.5f * static_cast<float>(fraction)) *
                                              power_of_two(static_cast<int>(exponent) - 1);
  return (code & 8u) != 0 ? -magnitude : magnitude;
}

/// Element (row, column) of a packed matrix with `in` columns, in fp32 as embed() defines it: a float
/// converted, an affine one fma(scale, q, bias), an MXFP4 one 2^e * value.
TF_CONTRACT_FUNCTION float packed_element(const LinearLayout& layout, const std::byte* packed, int64_t in,
                                          int64_t row, int64_t column) {
  const int tile_row = static_cast<int>(row % kLinearTileRows);
  const int unit_column = static_cast<int>(column % layout.unit_columns());
  const UnitOrder order(static_cast<int>(layout.units(in)));
  const std::byte* unit =
      packed + row / kLinearTileRows * layout.tile_bytes(in) +
      int64_t{order.place(static_cast<int>(column / layout.unit_columns()))} * layout.unit_bytes();
  const std::byte* chunk = unit + unit_column / kLinearChunkColumns * layout.chunk_bytes();
  const FragmentPlace place = fragment_place(tile_row, unit_column % kLinearChunkColumns);
  if (layout.group_size == 0) {
    const std::byte* at = chunk + float_offset(layout.bits, place);
    if (layout.format == LinearFormat::kF32) return bits_as<float>(load_word(at));
    const uint32_t bits = load_half_bits(at);
    return layout.format == LinearFormat::kF16 ? f16_value(bits) : bf16_value(bits);
  }
  const uint32_t q = packed_integer(layout, chunk, place);
  const std::byte* scales = unit + scale_offset(layout, tile_row, unit_column / layout.group_size);
  if (layout.format == LinearFormat::kMxfp4) {
    const uint32_t stored = static_cast<uint32_t>(*scales);
    return bits_as<float>(stored << 23) * power_of_two(-kMxfp4StoredOffset) * e2m1_code_value(q);
  }
  float scale = load_scale(layout.scale_type, scales, 0), bias = load_scale(layout.scale_type, scales, 1);
  if (layout.is_prescaled()) {
    scale = scale * power_of_two(-scale_exponent(layout, tile_row));
    bias = bias * power_of_two(kResultShift);
  }
  return contract::fused(scale, static_cast<float>(q), bias);
}

}  // namespace tensorfold::cuda
