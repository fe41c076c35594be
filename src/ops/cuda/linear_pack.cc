// Checkpoint order to the layout of ops/cuda/linear_layout.h. Runs on the host while loading.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/bf16.h"
#include "base/check.h"
#include "base/mxfp4.h"
#include "ops/cuda/linear.h"

namespace tensorfold::cuda {
namespace {

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

int64_t num_tiles(const LinearSpec& spec) { return (spec.out + kLinearTileRows - 1) / kLinearTileRows; }

void store_bf16(std::byte* to, float value) {
  // Not to_bf16(), which flushes: tensor cores keep denormals. Only ever exact values or denormal results.
  auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) <= 0x7f800000u) bits += 0x7fffu + ((bits >> 16) & 1u);
  const auto upper = static_cast<uint16_t>(bits >> 16);
  std::memcpy(to, &upper, 2);
}

/// Writes one tile, whose bytes are zero.
class TilePacker {
 public:
  TilePacker(const LinearSpec& spec, const LinearLayout& layout, const LinearSource& source)
      : spec_(spec), layout_(layout), source_(source), order_(static_cast<int>(layout.units(spec.in))) {
    for (int row = 0; row < kLinearTileRows; ++row) {
      for (int column = 0; column < kLinearChunkColumns; ++column)
        places_[static_cast<size_t>(row * kLinearChunkColumns + column)] = place_of(row, column);
    }
    for (int reg = 0; reg < 4; ++reg) {
      for (int code = 0; code < 16; ++code) {
        for (int b = 0; b < 4; ++b)
          mxfp4_half_[static_cast<size_t>(reg)][static_cast<size_t>(code)] |=
              static_cast<uint16_t>((code >> b & 1) << mxfp4_bit(reg, b));
      }
    }
  }

  void pack(int64_t tile, std::byte* to) const {
    const int64_t first_row = tile * kLinearTileRows;
    const auto rows = static_cast<int>(std::min<int64_t>(kLinearTileRows, spec_.out - first_row));
    for (int row = 0; row < rows; ++row) {
      if (layout_.group_size == 0) {
        pack_float_row(first_row + row, row, to);
      } else {
        pack_integer_row(first_row + row, row, to);
        pack_scale_row(first_row + row, row, to);
      }
    }
  }

 private:
  /// Where an element lies in its chunk: its bytes, or the bits of its integer.
  struct Place {
    uint16_t offset;  ///< Bytes; of an integer's half word.
    uint8_t shift;    ///< Of the integer in the half word, if it lies there in one piece.
    bool is_in_pieces;
    FragmentPlace fragment;
  };

  Place place_of(int row, int column) const {
    const FragmentPlace at = fragment_place(row, column);
    if (layout_.group_size == 0) return {static_cast<uint16_t>(float_offset(layout_.bits, at)), 0, false, at};
    const FieldBit first = bit_of(at, 0);
    Place place{static_cast<uint16_t>(half_word_offset(at, first)), static_cast<uint8_t>(first.bit), false,
                at};
    for (int b = 1; b < layout_.bits; ++b) {
      const FieldBit bit = bit_of(at, b);
      place.is_in_pieces |= bit.word != first.word || bit.bit != first.bit + b;
    }
    return place;
  }
  FieldBit bit_of(const FragmentPlace& at, int b) const {
    if (layout_.format == LinearFormat::kMxfp4) return {at.step, mxfp4_bit(at.reg, b)};
    return field_bit(layout_.bits, at.step * 4 + at.reg, b);
  }
  int half_word_offset(const FragmentPlace& at, const FieldBit& bit) const {
    return word_offset(layout_.bits, at.lane, bit.word) + 2 * at.half;
  }

