// Checkpoint order to the layout of ops/cuda/linear_layout.h. Runs on the host while loading.
#include <algorithm>
#include <cstring>

#include "base/bf16.h"
#include "base/check.h"
#include "base/mxfp4.h"
#include "ops/cuda/linear.h"

namespace tensorfold::cuda {
namespace {

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

int64_t num_tiles(const LinearSpec& spec) { return (spec.out + kLinearTileRows - 1) / kLinearTileRows; }

/// Value `index` of a row in checkpoint order: bits index*n .. index*n + n - 1 of the row's bytes, lowest
/// first. A value of at most 8 bits lies in two bytes.
uint32_t source_integer(const std::byte* row, int64_t index, int bits) {
  const int64_t first_bit = index * bits;
  const auto shift = static_cast<int>(first_bit % 8);
  auto value = static_cast<uint32_t>(row[first_bit / 8]);
  if (shift + bits > 8) value |= static_cast<uint32_t>(row[first_bit / 8 + 1]) << 8;
  return (value >> shift) & ((1u << bits) - 1);
}

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
      : spec_(spec), layout_(layout), source_(source) {}

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
  std::byte* unit_of(std::byte* tile, int64_t column) const {
    return tile + column / layout_.unit_columns() * layout_.unit_bytes();
  }
  std::byte* chunk_of(std::byte* tile, int64_t column) const {
    const int64_t in_unit = column % layout_.unit_columns();
    return unit_of(tile, column) + in_unit / kLinearChunkColumns * layout_.chunk_bytes();
  }

  void pack_float_row(int64_t source_row, int row, std::byte* tile) const {
    const int64_t bytes = layout_.bits / 8;
    const std::byte* from = source_.weight.data() + source_row * spec_.in * bytes;
    for (int64_t column = 0; column < spec_.in; ++column, from += bytes) {
      const FragmentPlace place = fragment_place(row, static_cast<int>(column % kLinearChunkColumns));
      std::memcpy(chunk_of(tile, column) + float_offset(layout_.bits, place), from,
                  static_cast<size_t>(bytes));
    }
  }

  /// Sets the bits of value q at `place` of a chunk. A run of a field's bits lies together except where bits
  /// are gathered.
  void put_integer(std::byte* chunk, const FragmentPlace& place, uint32_t q) const {
    for (int b = 0; b < layout_.bits; ++b) {
      if (((q >> b) & 1u) == 0) continue;
      const FieldBit at = layout_.format == LinearFormat::kMxfp4
                              ? FieldBit{place.step, mxfp4_bit(place.reg, b)}
                              : field_bit(layout_.bits, place.step * 4 + place.reg, b);
      const int bit = at.bit + 16 * place.half;
      chunk[word_offset(layout_.bits, place.lane, at.word) + bit / 8] |= std::byte{1} << (bit % 8);
    }
  }

  void pack_integer_row(int64_t source_row, int row, std::byte* tile) const {
    const std::byte* from = source_.weight.data() + source_row * spec_.in * layout_.bits / 8;
    const std::byte* block_scales = layout_.format == LinearFormat::kMxfp4
                                        ? source_.scales.data() + source_row * spec_.in / kMxfp4BlockSize
                                        : nullptr;
    for (int64_t column = 0; column < spec_.in; ++column) {
      uint32_t q = source_integer(from, column, layout_.bits);
      // A scale that is no number is stored as infinity, and times zero that is no number either.
      if (block_scales != nullptr && block_scales[column / kMxfp4BlockSize] == std::byte{255}) q = 0;
      put_integer(chunk_of(tile, column), fragment_place(row, static_cast<int>(column % kLinearChunkColumns)),
                  q);
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
