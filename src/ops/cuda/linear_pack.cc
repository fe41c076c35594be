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
int64_t num_groups(const LinearSpec& spec) { return padded_in(spec) / spec.group_size; }

int64_t weight_bytes(const LinearSpec& spec) { return num_tiles(spec) * kTileRows * padded_in(spec) * spec.bits / 8; }

/// Row and column, inside a tile and step, of element `half` of register `reg` of lane `lane`.
int64_t fragment_row(int lane, int reg) { return lane / 4 + (reg % 2) * 8; }
int64_t fragment_column(int lane, int reg, int half) { return 2 * (lane % 4) + (reg / 2) * 8 + half; }

void pack_affine4(const LinearSpec& spec, const LinearSource& source, std::byte* packed) {
  const int64_t row_bytes = spec.in / 2, chunks = padded_in(spec) / kChunkColumns;
  const auto nibble = [&](int64_t row, int64_t column) -> uint32_t {
    if (row >= spec.out || column >= spec.in) return 0;
    const auto byte = static_cast<uint32_t>(source.weight[static_cast<size_t>(row * row_bytes + column / 2)]);
    return (byte >> (column % 2 * 4)) & 15u;
  };
  for (int64_t tile = 0; tile < num_tiles(spec); ++tile) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
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
        std::memcpy(packed + ((tile * chunks + chunk) * 32 + lane) * 16, words, 16);
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

void pack_scales(const LinearSpec& spec, const LinearSource& source, std::byte* packed) {
  const int64_t element = dtype_bytes(spec.dtype), groups_in_source = spec.in / spec.group_size;
  for (int64_t tile = 0; tile < num_tiles(spec); ++tile) {
    for (int64_t group = 0; group < num_groups(spec); ++group) {
      for (int64_t slot = 0; slot < kTileRows; ++slot, packed += 2 * element) {
        const int64_t row = tile * kTileRows + slot / 2 + slot % 2 * 8;
        if (row >= spec.out || group >= groups_in_source) {
          std::memset(packed, 0, static_cast<size_t>(2 * element));
          continue;
        }
        const int64_t at = (row * groups_in_source + group) * element;
        std::memcpy(packed, source.scales.data() + at, static_cast<size_t>(element));
        std::memcpy(packed + element, source.biases.data() + at, static_cast<size_t>(element));
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
  int64_t bytes = weight_bytes(spec);
  if (spec.format == WeightFormat::kAffine)
    bytes += num_tiles(spec) * num_groups(spec) * kTileRows * 2 * dtype_bytes(spec.dtype);
  return round_up(bytes, 256);
}

void pack_linear(const LinearSpec& spec, const LinearSource& source, std::span<std::byte> packed) {
  TF_CHECK(static_cast<int64_t>(packed.size()) == packed_bytes(spec));
  std::memset(packed.data() + packed.size() - 256, 0, 256);
  if (spec.format == WeightFormat::kFloat) {
    pack_bf16(spec, source, packed.data());
  } else {
    pack_affine4(spec, source, packed.data());
    pack_scales(spec, source, packed.data() + weight_bytes(spec));
  }
}

}  // namespace tensorfold::cuda
