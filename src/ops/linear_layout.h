// Where a weight lies inside a packed matrix of the cpu and reference backends. One layout for every
// instruction set, so that a pack made on one CPU is read by another.
//
//   matrix  = panels of 32 outputs; the last one is filled up with zeros
//   panel   = chunks in increasing column: one sequential stream for whoever computes those outputs
//   chunk   = affine: one group:  scales [32], biases [32] (spec.dtype), then its units of 32 columns
//             mxfp4:  one group:  scales [32] as bf16, then its unit of 4 bits, whose integers are E2M1 codes
//             float:  16-bit: two columns; f32: one pair of columns as well, so that all count pairs
//   unit    = `bits` vectors of 32 words of 32 bits; word o belongs to output o. A word's low half holds
//   fields of
//             even columns and its high half those of odd columns, at the same bit: shifting a vector right
//             by that bit leaves, in every word, a pair of columns to be looked up as the pair of bf16 that
//             VDPBF16PS takes.
//   pair    = 16-bit floats: [32] words (even column low, odd column high); f32: [2][32] elements
//
// Which fields a step (pair of columns) of a unit has: field_pieces(). Everything is a multiple of 64 bytes.
#pragma once

#include <array>
#include <cstdint>

#include "memory/weight.h"

namespace tensorfold {

/// Outputs of a panel: two AVX-512 registers of fp32, four of AVX2, eight of NEON.
inline constexpr int64_t kPanelOutputs = 32;
/// Columns of a unit: the smallest group.
inline constexpr int64_t kUnitColumns = 32;
inline constexpr int kUnitSteps = kUnitColumns / 2;
/// Segments of a sum over columns (arithmetic.md, "Linear").
inline constexpr int kSegments = 8;

/// A run of `count` bits at `bit` of both halves of a vector's words.
struct FieldPiece {
  int vector = 0;
  int bit = 0;
  int count = 0;
};

/// Where the integers of a step lie, lowest bits first.
struct FieldPieces {
  int size = 0;
  std::array<FieldPiece, 5> piece{};
};

/// Steps whose fields lie whole in one vector: per vector, and in all. They come first.
constexpr int whole_steps_per_vector(int bits) { return 16 / bits; }
constexpr int whole_steps(int bits) { return whole_steps_per_vector(bits) * bits; }

/// As many whole fields as fit in 16 bits follow each other from bit 0 on; the steps left over at the end of
/// a unit (3 and 5 bits: the last; 6 bits: the last four) are put together from the vectors' spare top bits.
constexpr FieldPieces field_pieces(int bits, int step) {
  const int per_vector = whole_steps_per_vector(bits);
  if (step < whole_steps(bits)) return {1, {{{step / per_vector, step % per_vector * bits, bits}}}};
  FieldPieces pieces;
  if (bits == 6) {
    // Vectors 0, 2, 3, 5 give the low four bits, 1 and 4 twice two high bits.
    constexpr int kLow[] = {0, 2, 3, 5};
    const int rest = step - whole_steps(bits);
    pieces.size = 2;
    pieces.piece[0] = {kLow[rest], 12, 4};
    pieces.piece[1] = {rest < 2 ? 1 : 4, 12 + rest % 2 * 2, 2};
    return pieces;
  }
  pieces.size = bits;
  for (int v = 0; v < bits; ++v) pieces.piece[static_cast<size_t>(v)] = {v, 15, 1};
  return pieces;
}

/// 8-bit integers are stored with their top bit inverted: as it is, the byte is then the low half of the bf16
/// of every integer from 128 on.
constexpr uint32_t field_inversion(int bits) { return bits == 8 ? 0x80u : 0u; }

/// Sizes and strides of one packed matrix. All in bytes or columns.
struct LinearLayout {
  explicit LinearLayout(const LinearSpec& spec);

  int64_t num_panels = 0;
  int64_t padded_columns = 0;   ///< `in`, made even.
  int64_t segment_columns = 0;  ///< c * ceil(in / 8c); the last segments may be short or empty.
  int64_t chunk_columns = 0;    ///< The group size; 2 for floats.
  int64_t scale_bytes = 0;      ///< Of a chunk's scales (affine: its biases take as many); 0 for floats.
  int64_t unit_offset = 0;      ///< Bytes from a chunk's start to its first unit.
  int64_t chunk_bytes = 0;
  int64_t panel_bytes = 0;

  int64_t num_chunks() const { return padded_columns / chunk_columns; }
  int64_t packed_bytes() const { return num_panels * panel_bytes; }
};

/// Bytes from the start of a packed float matrix to element [output, column].
int64_t packed_float_offset(const LinearSpec& spec, const LinearLayout& layout, int64_t output,
                            int64_t column);

/// Bytes to the scale of [output, group]; its bias, if affine, lies layout.scale_bytes further on.
int64_t packed_scale_offset(const LinearSpec& spec, const LinearLayout& layout, int64_t output,
                            int64_t group);

/// Bytes to the half word of `piece` for [output, column].
int64_t packed_field_offset(const LinearLayout& layout, int64_t output, int64_t column,
                            const FieldPiece& piece);

/// Whether the layout and its kernels take the spec: float bf16, f16, f32; affine of 2, 3, 4, 5, 6 or 8 bits
/// in groups of 32, 64 or 128; MXFP4. Otherwise kUnsupported.
Status check_linear_layout(const LinearSpec& spec);

}  // namespace tensorfold
