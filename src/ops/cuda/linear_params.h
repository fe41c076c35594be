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
  kAuto,    ///< kDecode up to max_decode_rows() rows, kWide beyond.
  kDecode,  ///< One warp per tile and segment, mma.sync, 16 rows at a time.
  kWide,    ///< Tiles of many rows.
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
static_assert(sizeof(LinearLaunch) == sizeof(LinearLaunch::calls) + 16 + 6 * 4 + 8);

/// Runs a launch: asynchronous, may be captured. For num_rows == 0 it does nothing.
void launch_linear(CUstream_st* stream, const LinearLaunch& launch);

/// Its kernels, each for every layout: any number of rows, 8 or 16 at a time; tiles of many rows (sm_90).
void launch_linear_decode(CUstream_st* stream, const LinearLaunch& launch);
void launch_linear_wide(CUstream_st* stream, const LinearLaunch& launch);

/// And for affine groups, by the type of their scales.
void launch_linear_decode_affine_bf16(CUstream_st* stream, const LinearLaunch& launch);
void launch_linear_decode_affine_f16(CUstream_st* stream, const LinearLaunch& launch);
void launch_linear_decode_affine_f32(CUstream_st* stream, const LinearLaunch& launch);
void launch_linear_wide_affine_bf16(CUstream_st* stream, const LinearLaunch& launch);
void launch_linear_wide_affine_f16(CUstream_st* stream, const LinearLaunch& launch);

}  // namespace tensorfold::cuda
