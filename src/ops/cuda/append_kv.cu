// append_kv() on CUDA: rows into pages. Layout of a page: ops/cuda/attention_params.h.
#include "ops/cuda/attention_params.h"
#include "ops/cuda/device/async.cuh"
#include "ops/cuda/device/launch.cuh"
#include "ops/cuda/device/values.cuh"

namespace tensorfold::cuda {
namespace {

constexpr int kBlockWarps = 4;
constexpr int kLaneColumns = 8;  ///< 16 bytes of a page.

/// Columns [column, column + 8) of a row's head, rounded; zeros from `count` on.
template <class T>
__device__ __forceinline__ uint4 rounded_columns(const T* head, int column, int count) {
  float x[kLaneColumns];
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) {
    float value[1] = {0.0f};
    if (column + i < count) load(value, head + column + i);
    x[i] = flush_denormal(value[0]);
  }
  return {float_to_bf16x2(x[0], x[1]), float_to_bf16x2(x[2], x[3]), float_to_bf16x2(x[4], x[5]),
          float_to_bf16x2(x[6], x[7])};
}

__device__ __forceinline__ void append(std::byte* to, const RowsToAppend& rows, int64_t row, int first,
                                       int column, int count) {
  const int64_t at = row * rows.stride + first;
  *reinterpret_cast<uint4*>(to) =
      rows.is_bf16 ? rounded_columns(static_cast<const uint16_t*>(rows.data) + at, column, count)
                   : rounded_columns(static_cast<const float*>(rows.data) + at, column, count);
}

/// Grid: x the KV heads of a sequence's rows, one a warp, y sequences; a lane has 8 columns of keys and
/// values, and those 256 further. Columns beyond head_dim, up to whole blocks of 64, become zeros.
__global__ void __launch_bounds__(32 * kBlockWarps)
    append_kv_kernel(const __grid_constant__ AppendKvLaunch p) {
  launch_dependents();
  // Sequences and page tables are uploaded before the pass's first kernel.
  const AttentionSequence s = p.sequences[blockIdx.y];
  const int index = static_cast<int>(blockIdx.x * kBlockWarps + threadIdx.x / 32);
  const int row = index / p.num_kv_heads, kv_head = index - row * p.num_kv_heads;
  if (row >= s.num_rows) return wait_for_previous_kernel();
  const int padded = (p.head_dim + kKvBlockColumns - 1) / kKvBlockColumns * kKvBlockColumns;
  const int pos = s.first_pos + row, slot = pos % kKvTile, lane = threadIdx.x % 32;
  const int64_t head = int64_t{p.page_tables[s.first_page + pos / kKvTile]} * p.page_stride +
                       int64_t{kv_head} * kKvTile * padded * 2;
  wait_for_previous_kernel();
  for (int column = lane * kLaneColumns; column < padded; column += 32 * kLaneColumns) {
    const int64_t at = head + kv_byte_in_head(slot, column);
    append(p.k_pages + at, p.k, s.first_row + row, kv_head * p.head_dim, column, p.head_dim);
    append(p.v_pages + at, p.v, s.first_row + row, kv_head * p.head_dim, column, p.head_dim);
  }
}

}  // namespace

void launch_append_kv(CUstream_st* stream, const AppendKvLaunch& p) {
  const int64_t warps = int64_t{p.max_rows} * p.num_kv_heads;
  if (warps == 0 || p.num_sequences == 0) return;
  const dim3 grid(static_cast<unsigned>((warps + kBlockWarps - 1) / kBlockWarps), p.num_sequences);
  launch_kernel(append_kv_kernel, grid, 32 * kBlockWarps, 0, stream, p);
}

}  // namespace tensorfold::cuda
