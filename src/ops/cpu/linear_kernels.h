// The inner kernels of linear() and what they are given: one panel of 32 outputs (linear_layout.h) against one row or
// a few. linear.cc owns the loops around them, threads and memory. Plain data only: the kernel files are compiled for
// instruction sets that the rest of the program may not use.
//
// There are two kinds. A *row* kernel takes one row and reads packed weights straight into registers: decoding one
// token is bound by memory, and whatever a byte costs beyond its load must stay below that. The *tile* kernels take
// several rows: weights are decoded once into a tile that fits the L1 cache and are multiplied by every row. Both
// compute the same steps in the same order, so which one runs changes no bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/weight.h"
#include "ops/ops.h"

namespace tensorfold::cpu {

/// Sizes of one packed panel, from LinearLayout.
struct PanelShape {
  int64_t num_groups = 0;       ///< 0 where weights are floats, as the next two.
  int64_t segment_groups = 0;   ///< Of the full segments.
  int64_t units_per_group = 0;  ///< Of 32 columns.
  int64_t chunk_bytes = 0;      ///< One group, or one pair of columns.
};

/// One row times one panel of affine weights.
struct RowArgs {
  const std::byte* panel = nullptr;
  PanelShape shape;
  const void* x = nullptr;            ///< The row, of LinearKernels::x_dtype.
  const float* group_sums = nullptr;  ///< [num_groups]
  float* sums = nullptr;              ///< [32], aligned to 64; out: the tree of the eight segments.
};
using RowKernel = void (*)(const RowArgs&);

/// Some rows times a decoded tile. bf16 tiles are [steps][32] words of two columns, f32 tiles [2*steps][32].
struct TileArgs {
  const std::byte* weights = nullptr;
  const float* scales = nullptr;  ///< [num_groups][32]; null where weights are floats, and then num_groups is 1.
  const float* biases = nullptr;  ///< [num_groups][32]
  int64_t num_groups = 0;
  int64_t steps_per_group = 0;
  const std::byte* x = nullptr;  ///< Row 0 at the tile's first column.
  int64_t x_stride_bytes = 0;
  const float* group_sums = nullptr;  ///< Row 0 at the tile's first group.
  int64_t group_sums_stride = 0;
  float* acc = nullptr;  ///< [num_rows][32], aligned to 64: the running sums of a segment.
  int num_rows = 0;      ///< 1 .. LinearKernels::max_tile_rows
};
using TileKernel = void (*)(const TileArgs&);

/// Where decoded weights go.
struct DecodedTile {
  std::byte* weights = nullptr;
  float* scales = nullptr;
  float* biases = nullptr;
};
/// Decodes `num_chunks` chunks of a panel.
using DecodeKernel = void (*)(const DecodedTile&, const std::byte* chunks, int64_t num_chunks, const PanelShape&);

/// Group sums of one row: sums[g] = sum of x over group g, in the order of arithmetic.md.
using GroupSumsKernel = void (*)(float* sums, const void* x, int64_t num_groups, int64_t units_per_group);

/// Everything linear() needs for weights of one spec and activations of one dtype.
struct LinearKernels {
  DType x_dtype = DType::kF32;  ///< What `row`, `tile` and `group_sums` read x as.
  RowKernel row = nullptr;      ///< Null: one row goes through `tile` too.
  DecodeKernel decode = nullptr;  ///< Null: the packed bytes are a tile as they are.
  TileKernel tile = nullptr;
  GroupSumsKernel group_sums = nullptr;
  int max_tile_rows = 1;
};

/// The kernels of an instruction set. AVX-512-BF16 has its own for bf16 activations with affine or bf16 weights, and
/// shares AVX-512's for the rest.
LinearKernels linear_kernels(CpuIsa isa, const LinearSpec& spec, DType activation);

/// linear_simd.cc: fp32 activations, any weights. What the others fall back to.
LinearKernels linear_kernels_f32(CpuIsa isa, const LinearSpec& spec);

/// linear_avx512bf16.cc; only for CpuIsa::kAvx512Bf16 and the specs named above.
LinearKernels linear_kernels_avx512bf16(const LinearSpec& spec);

}  // namespace tensorfold::cpu
