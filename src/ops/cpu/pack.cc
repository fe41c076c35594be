// pack() by whole units: see linear_layout.h for what goes where.
#include "ops/cpu/pack.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/mxfp4.h"
#include "ops/linear_layout.h"

namespace tensorfold::cpu {
namespace {

constexpr int64_t kVectorBytes = kPanelOutputs * 4;

uint32_t load_word(const std::byte* address) {
  uint32_t word;
  std::memcpy(&word, address, sizeof word);
  return word;
}

void store_word(std::byte* address, uint32_t word) { std::memcpy(address, &word, sizeof word); }

/// Gathers every second field of a word of 8 nibbles: those at even places into the low half, the others into
/// the high one.
uint32_t separate_nibbles(uint32_t w) {
  const auto compact = [](uint32_t x) {  // 0a0b0c0d -> 0000abcd
    x = (x | x >> 4) & 0x00ff00ffu;
    return (x | x >> 8) & 0x0000ffffu;
  };
  return compact(w & 0x0f0f0f0fu) | compact(w >> 4 & 0x0f0f0f0fu) << 16;
}

/// The same for the 16 two-bit fields of a word.
uint32_t separate_pairs(uint32_t w) {
  const auto compact = [](uint32_t x) {
    x = (x | x >> 2) & 0x0f0f0f0fu;
    x = (x | x >> 4) & 0x00ff00ffu;
    return (x | x >> 8) & 0x0000ffffu;
  };
  return compact(w & 0x33333333u) | compact(w >> 2 & 0x33333333u) << 16;
}

/// Bytes 0 1 2 3 -> 0 2 1 3.
uint32_t separate_bytes(uint32_t w) { return (w & 0xff0000ffu) | (w & 0xff00u) << 8 | (w & 0xff0000u) >> 8; }

/// Fields that divide 16 stay in the source's words: one word of source is one word of a vector.
template <int kBits>
void pack_unit_words(std::byte* unit, const std::byte* source) {
  for (int v = 0; v < kBits; ++v) {
    uint32_t word = load_word(source + 4 * v);
    if constexpr (kBits == 2) word = separate_pairs(word);
    if constexpr (kBits == 4) word = separate_nibbles(word);
    if constexpr (kBits == 8) word = separate_bytes(word) ^ 0x80808080u;
    store_word(unit + v * kVectorBytes, word);
  }
}

/// 3, 5 and 6 bits, field by field.
template <int kBits>
void pack_unit_fields(std::byte* unit, const std::byte* source) {
  uint32_t words[kBits] = {};
  std::byte bytes[kUnitColumns * kBits / 8 + 4] = {};
  std::memcpy(bytes, source, kUnitColumns * kBits / 8);
  for (int k = 0; k < kUnitColumns; ++k) {
    uint32_t value = load_word(bytes + k * kBits / 8) >> (k * kBits % 8) & ((1u << kBits) - 1);
    const FieldPieces pieces = field_pieces(kBits, k / 2);
    for (int i = 0; i < pieces.size; ++i) {
      const FieldPiece& piece = pieces.piece[static_cast<size_t>(i)];
      words[piece.vector] |= (value & ((1u << piece.count) - 1)) << (piece.bit + k % 2 * 16);
      value >>= piece.count;
    }
  }
  for (int v = 0; v < kBits; ++v) store_word(unit + v * kVectorBytes, words[v]);
}

using UnitPacker = void (*)(std::byte* unit, const std::byte* source);

UnitPacker unit_packer(int bits) {
  switch (bits) {
    case 2:
      return pack_unit_words<2>;
    case 3:
      return pack_unit_fields<3>;
    case 4:
      return pack_unit_words<4>;
    case 5:
      return pack_unit_fields<5>;
    case 6:
      return pack_unit_fields<6>;
    default:
      return pack_unit_words<8>;
  }
}

/// One output's part of a panel. `lane` is its place in the panel, `panel` the panel's start.
void pack_affine_row(const LinearSpec& spec, const LinearLayout& layout, const LinearSource& source,
                     int64_t output, std::byte* panel) {
  const int64_t lane = output % kPanelOutputs, groups = layout.num_chunks(), size = dtype_bytes(spec.dtype);
  const int64_t units = spec.group_size / kUnitColumns, source_unit_bytes = kUnitColumns * spec.bits / 8;
  const UnitPacker pack_unit = unit_packer(spec.bits);
  const std::byte* row = source.weight.data() + output * spec.in * spec.bits / 8;
  for (int64_t g = 0; g < groups; ++g) {
    std::byte* chunk = panel + g * layout.chunk_bytes;
    std::memcpy(chunk + lane * size, source.scales.data() + (output * groups + g) * size,
                static_cast<size_t>(size));
    std::memcpy(chunk + layout.scale_bytes + lane * size, source.biases.data() + (output * groups + g) * size,
                static_cast<size_t>(size));
    std::byte* unit = chunk + layout.unit_offset + lane * 4;
    for (int64_t u = 0; u < units; ++u, unit += spec.bits * kVectorBytes, row += source_unit_bytes) {
      pack_unit(unit, row);
    }
  }
}

/// The same of MXFP4: a byte a scale, no biases, one unit to a group.
void pack_mxfp4_row(const LinearLayout& layout, const LinearSource& source, int64_t output,
                    std::byte* panel) {
  constexpr int64_t kBlockBytes = kMxfp4BlockSize / 2;
  const int64_t lane = output % kPanelOutputs, blocks = layout.num_chunks();
  const std::byte* scales = source.scales.data() + output * blocks;
  const std::byte* codes = source.weight.data() + output * blocks * kBlockBytes;
  for (int64_t g = 0; g < blocks; ++g) {
    std::byte* chunk = panel + g * layout.chunk_bytes;
    const uint16_t scale = e8m0_bf16_bits(static_cast<uint8_t>(scales[g]));
    std::memcpy(chunk + lane * 2, &scale, sizeof scale);
    pack_unit_words<4>(chunk + layout.unit_offset + lane * 4, codes + g * kBlockBytes);
  }
}

template <class Element>
void pack_float_row(const LinearSpec& spec, const LinearLayout& layout, const LinearSource& source,
                    int64_t output, std::byte* panel) {
  // 16-bit pairs share a word; the columns of an f32 pair are a vector apart.
  constexpr int64_t kOddBytes = sizeof(Element) == 2 ? 2 : kVectorBytes;
  const std::byte* row = source.weight.data() + output * spec.in * static_cast<int64_t>(sizeof(Element));
  std::byte* lane = panel + output % kPanelOutputs * 4;
  for (int64_t k = 0; k < spec.in; ++k, row += sizeof(Element)) {
    std::memcpy(lane + k / 2 * layout.chunk_bytes + k % 2 * kOddBytes, row, sizeof(Element));
  }
}

}  // namespace

void pack(const LinearSpec& spec, const LinearSource& source, std::span<std::byte> packed) {
  const LinearLayout layout(spec);
  TF_CHECK(static_cast<int64_t>(packed.size()) == layout.packed_bytes());
  // Zeros where the last panel has no outputs and an odd row no last column.
  if (spec.out % kPanelOutputs != 0) {
    const int64_t start = (layout.num_panels - 1) * layout.panel_bytes;
    std::memset(packed.data() + start, 0, static_cast<size_t>(layout.panel_bytes));
  }
  for (int64_t output = 0; output < spec.out; ++output) {
    std::byte* panel = packed.data() + output / kPanelOutputs * layout.panel_bytes;
    if (spec.in % 2 != 0 && output % kPanelOutputs == 0) {
      std::memset(panel + layout.panel_bytes - layout.chunk_bytes, 0,
                  static_cast<size_t>(layout.chunk_bytes));
    }
    if (spec.format == WeightFormat::kAffine) {
      pack_affine_row(spec, layout, source, output, panel);
    } else if (spec.format == WeightFormat::kMxfp4) {
      pack_mxfp4_row(layout, source, output, panel);
    } else if (dtype_bytes(spec.dtype) == 2) {
      pack_float_row<uint16_t>(spec, layout, source, output, panel);
    } else {
      pack_float_row<uint32_t>(spec, layout, source, output, panel);
    }
  }
}

}  // namespace tensorfold::cpu
