// The inner kernels of attention and what they are given. attention.cc owns the loops around them, threads and memory.
// Plain data only, and no inline function with linkage: attention_avx512bf16.cc is compiled for an instruction set that
// the rest of the program may not use.
//
// Both products of attention are one kernel. A *panel* adds, for some query rows, the steps of arithmetic.md's
// "Linear" to columns that lie in lanes: q.k has keys in lanes and steps along head_dim, p.v has head_dim in lanes and
// steps along keys. Pages store both operands in that order (ops/kv_layout.h).
#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace tensorfold::cpu {

/// c[r][x] = c[r][x] * scale[r] (or +0), then for each step j ascending
///   c[r][x] = fma(a[r][2j+1], b[j][x][1], c[r][x]);  c[r][x] = fma(a[r][2j], b[j][x][0], c[r][x])
struct PanelArgs {
  float* c = nullptr;            ///< [num_rows][num_columns]
  int64_t c_stride = 0;          ///< Elements from row to row.
  const float* scale = nullptr;  ///< [num_rows], or null: start from +0.
  const void* a = nullptr;       ///< [num_rows][2 * num_steps], bf16 for a kernel with bf16 operands, else f32.
  int64_t a_stride = 0;          ///< Elements from row to row.
  const void* b = nullptr;       ///< bf16 [num_steps][num_columns][2], or f32 [2 * num_steps][num_columns].
  int64_t b_stride = 0;          ///< Columns from step to step (f32: of one of the two rows).
  int64_t num_rows = 0;
  int64_t num_columns = 0;       ///< A multiple of 16.
  int64_t num_steps = 0;
  /// What is read after b, of the same size, or null. A kernel fetches ahead of itself, in the end from there: a tile
  /// is too short, and lies too far from the next, for the hardware to see a stream.
  const void* next = nullptr;
};

/// How many steps ahead. A tile of 64 keys and a head of 64 are 32 steps of 256 bytes; on Zen 5, 24 of them ahead read
/// at the rate of a plain sum, half or all of them a tenth to a quarter slower. Static because of what the top says.
static constexpr int64_t prefetch_distance(int64_t num_steps) { return num_steps - num_steps / 4; }

using PanelKernel = void (*)(const PanelArgs&);

/// The softmax of one tile for some query rows: their raw products q.k become weights.
///   s = score_scale * product where the slot is in sight, -inf elsewhere;  m' = max(m, max s)
///   p = 2^(s - m');  a = 2^(m - m');  l = fma(l, a, sum p);  m = m'
struct TileSoftmaxArgs {
  const float* products = nullptr;  ///< [num_rows][64]
  void* weights = nullptr;          ///< [num_rows][64] out: p as the p.v kernel takes it.
  const int32_t* first_slot = nullptr;  ///< [num_rows] slots in sight: [first_slot, end_slot), never empty.
  const int32_t* end_slot = nullptr;    ///< [num_rows]
  float* m = nullptr;  ///< [num_rows] in and out.
  float* l = nullptr;  ///< [num_rows] in and out.
  float* a = nullptr;  ///< [num_rows] out.
  float score_scale = 0.0f;
  int64_t num_rows = 0;
};
using TileSoftmaxKernel = void (*)(const TileSoftmaxArgs&);

/// The online softmax of one query row over some keys: its m, its l and its o.
struct RowPartial {
  float* m;
  float* l;
  float* o;
};

/// How f32 pages, or bf16 ones, are computed on one instruction set.
struct AttentionKernels {
  PanelKernel panel = nullptr;
  TileSoftmaxKernel tile_softmax = nullptr;
  /// Merges `other` into `total`; o has n elements, a multiple of 16.
  void (*merge)(const RowPartial& total, const RowPartial& other, int64_t n) = nullptr;
  /// out = o / l, n elements, to bf16 or f32.
  void (*finish)(std::byte* out, const float* o, float l, int64_t n) = nullptr;
  DType operand_dtype = DType::kF32;  ///< Of queries and weights: PanelArgs::a.
};

/// `isa` as in CpuContext; `dtype` of the pages.
AttentionKernels attention_kernels(CpuIsa isa, DType dtype);

#if defined(__x86_64__)
/// The panel of bf16 operands with VDPBF16PS. Only where the CPU has it.
void attention_panel_avx512bf16(const PanelArgs& args);
#endif

}  // namespace tensorfold::cpu
