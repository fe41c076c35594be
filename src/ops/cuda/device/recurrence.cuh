// What the recurrences' kernels share: who computes which columns of the state, the ring through which
// prepared rows reach them, and the sums over lanes (arithmetic.md, "Recurrences").
//
// Eight lanes share a column of the state, lane i holding in registers the keys i, i + 8, ... of the eight
// partial sums; a thread has kThreadColumns columns, so that a key read from shared memory serves several.
// These warps only compute. Others of the block prepare the rows ahead of them, for all columns once: keys
// and queries in the lanes' order, and what a column needs of a row in 16 bytes.
#pragma once

#include <cstdint>

#include "ops/contract_math.h"
#include "ops/cuda/device/async.cuh"
#include "ops/cuda/recurrences_params.h"

namespace tensorfold::cuda {

constexpr int kKeyLanes = 8;
constexpr int kWarpGroups = 32 / kKeyLanes;

/// kLaneKeys: keys of a lane, 8 times as many as the key dimension or more. kWarpRows: rows a preparing warp
/// does at once.
template <int kLaneKeys_, int kThreadColumns_, int kComputeWarps_, int kPrepareWarps_, int kWarpRows_,
          int kBlocksPerSm_>
struct RecurrenceShape {
  static constexpr int kLaneKeys = kLaneKeys_, kThreadColumns = kThreadColumns_,
                       kComputeWarps = kComputeWarps_, kPrepareWarps = kPrepareWarps_, kWarpRows = kWarpRows_,
                       kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kKeys = kKeyLanes * kLaneKeys;
  static constexpr int kPieces = kKeys / 32;  ///< Keys of a lane where a whole warp shares a row.
  static constexpr int kWarpColumns = kWarpGroups * kThreadColumns;
  static constexpr int kColumns = kWarpColumns * kComputeWarps;
  static constexpr int kThreads = 32 * (kComputeWarps + kPrepareWarps);
  static constexpr int kStageRows = kPrepareWarps * kWarpRows;
  static constexpr int kRingRows = 2 * kStageRows;
  /// A row of the ring: keys, queries, then four floats a column.
  static constexpr int kColumnsAt = 2 * kKeys;
  static constexpr int kRowFloats = kColumnsAt + 4 * kColumns;
  /// Behind the ring: a preparing warp's gates, two floats a row and head; a block has no more heads than
  /// columns.
  static constexpr int kGateFloats = 2 * kWarpRows * kColumns;
  static constexpr int kSharedBytes = 4 * (kRingRows * kRowFloats + kPrepareWarps * kGateFloats);
  /// One row of a sequence and no more: decoding. A ring of one stage then, which nobody refills.
  static constexpr bool kIsOneRow = kStageRows == 1;
  static_assert(kIsOneRow ||
                (kStageRows % 4 == 0 && (kRingRows & (kRingRows - 1)) == 0 && kWarpRows % 4 == 0));
};

/// The block's part of the launch. Grid: x key heads times blocks of a run, y sequences.
template <class Shape>
struct RecurrenceBlock {
  RecurrentSequence sequence;
  int key_head, first_column, num_columns;  ///< Columns within the run of the key head.
  int first_head, num_heads;                ///< Value heads of these columns, among all.

  __device__ __forceinline__ explicit RecurrenceBlock(const RecurrenceLaunch& p)
      : sequence(p.sequences[blockIdx.y]) {
    const int blocks = (p.run_columns + Shape::kColumns - 1) / Shape::kColumns;
    key_head = blockIdx.x / blocks;
    first_column = blockIdx.x % blocks * Shape::kColumns;
    num_columns = min(Shape::kColumns, p.run_columns - first_column);
    first_head = (key_head * p.run_columns + first_column) / p.value_dim;
    num_heads = (key_head * p.run_columns + first_column + num_columns - 1) / p.value_dim + 1 - first_head;
  }
  /// One value head of a sequence.
  __device__ __forceinline__ RecurrenceBlock(const RecurrenceLaunch& p, const RecurrentSequence& sequence_,
                                             int head)
      : sequence(sequence_), num_columns(p.value_dim), first_head(head), num_heads(1) {
    key_head = head * p.value_dim / p.run_columns;
    first_column = head * p.value_dim - key_head * p.run_columns;
  }
  /// Of the block's column 0, among the columns of all value heads.
  __device__ __forceinline__ int64_t first_of_all(const RecurrenceLaunch& p) const {
    return int64_t{key_head} * p.run_columns + first_column;
  }
};

/// Prepared rows in shared memory, two stages in turn. Every preparing lane arrives at `full`, every
/// computing at `empty`.
template <class Shape>
struct RowRing {
  float* rows;
  uint32_t barriers;  ///< Shared address of full[2], empty[2].

