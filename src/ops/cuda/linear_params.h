// What a launch of linear()'s kernels is told: plain data, shared by the host side (linear.cc) and the device
// side (linear*.cu). Device code includes no header with fmt or STL containers in it: nvcc cannot compile
// fmt's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/linear_layout.h"

struct CUstream_st;

namespace tensorfold::cuda {

inline constexpr int kMaxLinearCalls = 8;  ///< Products of one x that share a launch.

/// Which kernel computes a product. Tests force each; callers leave kAuto.
enum class LinearKernel : uint8_t {
  kAuto,    ///< kShort where is_short(), else kDecode up to max_decode_rows() rows, kWide beyond.
  kDecode,  ///< One warp per tile and segment, mma.sync, 16 rows at a time; weights as a stream.
  kWide,    ///< Tiles of many rows.
  kShort,   ///< As kDecode, of small matrices, whose weights registers hold. Where it cannot be: kDecode.
};
/// Whether the wide kernel has tiles of few rows for a layout: one operand to a step, summed as it is.
constexpr bool has_few_row_tiles(const LinearLayout& layout) {
  const bool is_one_operand = layout.format != LinearFormat::kF16 && layout.format != LinearFormat::kF32;
  return is_one_operand && !layout.keeps_integers() && layout.scale_type != ScaleType::kF32;
}
constexpr int64_t max_decode_rows(const LinearLayout& layout) { return has_few_row_tiles(layout) ? 16 : 32; }

/// How the wide kernel is cut into blocks. What changes no bit: the benchmark compares, callers leave the
/// default.
struct LinearTuning {
  uint8_t wide_split = 0;  ///< Wide kernel: 1, 2 or 4 blocks to a tile; 0: as the number of tiles suggests.
  uint8_t wide_share = 1;  ///< 2: pairs of blocks share x, where a tile has one block.
  /// Tiles of 32 rows for up to 64 rows (where the layout has them), else of 64 or 128; or one of both.
  enum class Tile : uint8_t { kAuto, kFew, kMany } wide_tile = Tile::kAuto;
};

/// One matrix of a launch.
struct LinearDeviceCall {
  const std::byte* weights;
  const float* bias;  ///< Null for none.
  void* out;
  int64_t out_stride;  ///< Elements between rows of out.
  int out_size;
  int first_tile;  ///< Of the launch's tiles.
  bool out_is_bf16;
  bool accumulate;
  /// In place of padding, which GCC 12 does not clear right in long arrays (__builtin_clear_padding,
  /// launch_list.h).
  uint8_t unused[6] = {};
};
static_assert(sizeof(LinearDeviceCall) == 48);

/// Up to kMaxLinearCalls matrices of one layout times one x.
struct LinearLaunch {
  LinearDeviceCall calls[kMaxLinearCalls];
  const std::byte* x;  ///< bf16 [num_rows, in]: nothing beyond column `in` is read.
  int64_t x_stride;    ///< Elements.
  /// On the device, this launch's own, 0 when it begins: how many tiles beyond each slot's first were drawn
  /// by whoever was free first (kDecode). Null: tiles are dealt in turn.
  int32_t* drawn_tiles;
  int num_calls;
  int num_tiles;  ///< Tiles of 16 outputs of all calls.
  int num_rows;
  int in;      ///< A multiple of 8.
  int chunks;  ///< 64-column chunks of a padded row of weights.
  int chunks_per_segment;
  LinearLayout layout;
  LinearKernel kernel;  ///< Not kAuto.
  LinearTuning tuning;
};
static_assert(sizeof(LinearLaunch) == sizeof(LinearLaunch::calls) + 24 + 6 * 4 + 8);

/// Bytes of x's 32 columns in operand order: [row][4 lanes][two steps x (low pair, high pair)]. The 16 bytes
/// more put the eight 32-column pieces that a warp writes at once into different banks; one row goes without
/// them, and leaves room for a stage more.
TF_CONTRACT_FUNCTION constexpr int x_pair_bytes(int rows) { return rows * 64 + (rows > 1 ? 16 : 0); }

/// Layouts that checkpoints have most: the kernels of small matrices and of streamed experts have these.
constexpr bool is_common(const LinearLayout& layout) {
  if (layout.format == LinearFormat::kBf16 || layout.format == LinearFormat::kMxfp4) return true;
  return layout.format == LinearFormat::kAffine && layout.scale_type == ScaleType::kBf16 &&
         (layout.bits == 4 || layout.bits == 8);
}

/// Bytes that a lane holds of a chunk of weights in registers.
TF_CONTRACT_FUNCTION constexpr int held_chunk_bytes(const LinearLayout& layout) {
  const int words = 4 * layout.bits;
  if (layout.format == LinearFormat::kMxfp4) return words + 4;
  if (layout.format != LinearFormat::kAffine) return words;
  const int groups = layout.group_size < kLinearChunkColumns ? kLinearChunkColumns / layout.group_size : 1;
  return words + groups * 4 * layout.scale_bytes();
}
/// Chunks that a lane may hold in a block of 256 threads, of which `blocks` are on a multiprocessor: 64
/// registers of two, 36 of three; an even number.
TF_CONTRACT_FUNCTION constexpr int held_chunks(const LinearLayout& layout, int blocks = 2) {
  const int bytes = held_chunk_bytes(layout);
  return bytes > 64 ? 2 : (blocks == 2 ? 256 : 144) / bytes / 2 * 2;
}

inline constexpr int kMaxShortRows = 8;
/// Shared memory for x of a block of kShort, two of which are on a multiprocessor.
inline constexpr int kMaxShortOperandBytes = 96 << 10;
/// Blocks that are there from the start: two on each multiprocessor (of 132).
inline constexpr int kShortBlocks = 2 * 132;
/// Tiles of a block, up to three: so many that these blocks have them all, where kMaxShortTiles are no fewer.
/// A block that comes when another has ended adds the latency of its weights.
constexpr int short_block_tiles(int num_tiles) {
  return num_tiles <= kShortBlocks ? 1 : num_tiles <= 2 * kShortBlocks ? 2 : 3;
}
/// Chunks of each of a block's tiles that a lane holds, rounded up: 72 registers for three tiles of 4 bits,
/// 96 of bf16, which no kernel spills.
TF_CONTRACT_FUNCTION constexpr int short_chunks_ahead(const LinearLayout& layout, int tiles) {
  return (held_chunks(layout) + tiles - 1) / tiles;
}

/// The most tiles that kShort takes by itself. Larger products are streams.
inline constexpr int kMaxShortTiles = 3 * kShortBlocks;

/// Whether kShort can compute a launch.
constexpr bool can_be_short(const LinearLaunch& p) {
  return is_common(p.layout) && p.num_rows <= kMaxShortRows &&
         p.chunks * 2 * x_pair_bytes(p.num_rows) <= kMaxShortOperandBytes;
}
/// Whether it should: a block's registers hold half of its weights or more at once.
constexpr bool is_short(const LinearLaunch& p) {
  const int tiles = short_block_tiles(p.num_tiles);
  return can_be_short(p) && p.num_tiles <= kMaxShortTiles &&
         p.chunks_per_segment <= 2 * short_chunks_ahead(p.layout, tiles);
}

/// Runs a launch: asynchronous, may be captured. For num_rows == 0 it does nothing.
void launch_linear(CUstream_st* stream, const LinearLaunch& launch);

/// Its kernels, each for every layout: any number of rows, 8 or 16 at a time; tiles of many rows (sm_90).
void launch_linear_decode(CUstream_st* stream, const LinearLaunch& launch);
void launch_linear_wide(CUstream_st* stream, const LinearLaunch& launch);
/// For what can_be_short().
void launch_linear_short(CUstream_st* stream, const LinearLaunch& launch);

/// And for affine groups, by the type of their scales.
void launch_linear_decode_affine_bf16(CUstream_st* stream, const LinearLaunch& launch);
void launch_linear_decode_affine_f16(CUstream_st* stream, const LinearLaunch& launch);
void launch_linear_decode_affine_f32(CUstream_st* stream, const LinearLaunch& launch);
void launch_linear_wide_affine_bf16(CUstream_st* stream, const LinearLaunch& launch);
void launch_linear_wide_affine_f16(CUstream_st* stream, const LinearLaunch& launch);

}  // namespace tensorfold::cuda