  static void or_half_word(std::byte* at, uint32_t bits) {
    uint16_t half;
    std::memcpy(&half, at, 2);
    half = static_cast<uint16_t>(half | bits);
    std::memcpy(at, &half, 2);
  }
  void put_integer(std::byte* chunk, const Place& place, uint32_t q) const {
    if (layout_.format == LinearFormat::kMxfp4)
      return or_half_word(chunk + place.offset, mxfp4_half_[static_cast<size_t>(place.fragment.reg)][q]);
    if (!place.is_in_pieces) return or_half_word(chunk + place.offset, q << place.shift);
    for (int b = 0; b < layout_.bits; ++b) {
      const FieldBit bit = bit_of(place.fragment, b);
      or_half_word(chunk + half_word_offset(place.fragment, bit), ((q >> b) & 1u) << bit.bit);
    }
  }

  std::byte* unit_of(std::byte* tile, int64_t column) const {
    return tile +
           int64_t{order_.place(static_cast<int>(column / layout_.unit_columns()))} * layout_.unit_bytes();
  }
  std::byte* chunk_of(std::byte* tile, int64_t column) const {
    const int64_t in_unit = column % layout_.unit_columns();
    return unit_of(tile, column) + in_unit / kLinearChunkColumns * layout_.chunk_bytes();
  }

  /// By pairs of columns, which lie together.
  void pack_float_row(int64_t source_row, int row, std::byte* tile) const {
    const int64_t pair_bytes = layout_.bits / 4, row_bytes = spec_.in * layout_.bits / 8;
    const std::byte* from = source_.weight.data() + source_row * row_bytes;
    for (int64_t first = 0; first < spec_.in; first += kLinearChunkColumns) {
      std::byte* chunk = chunk_of(tile, first);
      const Place* places = &places_[static_cast<size_t>(row * kLinearChunkColumns)];
      const int64_t columns = std::min<int64_t>(kLinearChunkColumns, spec_.in - first);
      for (int64_t i = 0; i < columns; i += 2, from += pair_bytes) {
        if (pair_bytes == 4) {
          std::memcpy(chunk + places[i].offset, from, 4);
        } else {
          std::memcpy(chunk + places[i].offset, from, 8);
        }
      }
    }
  }

  /// Eight columns at a time: they are `bits` whole bytes.
  void pack_integer_row(int64_t source_row, int row, std::byte* tile) const {
    const auto bits = static_cast<size_t>(layout_.bits);
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    const std::byte* from = source_.weight.data() + source_row * spec_.in * layout_.bits / 8;
    const std::byte* block_scales = layout_.format == LinearFormat::kMxfp4
                                        ? source_.scales.data() + source_row * spec_.in / kMxfp4BlockSize
                                        : nullptr;
    std::byte* chunk = nullptr;
    for (int64_t first = 0; first < spec_.in; first += 8, from += bits) {
      if (first % kLinearChunkColumns == 0) chunk = chunk_of(tile, first);
      uint64_t eight = 0;
      std::memcpy(&eight, from, bits);
      // A scale that is no number is stored as infinity, and times zero that is no number either.
      if (block_scales != nullptr && block_scales[first / kMxfp4BlockSize] == std::byte{255}) eight = 0;
      const Place* places =
          &places_[static_cast<size_t>(row * kLinearChunkColumns + first % kLinearChunkColumns)];
      for (int i = 0; i < 8; ++i, eight >>= bits)
        put_integer(chunk, places[i], static_cast<uint32_t>(eight & mask));
    }
  }

