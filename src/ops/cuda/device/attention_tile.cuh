// What the kernels of attention() share: which keys a query row sees, its tile's products, and the end of a
// row. Arithmetic: device/softmax.cuh. Pages: ops/cuda/attention_params.h.
#pragma once

#include "ops/cuda/attention_params.h"
#include "ops/cuda/device/async.cuh"
#include "ops/cuda/device/mma.cuh"
#include "ops/cuda/device/softmax.cuh"

namespace tensorfold::cuda {

/// The ring that brings keys and values: a stage is 64 columns of the keys or values of one tile.
constexpr int kKvStageBytes = kKvTile * 128;

__device__ __forceinline__ int visible_begin(const AttentionLaunch& p, int pos) {
  return p.window > 0 && pos + 1 > p.window ? pos + 1 - p.window : 0;
}

/// One past the last key that the row at `pos` sees.
__device__ __forceinline__ int visible_end(const AttentionLaunch& p, const AttentionSequence& s, int pos) {
  return p.sees_later_rows ? s.first_pos + s.num_rows : pos + 1;
}

/// One lane's two query rows: rows l/4 and l/4 + 8 of its warp's tile. A row beyond the list sees nothing.
struct QueryRows {
  int row[2], head[2], begin[2], end[2];       ///< Row of the pass, query head, visible keys [begin, end).
  int min_begin, max_begin, min_end, max_end;  ///< Over the real rows of the warp's tile.

  QueryRows() = default;
  __device__ __forceinline__ QueryRows(const AttentionLaunch& p, const AttentionSequence& s, int kv_head,
                                       int first, int lane) {
    const int group = p.num_heads / p.num_kv_heads, count = s.num_rows * group;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int index = first + lane / 4 + 8 * i;
      const bool is_real = index < count;
      const int pos = s.first_pos + index / group;
      row[i] = is_real ? s.first_row + index / group : -1;
      head[i] = kv_head * group + index % group;
      end[i] = is_real ? visible_end(p, s, pos) : 0;
      begin[i] = is_real ? visible_begin(p, pos) : 0;
    }
    const int first_pos = s.first_pos + first / group;
    const int last_pos = s.first_pos + (min(first + 16, count) - 1) / group;
    min_end = visible_end(p, s, first_pos), max_end = visible_end(p, s, last_pos);
    min_begin = visible_begin(p, first_pos), max_begin = visible_begin(p, last_pos);
  }
};

/// Shared address of 16-byte piece `piece` of `row` in a block of rows by 64 columns, swizzled.
__device__ __forceinline__ uint32_t piece_address(uint32_t base, int row, int piece) {
  return base + row * 128 + (piece ^ (row % 8)) * 16;
}

/// s = score_scale * s.
template <int kBlocks>
__device__ __forceinline__ void scale(const AttentionLaunch& p, float (&s)[kBlocks][4]) {
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[block][i] = __fmul_rn(p.score_scale, s[block][i]);
  }
}

/// Scores of keys that a row does not see become -inf. s holds the lane's rows by the keys from first_key on.
template <int kBlocks>
__device__ __forceinline__ void mask(float (&s)[kBlocks][4], const QueryRows& rows, int first_key, int lane) {
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first_key + block * 8 + 2 * (lane % 4) + i % 2;
      if (key < rows.begin[i / 2] || key >= rows.end[i / 2]) s[block][i] = kMinusInfinity;
    }
  }
}

/// Both, the second where is_edge; for kernels that have no registers left to keep `rows`: s holds the query
/// rows [first, first + 16).
template <int kBlocks>
__device__ __forceinline__ void scale_and_mask(const AttentionLaunch& p, float (&s)[kBlocks][4],
                                               const AttentionSequence& sequence, int kv_head, int first,
                                               int first_key, bool is_edge, int lane) {
  scale(p, s);
  if (is_edge) mask(s, QueryRows(p, sequence, kv_head, first, lane), first_key, lane);
}

/// Probabilities as the A operands of four steps of 16 keys, and which values of a step count: those of keys
/// that no row of the tile sees are zero, whatever their slots hold.
struct Weights {
  uint32_t a[4][4];
  uint32_t mask[4][2];

