// gated_delta() on CUDA. Who holds what: device/recurrence.cuh; the formula: Ops::gated_delta().
//
// One pass over the state a row: while row t's update writes an element, its products with row t + 1's key
// and query are added up. The sums over lanes of one column run under the arithmetic of the next one, so that
// a lone warp keeps an SM's scheduler busy; a column's u is therefore known one column ahead.
#include <cuda_runtime.h>

#include "ops/cuda/device/launch.cuh"
#include "ops/cuda/device/recurrence.cuh"

namespace tensorfold::cuda {
namespace {

/// Keys and queries of unit length (queries scaled), q.k, and {v, g, beta, q.k} for each column.
template <class Shape>
__device__ __forceinline__ void prepare_delta_rows(const RecurrenceLaunch& p,
                                                   const RecurrenceBlock<Shape>& block,
                                                   const RowRing<Shape>& ring,
                                                   const PreparingWarp<Shape>& warp, int stage, float* rows) {
  constexpr int kRows = Shape::kWarpRows, kPieces = Shape::kPieces;
  float x[2][kRows][kPieces], values[kRows][PreparingWarp<Shape>::kLaneColumns];
  warp.load_keys(x[0], p.keys, p.key_dim);
  warp.load_keys(x[1], p.queries, p.key_dim);
  warp.load_values(values, p.values, block.num_columns);
  warp.for_gates(block, [&](int64_t row, int head, float* gates) {
    const float step = softplus_f32(p.decay.data[row * p.decay.stride + head] + p.dt_bias[head]);
    gates[0] = decay_of(p.a_log[head], step);
    gates[1] = sigmoid_f32(p.beta.data[row * p.beta.stride + head]);
  });

  // Short sums of squares: 256 strided partials are one element each; a lane's own are halved first.
  float squares[2 * kRows];
#pragma unroll
  for (int i = 0; i < 2 * kRows; ++i) {
    float part[kPieces];
#pragma unroll
    for (int j = 0; j < kPieces; ++j)
      part[j] = __fmul_rn(x[i / kRows][i % kRows][j], x[i / kRows][i % kRows][j]);
#pragma unroll
    for (int half = kPieces / 2; half >= 1; half /= 2) {
#pragma unroll
      for (int j = 0; j < half; ++j) part[j] = __fadd_rn(part[j], part[j + half]);
    }
    squares[i] = part[0];
  }
  const float inverse = rsqrt_f32(__fadd_rn(sum_lanes<16>(squares, warp.lane), 1e-6f));

  ring.wait_empty(stage);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float key_inverse = __shfl_sync(0xffffffffu, inverse, r * 16 / kRows);
    const float query_inverse = __shfl_sync(0xffffffffu, inverse, (kRows + r) * 16 / kRows);
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      x[0][r][j] = __fmul_rn(x[0][r][j], key_inverse);
      x[1][r][j] = __fmul_rn(__fmul_rn(x[1][r][j], query_inverse), p.query_scale);
    }
    warp.store_keys(rows + r * Shape::kRowFloats, x[0][r]);
    warp.store_keys(rows + r * Shape::kRowFloats + Shape::kKeys, x[1][r]);
  }
  __syncwarp();

  // q.k of four rows at once, eight lanes each.
  constexpr int kFours = (kRows + 3) / 4;
  float products[kFours];
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const int key_lane = warp.lane % kKeyLanes, r = kRows == 1 ? 0 : 4 * i + warp.lane / kKeyLanes;
    const float* row = rows + r * Shape::kRowFloats + key_lane * 4;
    float partial = 0.0f;
#pragma unroll
    for (int n = 0; n < Shape::kLaneKeys; n += 4) {
      float k[4], q[4];
      load_4(k, row + 8 * n), load_4(q, row + Shape::kKeys + 8 * n);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        // The product of two missing keys would be +0.
        if (8 * (n + j) + key_lane < p.key_dim) partial = __fmaf_rn(q[j], k[j], partial);
      }
    }
    products[i] = sum_partials(partial);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float product = __shfl_sync(0xffffffffu, products[r / 4], r % 4 * kKeyLanes);
    float4* columns = reinterpret_cast<float4*>(rows + r * Shape::kRowFloats + Shape::kColumnsAt);
