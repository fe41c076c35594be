// Checkpoint order to the fragment order of ops/cuda/linear.h. Runs on the host while loading.
#include <algorithm>
#include <cstring>

#include "base/bf16.h"
#include "base/check.h"
#include "ops/cuda/linear.h"

namespace tensorfold::cuda {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kChunkColumns = 64;
constexpr int64_t kStepColumns = 16;

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

int64_t padded_in(const LinearSpec& spec) { return round_up(spec.in, std::max<int64_t>(kChunkColumns, spec.group_size)); }
int64_t num_tiles(const LinearSpec& spec) { return (spec.out + kTileRows - 1) / kTileRows; }

/// Columns that lie together with their scales, and the bytes of both for one tile.
int64_t unit_columns(const LinearSpec& spec) { return std::max<int64_t>(kChunkColumns, spec.group_size); }
int64_t unit_weight_bytes(const LinearSpec& spec) { return kTileRows * unit_columns(spec) * spec.bits / 8; }
int64_t unit_scale_bytes(const LinearSpec& spec) {
  if (spec.format != WeightFormat::kAffine) return 0;
  return unit_columns(spec) / spec.group_size * kTileRows * 2 * dtype_bytes(spec.dtype);
}
int64_t unit_bytes(const LinearSpec& spec) { return unit_weight_bytes(spec) + unit_scale_bytes(spec); }

/// Row and column, inside a tile and step, of element `half` of register `reg` of lane `lane`.
int64_t fragment_row(int lane, int reg) { return lane / 4 + (reg % 2) * 8; }
int64_t fragment_column(int lane, int reg, int half) { return 2 * (lane % 4) + (reg / 2) * 8 + half; }

/// One 64-column chunk of one tile: 512 bytes.
void pack_affine4_chunk(const LinearSpec& spec, const LinearSource& source, int64_t tile, int64_t chunk, std::byte* to) {
  const int64_t row_bytes = spec.in / 2;
  const auto nibble = [&](int64_t row, int64_t column) -> uint32_t {
    if (row >= spec.out || column >= spec.in) return 0;
    const auto byte = static_cast<uint32_t>(source.weight[static_cast<size_t>(row * row_bytes + column / 2)]);
    return (byte >> (column % 2 * 4)) & 15u;
  };
  for (int lane = 0; lane < 32; ++lane) {
    uint32_t words[4] = {};
    for (int step = 0; step < 4; ++step) {
      for (int reg = 0; reg < 4; ++reg) {
        const int64_t row = tile * kTileRows + fragment_row(lane, reg);
        for (int half = 0; half < 2; ++half) {
          const int64_t column = chunk * kChunkColumns + step * kStepColumns + fragment_column(lane, reg, half);
          words[step] |= nibble(row, column) << (4 * reg + 16 * half);
        }
      }
    }
    std::memcpy(to + lane * 16, words, 16);
  }
}

/// The scales and biases of one group of one tile.
void pack_group(const LinearSpec& spec, const LinearSource& source, int64_t tile, int64_t group, std::byte* to) {
  const int64_t element = dtype_bytes(spec.dtype), groups_in_source = spec.in / spec.group_size;
  for (int64_t slot = 0; slot < kTileRows; ++slot, to += 2 * element) {
    const int64_t row = tile * kTileRows + slot / 2 + slot % 2 * 8;
    if (row >= spec.out || group >= groups_in_source) {
      std::memset(to, 0, static_cast<size_t>(2 * element));
      continue;
    }
    const int64_t at = (row * groups_in_source + group) * element;
    std::memcpy(to, source.scales.data() + at, static_cast<size_t>(element));
    std::memcpy(to + element, source.biases.data() + at, static_cast<size_t>(element));
  }
}

void pack_affine4(const LinearSpec& spec, const LinearSource& source, std::byte* packed) {
  const int64_t units = padded_in(spec) / unit_columns(spec), chunks = unit_columns(spec) / kChunkColumns;
  const int64_t groups = unit_columns(spec) / spec.group_size;
  for (int64_t tile = 0; tile < num_tiles(spec); ++tile) {
    for (int64_t unit = 0; unit < units; ++unit, packed += unit_bytes(spec)) {
      for (int64_t c = 0; c < chunks; ++c) {
        pack_affine4_chunk(spec, source, tile, unit * chunks + c, packed + c * kChunkColumns * kTileRows / 2);
      }
      std::byte* scales = packed + unit_weight_bytes(spec);
      for (int64_t g = 0; g < groups; ++g) {
        pack_group(spec, source, tile, unit * groups + g, scales + g * unit_scale_bytes(spec) / groups);
      }
    }
  }
}

void pack_bf16(const LinearSpec& spec, const LinearSource& source, std::byte* packed) {
  const int64_t steps = padded_in(spec) / kStepColumns;
  const auto element = [&](int64_t row, int64_t column) -> uint32_t {
    if (row >= spec.out || column >= spec.in) return 0;
    uint16_t bits;
    std::memcpy(&bits, source.weight.data() + (row * spec.in + column) * 2, 2);
    return bits;
  };
  for (int64_t tile = 0; tile < num_tiles(spec); ++tile) {
    for (int64_t step = 0; step < steps; ++step) {
      for (int lane = 0; lane < 32; ++lane) {
        uint32_t registers[4];
        for (int reg = 0; reg < 4; ++reg) {
          const int64_t row = tile * kTileRows + fragment_row(lane, reg);
          const int64_t column = step * kStepColumns + fragment_column(lane, reg, 0);
          registers[reg] = element(row, column) | element(row, column + 1) << 16;
        }
        std::memcpy(packed + ((tile * steps + step) * 32 + lane) * 16, registers, 16);
      }
    }
  }
}

}  // namespace

Status check_linear(const LinearSpec& spec) {
  const bool bf16 = spec.format == WeightFormat::kFloat && spec.dtype == DType::kBF16;
  const bool affine4 = spec.format == WeightFormat::kAffine && spec.bits == 4 && spec.dtype == DType::kBF16;
  if (bf16 || affine4) return {};
  return unsupported("cuda linear: {}: expected bf16, or affine 4-bit with bf16 scales", to_string(spec));
}

int64_t packed_bytes(const LinearSpec& spec) {
  return round_up(num_tiles(spec) * (padded_in(spec) / unit_columns(spec)) * unit_bytes(spec), 256);
}

void pack_linear(const LinearSpec& spec, const LinearSource& source, std::span<std::byte> packed) {
  TF_CHECK(static_cast<int64_t>(packed.size()) == packed_bytes(spec));
  std::memset(packed.data() + packed.size() - 256, 0, 256);
  if (spec.format == WeightFormat::kFloat) {
    pack_bf16(spec, source, packed.data());
  } else {
    pack_affine4(spec, source, packed.data());
  }
}

}  // namespace tensorfold::cuda