  __device__ __forceinline__ float* row(int t) const {
    return rows + (t & (Shape::kRingRows - 1)) * Shape::kRowFloats;
  }
  __device__ __forceinline__ void wait_full(int t) const {
    const int stage = t / Shape::kStageRows;
    mbarrier_wait(barriers + 8 * (stage & 1), stage >> 1 & 1);
  }
  __device__ __forceinline__ void wait_empty(int stage) const {
    if (stage >= 2) mbarrier_wait(barriers + 16 + 8 * (stage & 1), ((stage >> 1) - 1) & 1);
  }
  __device__ __forceinline__ void arrive_full(int stage) const { arrive(barriers + 8 * (stage & 1)); }
  __device__ __forceinline__ void arrive_empty(int stage) const { arrive(barriers + 16 + 8 * (stage & 1)); }

 private:
  __device__ __forceinline__ static void arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
  }
};

template <class Shape>
__device__ __forceinline__ RowRing<Shape> make_ring(float* shared, uint64_t* barriers) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(&barriers[i], 32 * Shape::kPrepareWarps);
      mbarrier_init(&barriers[2 + i], 32 * Shape::kComputeWarps);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  // Through a register that the compiler knows nothing of: else it works the addresses out anew in every row.
  uint32_t address;
  asm volatile("mov.u32 %0, %1;" : "=r"(address) : "r"(shared_address(barriers)));
  return {shared, address};
}

/// Place of a key in a row of the ring: the lanes' order, as matrix_place().
__device__ __forceinline__ int ring_place(int key) { return key / 32 * 32 + key % 8 * 4 + key / 8 % 4; }

__device__ __forceinline__ void load_4(float* to, const float* from) {
  const float4 v = *reinterpret_cast<const float4*>(from);
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

/// A computing lane's part of the state, in registers: s[c][n] is key key_lane + 8n of the block's column
/// column(c). Columns and keys that do not exist are +0.
template <class Shape>
struct StateTile {
  static constexpr int kThreadColumns = Shape::kThreadColumns;
  float s[kThreadColumns][Shape::kLaneKeys];
  int key_lane, first_column;

  __device__ __forceinline__ StateTile()
      : key_lane(threadIdx.x % kKeyLanes),
        first_column(threadIdx.x / 32 * Shape::kWarpColumns + threadIdx.x % 32 / kKeyLanes) {}
  __device__ __forceinline__ int column(int c) const { return first_column + c * kWarpGroups; }

  __device__ __forceinline__ void load(const RecurrenceLaunch& p, const RecurrenceBlock<Shape>& block) {
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
#pragma unroll
      for (int n = 0; n < Shape::kLaneKeys; ++n) s[c][n] = 0.0f;
    }
    if (block.sequence.is_start) return;
    for_pieces(
        p, block, [&](int c, int n, const float4* from) { load_4(&s[c][n], &from->x); },
        [&](int c, int n, const float* from) { s[c][n] = *from; });
  }
  __device__ __forceinline__ void store(const RecurrenceLaunch& p,
                                        const RecurrenceBlock<Shape>& block) const {
    for_pieces(
        p, block,
        [&](int c, int n, float4* to) {
          *to = {s[c][n], s[c][n + 1], s[c][n + 2], s[c][n + 3]};
        },
        [&](int c, int n, float* to) { *to = s[c][n]; });
  }

 private:
  /// four(c, n, address) where the layout has this lane's keys n .. n + 3 together, else one(c, n, address).
  template <class Four, class One>
  __device__ __forceinline__ void for_pieces(const RecurrenceLaunch& p, const RecurrenceBlock<Shape>& block,
                                             const Four& four, const One& one) const {
    float* states = p.states + block.sequence.state_slot * p.slot_stride + block.first_of_all(p) * p.key_dim;
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
      if (column(c) >= block.num_columns) continue;
      float* keys = states + int64_t{column(c)} * p.key_dim;
      if (p.key_dim % 32 == 0) {
#pragma unroll
        for (int n = 0; n < Shape::kLaneKeys; n += 4) {
          if (8 * n < p.key_dim) four(c, n, reinterpret_cast<float4*>(keys + 8 * n + key_lane * 4));
        }
      } else {
#pragma unroll
        for (int n = 0; n < Shape::kLaneKeys; ++n) {
          if (8 * n + key_lane < p.key_dim) one(c, n, keys + 8 * n + key_lane);
        }
      }
    }
  }
};

/// One preparing warp: it does kWarpRows neighbouring rows of every stage. A row beyond the sequence's last
/// is prepared as a copy of the last and read by nobody.
template <class Shape>
struct PreparingWarp {
  static constexpr int kRows = Shape::kWarpRows, kLaneColumns = (Shape::kColumns + 31) / 32;
  int lane, first, count;   ///< Rows [first, first + count) of the sequence.
  int first_row;            ///< Of the sequence, in the pass.
  int key_at, value_at;     ///< This lane's first element in a row of the keys, of the values.
  int heads[kLaneColumns];  ///< Of this lane's columns lane, lane + 32, ..., from the block's first on.
  float* gates;             ///< This warp's, [rows][heads][2].