  void pack_scale_row(int64_t source_row, int row, std::byte* tile) const {
    const int64_t groups = spec_.in / layout_.group_size, size = layout_.scale_bytes();
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t column = group * layout_.group_size, at = source_row * groups + group;
      const auto group_in_unit = static_cast<int>(column % layout_.unit_columns() / layout_.group_size);
      std::byte* to = unit_of(tile, column) + scale_offset(layout_, row, group_in_unit);
      if (layout_.format == LinearFormat::kMxfp4) {
        *to = static_cast<std::byte>(
            std::min(static_cast<int>(source_.scales[static_cast<size_t>(at)]) + kMxfp4StoredOffset, 255));
      } else if (layout_.is_prescaled()) {
        const float scale = load_scale(ScaleType::kBf16, source_.scales.data() + at * 2, 0);
        const float bias = load_scale(ScaleType::kBf16, source_.biases.data() + at * 2, 0);
        store_bf16(to, scale * power_of_two(scale_exponent(layout_, row)));
        store_bf16(to + 2, bias * power_of_two(-kResultShift));
      } else {
        std::memcpy(to, source_.scales.data() + at * size, static_cast<size_t>(size));
        std::memcpy(to + size, source_.biases.data() + at * size, static_cast<size_t>(size));
      }
    }
  }

  const LinearSpec& spec_;
  const LinearLayout& layout_;
  const LinearSource& source_;
  const UnitOrder order_;
  std::array<Place, kLinearTileRows * kLinearChunkColumns> places_;
  std::array<std::array<uint16_t, 16>, 4>
      mxfp4_half_{};  ///< By register and code: its bits in the half word.
};

ScaleType scale_type_of(DType dtype) {
  if (dtype == DType::kF32) return ScaleType::kF32;
  return dtype == DType::kF16 ? ScaleType::kF16 : ScaleType::kBf16;
}

}  // namespace

LinearLayout layout_of(const LinearSpec& spec) {
  const auto group = static_cast<uint8_t>(spec.group_size);
  if (spec.format == WeightFormat::kMxfp4) return {LinearFormat::kMxfp4, ScaleType::kBf16, 4, group};
  if (spec.format == WeightFormat::kAffine) {
    return {LinearFormat::kAffine, scale_type_of(spec.dtype), static_cast<uint8_t>(spec.bits), group};
  }
  if (spec.dtype == DType::kF32) return {LinearFormat::kF32, ScaleType::kBf16, 32, 0};
  return {spec.dtype == DType::kF16 ? LinearFormat::kF16 : LinearFormat::kBf16, ScaleType::kBf16, 16, 0};
}

Status check_linear(const LinearSpec& spec) {
  const bool dtype_ok = spec.dtype == DType::kBF16 || spec.dtype == DType::kF16 || spec.dtype == DType::kF32;
  bool format_ok = spec.in % 8 == 0;
  if (spec.format == WeightFormat::kAffine) {
    const bool bits_ok = (spec.bits >= 2 && spec.bits <= 6) || spec.bits == 8;
    const bool group_ok = spec.group_size == 32 || spec.group_size == 64 || spec.group_size == 128;
    format_ok = bits_ok && group_ok && spec.in % spec.group_size == 0;
  } else if (spec.format == WeightFormat::kMxfp4) {
    format_ok = spec.bits == 4 && spec.group_size == kMxfp4BlockSize && spec.in % kMxfp4BlockSize == 0;
  }
  if (dtype_ok && format_ok && spec.out >= 1 && spec.in >= 1) return {};
  return unsupported(
      "cuda linear: {}: expected bf16, f16 or f32 with an input of a multiple of 8, affine of 2 to 6 or 8 "
      "bits in groups of "
      "32, 64 or 128, or mxfp4",
      to_string(spec));
}

int64_t packed_bytes(const LinearSpec& spec) {
  return round_up(num_tiles(spec) * layout_of(spec).tile_bytes(spec.in), 256);
}

void pack_linear(const LinearSpec& spec, const LinearSource& source, std::span<std::byte> packed) {
  TF_CHECK(static_cast<int64_t>(packed.size()) == packed_bytes(spec));
  std::memset(packed.data(), 0, packed.size());
  const LinearLayout layout = layout_of(spec);
  const TilePacker packer(spec, layout, source);
  const int64_t tile_bytes = layout.tile_bytes(spec.in);
  for (int64_t tile = 0; tile < num_tiles(spec); ++tile) packer.pack(tile, packed.data() + tile * tile_bytes);
}

}  // namespace tensorfold::cuda