#pragma unroll
    for (int i = 0; i < PreparingWarp<Shape>::kLaneColumns; ++i) {
      if (warp.lane + 32 * i >= block.num_columns) continue;
      const float2 gates = warp.gates_of(r, i, block.num_heads);
      columns[warp.lane + 32 * i] = {values[r][i], gates.x, gates.y, product};
    }
  }
}

template <class Shape>
struct DeltaCompute {
  static constexpr int kColumns = Shape::kThreadColumns, kKeys = Shape::kLaneKeys;
  StateTile<Shape> tile;
  RowRing<Shape> ring;
  float key_sum[kColumns], query_sum[kColumns];  ///< This lane's partials for the row to come.
  float u[kColumns], g[kColumns];
  int out_rows[kColumns];  ///< Rows of each column that this lane writes: all or none.
  float* out;              ///< Of the row at hand and this lane's column 0.
  int out_stride, num_rows;

  __device__ __forceinline__ DeltaCompute(const RecurrenceLaunch& p, const RecurrenceBlock<Shape>& block,
                                          const RowRing<Shape>& ring_)
      : ring(ring_), out_stride(p.out_stride), num_rows(block.sequence.num_rows) {
    out = p.out + int64_t{block.sequence.first_row} * out_stride + block.first_of_all(p) + tile.first_column;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      out_rows[c] = tile.key_lane == kKeyLanes / 2 && tile.column(c) < block.num_columns ? num_rows : 0;
    }
  }

  /// `row` is one of the ring.
  __device__ __forceinline__ void load(float (&x)[kKeys], int n, const float* row) const {
    load_4(&x[n], row + 8 * n + tile.key_lane * 4);
  }

  /// Row t's u and output of column c. The lower four lanes of a column add up k.S, the upper q.S.
  __device__ __forceinline__ void finish(int c, int t, const float* row, float* out_row) {
    const bool is_upper = tile.key_lane & 4;
    const float kept = is_upper ? query_sum[c] : key_sum[c], sent = is_upper ? key_sum[c] : query_sum[c];
    float sum = __fadd_rn(kept, __shfl_xor_sync(0xffffffffu, sent, 4));
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
    const float key_total = __shfl_sync(0xffffffffu, sum, 0, kKeyLanes);
    float w[4];  // v, g, beta, q.k
    load_4(w, row + Shape::kColumnsAt + 4 * tile.column(c));
    g[c] = w[1];
    u[c] = __fmul_rn(w[2], __fmaf_rn(-w[1], key_total, w[0]));
    const float y = __fmaf_rn(w[3], u[c], __fmul_rn(w[1], sum));
    store_below(out_row + c * kWarpGroups, y, t, out_rows[c]);
  }

  /// This lane's partials of k.S and q.S.
  __device__ __forceinline__ void sum(const float (&k)[kKeys], const float (&q)[kKeys]) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      key_sum[c] = query_sum[c] = 0.0f;
