// mamba2() on CUDA. Who holds what: device/recurrence.cuh; the formula: Ops::mamba2().
//
// The update needs nothing of the sums, so those over lanes run under the arithmetic of the next row.
#include <cuda_runtime.h>

#include "ops/cuda/device/launch.cuh"
#include "ops/cuda/device/recurrence.cuh"

namespace tensorfold::cuda {
namespace {

/// Keys b and queries c as they are, and {step * x, g, d, x} for each column.
template <class Shape>
__device__ __forceinline__ void prepare_mamba_rows(const RecurrenceLaunch& p,
                                                   const RecurrenceBlock<Shape>& block,
                                                   const RowRing<Shape>& ring,
                                                   const PreparingWarp<Shape>& warp, int stage, float* rows) {
  constexpr int kRows = Shape::kWarpRows, kLaneColumns = PreparingWarp<Shape>::kLaneColumns;
  float keys[kRows][Shape::kPieces], queries[kRows][Shape::kPieces], values[kRows][kLaneColumns],
      skip[kLaneColumns];
  warp.load_keys(keys, p.keys, p.key_dim);
  warp.load_keys(queries, p.queries, p.key_dim);
  warp.load_values(values, p.values, block.num_columns);
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) {
    skip[i] = warp.lane + 32 * i < block.num_columns ? p.skip[block.first_head + warp.heads[i]] : 0.0f;
  }
  warp.for_gates(block, [&](int64_t row, int head, float* gates) {
    const float raw = softplus_f32(p.decay.data[row * p.decay.stride + head] + p.dt_bias[head]);
    const float raised = raw < p.dt_min ? p.dt_min : raw;
    const float step = raised > p.dt_max ? p.dt_max : raised;
    gates[0] = step;
    gates[1] = decay_of(p.a_log[head], step);
  });
  __syncwarp();
  ring.wait_empty(stage);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float* row = rows + r * Shape::kRowFloats;
    warp.store_keys(row, keys[r]);
    warp.store_keys(row + Shape::kKeys, queries[r]);
    float4* columns = reinterpret_cast<float4*>(row + Shape::kColumnsAt);
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) {
      if (warp.lane + 32 * i >= block.num_columns) continue;
      const float2 gates = warp.gates_of(r, i, block.num_heads);
      columns[warp.lane + 32 * i] = {__fmul_rn(gates.x, values[r][i]), gates.y, skip[i], values[r][i]};
    }
  }
}

template <class Shape>
struct MambaCompute {
  static constexpr int kColumns = Shape::kThreadColumns, kKeys = Shape::kLaneKeys;
  StateTile<Shape> tile;
  RowRing<Shape> ring;
  float w[kColumns][4];  ///< step * x, g, d, x.
  /// Of the row before: this lane's partials, d and x.
  float sum[kColumns], skip[kColumns], x[kColumns];
  int out_columns[kColumns];  ///< 1 where this lane writes the column or, c being even, that or the next one;
                              ///< else 0.
  float* out;                 ///< Of the row at hand and the column that this lane writes of the first two.
  int out_stride, num_rows;
  bool is_upper;  ///< Of two columns the upper four lanes add up the second.