  __device__ __forceinline__ PreparingWarp(const RecurrenceLaunch& p, const RecurrenceBlock<Shape>& block,
                                           float* gates_)
      : lane(threadIdx.x % 32), first_row(block.sequence.first_row), gates(gates_) {
    key_at = block.key_head * p.key_dim + lane;
    value_at = block.key_head * p.run_columns + block.first_column + lane;
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) heads[i] = (value_at + 32 * i) / p.value_dim - block.first_head;
  }

  /// Elements lane, lane + 32, ... of each row's key head. A missing one is -0: its product with a state of
  /// +0 leaves every partial sum as it is, -0 too.
  __device__ __forceinline__ void load_keys(float (&x)[kRows][Shape::kPieces], const RowsOfFloats& rows,
                                            int key_dim) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float* from = row_of(rows, r) + key_at;
#pragma unroll
      for (int i = 0; i < Shape::kPieces; ++i) x[r][i] = lane + 32 * i < key_dim ? from[32 * i] : -0.0f;
    }
  }
  __device__ __forceinline__ void store_keys(float* row, const float (&x)[Shape::kPieces]) const {
#pragma unroll
    for (int i = 0; i < Shape::kPieces; ++i) row[ring_place(lane) + 32 * i] = x[i];
  }
  __device__ __forceinline__ void load_values(float (&x)[kRows][kLaneColumns], const RowsOfFloats& rows,
                                              int num_columns) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float* from = row_of(rows, r) + value_at;
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i) x[r][i] = lane + 32 * i < num_columns ? from[32 * i] : 0.0f;
    }
  }
  /// body(row of the pass, value head, gates of both): each row and head by one lane.
  template <class Body>
  __device__ __forceinline__ void for_gates(const RecurrenceBlock<Shape>& block, const Body& body) const {
    for (int i = lane; i < kRows * block.num_heads; i += 32) {
      const int r = i / block.num_heads;
      body(int64_t{first_row} + first + min(r, count - 1), block.first_head + i - r * block.num_heads,
           gates + 2 * i);
    }
  }
  __device__ __forceinline__ float2 gates_of(int r, int i, int num_heads) const {
    return *reinterpret_cast<const float2*>(gates + 2 * (r * num_heads + heads[i]));
  }

 private:
  __device__ __forceinline__ const float* row_of(const RowsOfFloats& rows, int r) const {
    return rows.data + int64_t{first_row + first + min(r, count - 1)} * rows.stride;
  }
};

/// prepare(warp, stage, first of its rows in the ring) for every stage of the sequence.
template <class Shape, class Prepare>
__device__ __forceinline__ void prepare_rows(const RecurrenceLaunch& p, const RecurrenceBlock<Shape>& block,
                                             const RowRing<Shape>& ring, const Prepare& prepare) {
  const int index = threadIdx.x / 32 - Shape::kComputeWarps;
  PreparingWarp<Shape> warp(p, block,
                            ring.rows + Shape::kRingRows * Shape::kRowFloats + index * Shape::kGateFloats);
#pragma unroll 1
  for (int stage = 0; stage * Shape::kStageRows < (Shape::kIsOneRow ? 1 : block.sequence.num_rows); ++stage) {
    warp.first = stage * Shape::kStageRows + index * Shape::kWarpRows;
    warp.count = min(Shape::kWarpRows, block.sequence.num_rows - warp.first);
    if (warp.count > 0) prepare(warp, stage, ring.row(warp.first));
    __syncwarp();  // The gates are written anew for the next stage, by other lanes.
    ring.arrive_full(stage);
  }
}

/// Sums over the 32 lanes of kCount values at once, partial i plus partial i + 16, and so on down; lane i
/// returns the sum of value i * kCount / 32. Halving the values along with the lanes takes kCount + 1
/// exchanges or so, not 5 * kCount.
template <int kBit, int kCount>
__device__ __forceinline__ float sum_lanes(const float (&v)[kCount], int lane) {
  if constexpr (kCount == 1) {
    float sum = v[0];
#pragma unroll
    for (int bit = kBit; bit >= 1; bit /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, bit));
    return sum;
  } else {
    const bool is_upper = lane & kBit;
    float kept[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      kept[i] = is_upper ? v[i + kCount / 2] : v[i];
      const float sent = is_upper ? v[i] : v[i + kCount / 2];
      kept[i] = __fadd_rn(kept[i], __shfl_xor_sync(0xffffffffu, sent, kBit));
    }
    return sum_lanes<kBit / 2>(kept, lane);
  }
}

/// The eight partial sums of a column, in its eight lanes, by halving.
__device__ __forceinline__ float sum_partials(float partial) {
#pragma unroll
  for (int bit = kKeyLanes / 2; bit >= 1; bit /= 2) {
    partial = __fadd_rn(partial, __shfl_xor_sync(0xffffffffu, partial, bit));
  }
  return partial;
}

/// *to = value where t < limit: one instruction under a predicate, without a branch that would cut the row's
/// arithmetic.
__device__ __forceinline__ void store_below(float* to, float value, int t, int limit) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.lt.s32 p, %2, %3;\n"
      "@p st.global.f32 [%0], %1;\n"
      "}\n" ::"l"(to),
      "f"(value), "r"(t), "r"(limit)
      : "memory");
}

/// e^-(e^a_log * step).
__device__ __forceinline__ float decay_of(float a_log, float step) {
  return exp_f32(-(exp_f32(a_log) * step));
}

}  // namespace tensorfold::cuda
