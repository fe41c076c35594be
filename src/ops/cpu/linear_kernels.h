// The inner kernels of linear() and what they are given: one panel of 32 outputs (linear_layout.h) against
// one row or a few, from packed weights to finished sums. linear.cc owns the loops around them, threads and
// memory. Plain data only: the kernel files are compiled for instruction sets that the rest of the program
// may not use.
//
// A kernel for few rows decodes weights in registers and multiplies them by all its rows at once: packed
// weights are the least that can be read from memory. A kernel for many rows may decode them into L1, once
// for several blocks of rows (linear_many_rows.cc). How many rows share a step changes no bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/weight.h"
#include "ops/ops.h"

namespace tensorfold::cpu {

/// Sizes of one packed panel, from LinearLayout.
struct PanelShape {
  int64_t columns = 0;              ///< Padded to whole steps.
  int64_t segment_columns = 0;      ///< Of the full segments.
  int64_t group_columns = 0;        ///< 0 where weights are floats.
  int64_t chunk_bytes = 0;          ///< One group, or one pair of columns.
  DType scale_dtype = DType::kF32;  ///< bf16, f16 or f32; of scales and biases.
};

/// The most rows that any kernel takes at once. Decoding 4 bits costs the multiply-adds of six rows
/// (AVX-512) and is shared by all of them; their sums, 8 KB, stay in L1 with the weights.
inline constexpr int kMaxKernelRows = 64;

/// How far ahead of its reads a kernel asks for weights: what a core must have in flight to draw its share of
/// memory (45 GB/s times 110 ns), and more, since eight rows are worked on for a while between two reads.
inline constexpr int64_t kPrefetchBytes = 8 << 10;

/// Rows times one panel.
struct PanelArgs {
  const std::byte* panel = nullptr;
  const std::byte* prefetch_end =
      nullptr;  ///< End of the weights that this thread will read after this panel.
  PanelShape shape;
  const std::byte* x = nullptr;  ///< Row 0: [columns] of LinearKernels::x_dtype.
  int64_t x_stride_bytes = 0;
  const float* group_sums = nullptr;  ///< Row 0: [groups]; null where no group has a bias.
  int64_t group_sums_stride = 0;
  float* sums = nullptr;  ///< [num_rows][32], aligned to 64; out: the tree of the eight segments.
  int num_rows = 0;       ///< 1 .. RowsKernel::max_rows
};
using PanelKernel = void (*)(const PanelArgs&);

/// A kernel and the most rows of one call of it.
struct RowsKernel {
  PanelKernel panel = nullptr;
  int max_rows = 1;
};

/// Group sums of one row: sums[g] = sum of x over group g, in the order of arithmetic.md.
using GroupSumsKernel = void (*)(float* sums, const void* x, int64_t num_groups, int64_t group_columns);

/// Everything linear() needs for weights of one spec and activations of one dtype.
struct LinearKernels {
  DType x_dtype = DType::kF32;  ///< What the kernels read x as.
  RowsKernel few_rows;
  RowsKernel many_rows;
  int min_many_rows = 1;  ///< From so many rows on `many_rows` is faster.
  GroupSumsKernel group_sums = nullptr;

  const RowsKernel& kernel_for(int64_t num_rows) const {
    return num_rows < min_many_rows ? few_rows : many_rows;
  }
};

/// The kernels of an instruction set. AVX-512-BF16 has its own for bf16 activations with affine, MXFP4 or
/// bf16 weights, and shares AVX-512's for the rest.
LinearKernels linear_kernels(CpuIsa isa, const LinearSpec& spec, DType activation);

/// linear_simd.cc: fp32 activations, any weights. What the others fall back to.
LinearKernels linear_kernels_f32(CpuIsa isa, const LinearSpec& spec);

/// linear_many_rows.cc: those of linear_kernels_f32 for more rows, up to kMaxKernelRows.
PanelKernel many_rows_panel(CpuIsa isa, const LinearSpec& spec);

/// linear_avx512bf16.cc; only for CpuIsa::kAvx512Bf16 and the specs named above.
LinearKernels linear_kernels_avx512bf16(const LinearSpec& spec);

}  // namespace tensorfold::cpu