  __device__ __forceinline__ MambaCompute(const RecurrenceLaunch& p, const RecurrenceBlock<Shape>& block,
                                          const RowRing<Shape>& ring_)
      : ring(ring_),
        out_stride(p.out_stride),
        num_rows(block.sequence.num_rows),
        is_upper(tile.key_lane & 4) {
    const int64_t column = block.first_of_all(p) + tile.first_column + (is_upper ? kWarpGroups : 0);
    out = p.out + int64_t{block.sequence.first_row} * out_stride + column;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      sum[c] = skip[c] = x[c] = 0.0f;
      const bool has_next = c + 1 < kColumns;
      const bool is_writer = tile.key_lane == 0 || (has_next && tile.key_lane == 4);
      out_columns[c] = is_writer && tile.column(is_upper ? c + 1 : c) < block.num_columns;
    }
  }

  /// Row `row`'s b and c.
  __device__ __forceinline__ void load(float (&b)[kKeys], float (&c)[kKeys], const float* row) const {
#pragma unroll
    for (int n = 0; n < kKeys; n += 4) {
      load_4(&b[n], row + 8 * n + tile.key_lane * 4);
      load_4(&c[n], row + Shape::kKeys + 8 * n + tile.key_lane * 4);
    }
  }
  __device__ __forceinline__ void load_columns(const float* row) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) load_4(w[i], row + Shape::kColumnsAt + 4 * tile.column(i));
  }
  /// Outputs of the row before, two columns at once.
  __device__ __forceinline__ void finish(float* out_row, bool is_row = true) {
#pragma unroll
    for (int c = 0; c < kColumns; c += 2) {
      float total = sum[c], d = skip[c], value = x[c];
      if (c + 1 < kColumns) {
        const float sent = is_upper ? sum[c] : sum[c + 1], kept = is_upper ? sum[c + 1] : sum[c];
        total = __fadd_rn(kept, __shfl_xor_sync(0xffffffffu, sent, 4));
        d = is_upper ? skip[c + 1] : skip[c], value = is_upper ? x[c + 1] : x[c];
      } else {
        total = __fadd_rn(total, __shfl_xor_sync(0xffffffffu, total, 4));
      }
      total = __fadd_rn(total, __shfl_xor_sync(0xffffffffu, total, 2));
      total = __fadd_rn(total, __shfl_xor_sync(0xffffffffu, total, 1));
      store_below(out_row + c * kWarpGroups, __fmaf_rn(d, value, total), is_row ? 0 : 1, out_columns[c]);
    }
  }
  __device__ __forceinline__ void update_columns(const float (&b)[kKeys], const float (&c)[kKeys]) {
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      sum[column] = 0.0f, skip[column] = w[column][2], x[column] = w[column][3];
#pragma unroll
      for (int n = 0; n < kKeys; ++n) {
        float& s = tile.s[column][n];
        s = __fmaf_rn(b[n], w[column][0], __fmul_rn(w[column][1], s));
        sum[column] = __fmaf_rn(c[n], s, sum[column]);
      }
    }
  }

  /// Row t for all columns, and the outputs of row t - 1. `b_next` and `c_next` become those of `next`.
  __device__ __forceinline__ void update(int t, const float* next, const float (&b)[kKeys],
                                         const float (&c)[kKeys], float (&b_next)[kKeys],
                                         float (&c_next)[kKeys]) {
    load(b_next, c_next, next);
    finish(out - out_stride, t > 0);
    update_columns(b, c);
    load_columns(next);
    out += out_stride;
  }

  /// The only row.
  __device__ __forceinline__ void run_one() {
    float b[kKeys], c[kKeys];
    ring.wait_full(0);
    load(b, c, ring.row(0));
    load_columns(ring.row(0));
    update_columns(b, c);
    finish(out);
  }

  /// All rows; store() is called when the tile is the state after the first `stored` of them.
  template <class Store>
  __device__ __forceinline__ void run(int stored, const Store& store) {
    constexpr int kRow = Shape::kRowFloats;
    float b[kKeys], c[kKeys], b_next[kKeys], c_next[kKeys];
    ring.wait_full(0);
    const float* row = ring.row(0);
    load(b, c, row);
    load_columns(row);
    // What is read of a row that does not exist is never used. Four rows a round: a jump back costs some 50
    // cycles.
    int t = 0;
#pragma unroll 1
    for (; stored >= num_rows && t + 3 < num_rows; t += 4) {
      const bool ends_stage = (t + 4) % Shape::kStageRows == 0;
      if (ends_stage && t + 4 < num_rows) ring.wait_full(t + 4);
      const float* after = ring.row(t + 4);
      update(t, row + kRow, b, c, b_next, c_next);
      update(t + 1, row + 2 * kRow, b_next, c_next, b, c);
      update(t + 2, row + 3 * kRow, b, c, b_next, c_next);
      update(t + 3, after, b_next, c_next, b, c);
      row = after;
      if (ends_stage) ring.arrive_empty(t / Shape::kStageRows);
    }
#pragma unroll 1
    for (; t < num_rows; ++t) {
      const bool ends_stage = (t + 1) % Shape::kStageRows == 0;
      if (ends_stage && t + 1 < num_rows) ring.wait_full(t + 1);
      const float* next = ring.row(t + 1);
      update(t, next, b, c, b_next, c_next);
      if (t + 1 == stored) store();
#pragma unroll
      for (int n = 0; n < kKeys; ++n) b[n] = b_next[n], c[n] = c_next[n];
      row = next;
      if (ends_stage) ring.arrive_empty(t / Shape::kStageRows);
    }
    finish(out - out_stride);
  }
};