#pragma unroll
      for (int n = 0; n < kKeys; ++n) {
        key_sum[c] = __fmaf_rn(k[n], tile.s[c][n], key_sum[c]);
        query_sum[c] = __fmaf_rn(q[n], tile.s[c][n], query_sum[c]);
      }
    }
  }

  /// Row t's update of all columns, and the sums for row t + 1, `next`, whose keys and queries `k_next` and
  /// `q_next` become.
  __device__ __forceinline__ void update(int t, const float* row, const float* next, const float (&k)[kKeys],
                                         float (&k_next)[kKeys], float (&q_next)[kKeys]) {
    float* out_next = out + out_stride;
    // The keys of row t - 1 made room for those of t + 1. The first column's updates hide the loads.
#pragma unroll
    for (int n = 0; n < kKeys; n += 4) load(k_next, n, next), load(q_next, n, next + Shape::kKeys);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (c == 0)
        finish(kColumns - 1, t, row, out);
      else
        finish(c - 1, t + 1, next, out_next);
      float sum_k = 0.0f, sum_q = 0.0f;
#pragma unroll
      for (int n = 0; n < kKeys; ++n) {
        float& s = tile.s[c][n];
        s = __fmaf_rn(k[n], u[c], __fmul_rn(g[c], s));
        sum_k = __fmaf_rn(k_next[n], s, sum_k);
        sum_q = __fmaf_rn(q_next[n], s, sum_q);
      }
      key_sum[c] = sum_k, query_sum[c] = sum_q;
    }
    out = out_next;
  }

  /// The only row.
  __device__ __forceinline__ void run_one() {
    float k[kKeys], q[kKeys];
    const float* row = ring.row(0);
    ring.wait_full(0);
#pragma unroll
    for (int n = 0; n < kKeys; n += 4) load(k, n, row), load(q, n, row + Shape::kKeys);
    sum(k, q);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) finish(c, 0, row, out);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int n = 0; n < kKeys; ++n) tile.s[c][n] = __fmaf_rn(k[n], u[c], __fmul_rn(g[c], tile.s[c][n]));
    }
  }

  /// All rows; store() is called when the tile is the state after the first `stored` of them.
  template <class Store>
  __device__ __forceinline__ void run(int stored, const Store& store) {
    constexpr int kRow = Shape::kRowFloats;
    float k[kKeys], k_next[kKeys], q[kKeys];
    const float* row = ring.row(0);
    ring.wait_full(0);
#pragma unroll
    for (int n = 0; n < kKeys; n += 4) load(k, n, row), load(q, n, row + Shape::kKeys);
    sum(k, q);
#pragma unroll
    for (int c = 0; c + 1 < kColumns; ++c) finish(c, 0, row, out);

    // What is read of a row that does not exist is never used. Four rows a round: a jump back costs some 50
    // cycles.
    int t = 0;
#pragma unroll 1
    for (; stored >= num_rows && t + 3 < num_rows; t += 4) {
      const bool ends_stage = (t + 4) % Shape::kStageRows == 0;
      if (ends_stage && t + 4 < num_rows) ring.wait_full(t + 4);
      const float* after = ring.row(t + 4);
      update(t, row, row + kRow, k, k_next, q);
      update(t + 1, row + kRow, row + 2 * kRow, k_next, k, q);
      update(t + 2, row + 2 * kRow, row + 3 * kRow, k, k_next, q);
      update(t + 3, row + 3 * kRow, after, k_next, k, q);
      row = after;
      if (ends_stage) ring.arrive_empty(t / Shape::kStageRows);
    }
#pragma unroll 1
    for (; t < num_rows; ++t) {
      const bool ends_stage = (t + 1) % Shape::kStageRows == 0;
      if (ends_stage && t + 1 < num_rows) ring.wait_full(t + 1);
      const float* next = ring.row(t + 1);
      update(t, row, next, k, k_next, q);
      if (t + 1 == stored) store();
#pragma unroll
      for (int n = 0; n < kKeys; ++n) k[n] = k_next[n];
      row = next;
      if (ends_stage) ring.arrive_empty(t / Shape::kStageRows);
    }
  }
};

/// A block computes its columns for all rows of a sequence. Traffic: its part of the state, read and written;
/// its columns of v and out; k and q of its key head, which the blocks of one key head share in L2.
template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksPerSm)
    gated_delta_kernel(const __grid_constant__ RecurrenceLaunch p) {
  extern __shared__ float4 shared[];
  __shared__ uint64_t barriers[4];
  const RecurrenceBlock<Shape> block(p);
  const RowRing<Shape> ring = make_ring<Shape>(reinterpret_cast<float*>(shared), barriers);
  launch_dependents();
  if (block.sequence.num_rows == 0) return wait_for_previous_kernel();
  if (threadIdx.x >= 32 * Shape::kComputeWarps) {
    wait_for_previous_kernel();
    prepare_rows<Shape>(p, block, ring, [&](const PreparingWarp<Shape>& warp, int stage, float* rows) {
      prepare_delta_rows<Shape>(p, block, ring, warp, stage, rows);
    });
    return;
  }
  DeltaCompute<Shape> compute(p, block, ring);
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
  auto* kernel = gated_delta_kernel<Shape>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes);
  const int blocks = p.num_key_heads * ((p.run_columns + Shape::kColumns - 1) / Shape::kColumns);
  launch_kernel(kernel, dim3(blocks, p.num_sequences), dim3(Shape::kThreads), Shape::kSharedBytes, stream, p);
}

}  // namespace

void launch_gated_delta(CUstream_st* stream, const RecurrenceLaunch& p) {
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