  __device__ __forceinline__ explicit Weights(const float (&s)[8][4]) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[step][i] = to_bf16x2(s[2 * step + i / 2][i % 2 * 2], s[2 * step + i / 2][i % 2 * 2 + 1]);
      }
    }
  }
  __device__ __forceinline__ void mask_values(const QueryRows& rows, int first_key, int lane) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int key = first_key + step * 16 + 2 * (lane % 4) + 8 * i;
        mask[step][i] = (key >= rows.min_begin && key < rows.max_end ? 0x0000ffffu : 0) |
                        (key + 1 >= rows.min_begin && key + 1 < rows.max_end ? 0xffff0000u : 0);
      }
    }
  }
};

/// The last step of one element: the sink's span, then the division.
__device__ __forceinline__ float finish(const MergeFactors& sink, bool has_sink, float o, float l) {
  return has_sink ? __fdiv_rn(sink.merge(o, 0.0f), sink.merge(l, 1.0f)) : __fdiv_rn(o, l);
}
__device__ __forceinline__ float sink_log2(const AttentionLaunch& p, int head) {
  return p.sinks == nullptr ? 0.0f
                            : static_cast<float>(static_cast<double>(p.sinks[head]) * 1.4426950408889634);
}

/// What one thread does to bring tiles [first_tile, end_tile), of which there is one: each tile's keys by
/// blocks of 64 columns, then its values, through a ring of kStages whose barriers say what is full and what
/// is empty again. Page tables, and keys before the pass's own, are not of this pass's kernels: only tiles
/// that reach first_pos wait.
template <int kD, int kStages>
__device__ __forceinline__ void bring_tiles(const AttentionLaunch& p, const AttentionSequence& s, int kv_head,
                                            int first_tile, int end_tile, uint32_t ring, uint64_t* full,
                                            uint64_t* empty) {
  int stage = 0, round = 0;
  int next_page = p.page_tables[s.first_page + first_tile];
  bool has_waited = false;
  for (int tile = first_tile; tile < end_tile; ++tile) {
    if (!has_waited && (tile + 1) * kKvTile > s.first_pos) {
      wait_for_previous_kernel();
      has_waited = true;
    }
    const int64_t offset = next_page * p.page_stride + int64_t{kv_head} * kKvTile * kD * 2;
    if (tile + 1 < end_tile) next_page = p.page_tables[s.first_page + tile + 1];
    for (int part = 0; part < 2 * kD / 64; ++part) {
      if (round > 0) mbarrier_wait(&empty[stage], (round - 1) & 1);
      const std::byte* from = (part < kD / 64 ? p.k : p.v) + offset + part % (kD / 64) * kKvStageBytes;
      mbarrier_expect_bytes(&full[stage], kKvStageBytes);
      bulk_copy(ring + stage * kKvStageBytes, from, kKvStageBytes, shared_address(&full[stage]));
      if (++stage == kStages) stage = 0, ++round;
    }
  }
  if (!has_waited) wait_for_previous_kernel();
}

/// Copies the block's queries to shared memory, zeros for what is not there: rows beyond the list, columns
/// beyond D.
template <int kD, int kRows, int kThreads>
__device__ __forceinline__ void stage_queries(const AttentionLaunch& p, const AttentionSequence& s,
                                              int kv_head, int first, std::byte* to) {
  const int group = p.num_heads / p.num_kv_heads, count = s.num_rows * group;
  for (int i = threadIdx.x; i < kRows * kD / 8; i += kThreads) {
    const int r = i / (kD / 8), piece = i % (kD / 8), index = first + r;
    uint4 v = {0, 0, 0, 0};
    if (index < count && piece * 8 < p.head_dim) {
      const int64_t at =
          (s.first_row + index / group) * p.q_stride + (kv_head * group + index % group) * p.head_dim;
      v = *reinterpret_cast<const uint4*>(p.q + (at + piece * 8) * 2);
    }
    *reinterpret_cast<uint4*>(to + piece / 8 * kRows * 128 + r * 128 + ((piece % 8) ^ (r % 8)) * 16) = v;
  }
}

}  // namespace tensorfold::cuda