/// A block computes its columns for all rows of a sequence. Traffic: its part of the state, read and written;
/// its columns of x and out; b and c of its group, which the blocks of one group share in L2.
template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksPerSm)
    mamba2_kernel(const __grid_constant__ RecurrenceLaunch p) {
  extern __shared__ float4 shared[];
  __shared__ uint64_t barriers[4];
  const RecurrenceBlock<Shape> block(p);
  const RowRing<Shape> ring = make_ring<Shape>(reinterpret_cast<float*>(shared), barriers);
  launch_dependents();
  if (block.sequence.num_rows == 0) return wait_for_previous_kernel();
  if (threadIdx.x >= 32 * Shape::kComputeWarps) {
    wait_for_previous_kernel();
    prepare_rows<Shape>(p, block, ring, [&](const PreparingWarp<Shape>& warp, int stage, float* rows) {
      prepare_mamba_rows<Shape>(p, block, ring, warp, stage, rows);
    });
    return;
  }
  MambaCompute<Shape> compute(p, block, ring);
  compute.tile.load(p, block);  // What an earlier pass left, which has ended.
  wait_for_previous_kernel();
  const int stored = block.sequence.num_stored, num_rows = block.sequence.num_rows;
  if constexpr (Shape::kIsOneRow) {
    compute.run_one();
  } else {
    compute.run(stored, [&] {
      if (stored < num_rows) compute.tile.store(p, block);
    });
  }
  if (stored == num_rows) compute.tile.store(p, block);
}

template <class Shape>
void launch(CUstream_st* stream, const RecurrenceLaunch& p) {
  auto* kernel = mamba2_kernel<Shape>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes);
  const int blocks = p.num_key_heads * ((p.run_columns + Shape::kColumns - 1) / Shape::kColumns);
  launch_kernel(kernel, dim3(blocks, p.num_sequences), dim3(Shape::kThreads), Shape::kSharedBytes, stream, p);
}

}  // namespace

void launch_mamba2(CUstream_st* stream, const RecurrenceLaunch& p) {
  const bool is_small = p.blocks == RecurrenceBlocks::kSmall;
  if (p.blocks == RecurrenceBlocks::kOneRow) {
    if (p.key_dim <= 32) return launch<RecurrenceShape<4, 2, 2, 1, 1, 7>>(stream, p);
    if (p.key_dim <= 128) return launch<RecurrenceShape<16, 2, 2, 1, 1, 7>>(stream, p);
    return launch<RecurrenceShape<32, 1, 2, 1, 1, 7>>(stream, p);
  }
  if (p.key_dim <= 32) return launch<RecurrenceShape<4, 2, 4, 2, 4, 2>>(stream, p);
  if (p.key_dim > 128) {
    return is_small ? launch<RecurrenceShape<32, 1, 4, 2, 4, 1>>(stream, p)
                    : launch<RecurrenceShape<32, 2, 4, 4, 4, 1>>(stream, p);
  }
  switch (p.blocks) {
    case RecurrenceBlocks::kOneRow:
    case RecurrenceBlocks::kSmall:
      return launch<RecurrenceShape<16, 2, 4, 2, 4, 2>>(stream, p);
    case RecurrenceBlocks::kMedium:
      return launch<RecurrenceShape<16, 2, 4, 4, 8, 1>>(stream, p);
    case RecurrenceBlocks::kWide:
      return launch<RecurrenceShape<16, 3, 4, 4, 8, 1>>(stream, p);
  }
}

}  // namespace tensorfold::cuda
