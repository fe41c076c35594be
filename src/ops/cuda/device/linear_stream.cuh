// What linear()'s decode kernel and linear_chain() are made of: weights that stream through rings in shared
// memory, x there in operand order, and how the eight sums of a tile come together. Arithmetic:
// ops/cuda/linear.h.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "ops/cuda/device/async.cuh"
#include "ops/cuda/device/linear_operand.cuh"
#include "ops/cuda/device/mma.cuh"
#include "ops/cuda/linear_plan.h"

namespace tensorfold::cuda {

/// A warp's place: lane, warp of the block, block of the cluster, which of the block's segments is its own,
/// the slot that it shares with the warps of the other segments, and the cluster.
struct WarpPlace {
  int lane, warp, rank, segment, slot, slots, cluster, clusters;
};
template <int kWarps>
__device__ __forceinline__ WarpPlace warp_place(const DecodePlan& plan) {
  const int warp = threadIdx.x / 32;
  return {.lane = static_cast<int>(threadIdx.x % 32),
          .warp = warp,
          .rank = plan.cluster > 1 ? static_cast<int>(cluster_rank()) : 0,
          .segment = warp % plan.segments,
          .slot = warp / plan.segments,
          .slots = kWarps / plan.segments,
          .cluster = static_cast<int>(blockIdx.x) / plan.cluster,
          .clusters = static_cast<int>(gridDim.x) / plan.cluster};
}

/// Chunks of a row: those of segment `index` of 8, or of the `num_segments` from there.
struct ChunkRange {
  int begin, count;
};
__device__ __forceinline__ ChunkRange segment_chunks(int chunks, int per_segment, int index,
                                                     int num_segments = 1) {
  const int begin = min(index * per_segment, chunks);
  return {begin, min(begin + num_segments * per_segment, chunks) - begin};
}

/// A tile's segment of weights on its way, unit by unit. The whole warp keeps count, one lane asks.
template <class Layout>
struct SegmentLoad {
  const std::byte* source = nullptr;
  int left = 0;  ///< Units that are still to be asked for.

  /// The units of the chunks `of` of tile `tile` of a matrix with rows of `chunks` chunks.
  __device__ __forceinline__ void start(const std::byte* weights, int tile, int chunks, ChunkRange of) {
    const int64_t units = chunks / Layout::kUnitChunks;
    source = weights + (tile * units + of.begin / Layout::kUnitChunks) * Layout::kUnitBytes;
    left = of.count / Layout::kUnitChunks;
  }
  /// Asks for the next units, to be found at shared address `stage` once the barrier at `full` completes.
  __device__ __forceinline__ void ask(uint32_t stage, uint32_t full, int stage_units) {
    const int units = min(stage_units, left), bytes = units * Layout::kUnitBytes;
    if (elect_one()) {
      mbarrier_expect_bytes(full, bytes);
      bulk_copy(stage, source, bytes, full);
    }
    source += bytes;
    left -= units;
  }
};

/// A warp's ring: where the next stage to be read lies, its barrier, and the barrier's phase.
struct Ring {
  uint32_t first_stage, first_full, end_full;
  uint32_t stage, full, phase = 0;

  __device__ __forceinline__ Ring(const DecodePlan& plan, uint32_t stages, uint32_t barriers)
      : first_stage(stages),
        first_full(barriers),
        end_full(barriers + plan.stages * 8),
        stage(stages),
        full(barriers) {}
  __device__ __forceinline__ void next(int stage_bytes) {
    stage += stage_bytes, full += 8;
    if (full == end_full) stage = first_stage, full = first_full, phase ^= 1;
  }
};

/// Adds one chunk of weights times its 64 columns of x, which lie at x[r] + offset for the lane's row of row
/// tile r.
template <class Layout, int kRowTiles>
__device__ __forceinline__ void multiply_chunk(const Chunk<Layout>& weights, int chunk_in_unit,
                                               const uint32_t (&x)[kRowTiles], int offset, int pair_bytes,
                                               TileSum<Layout> (&sum)[kRowTiles]) {
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    uint4 b[kRowTiles];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) b[r] = load_shared_16(x[r] + offset + pair * pair_bytes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int step = 2 * pair + half;
      uint32_t a[Layout::kParts][4];
#pragma unroll
      for (int part = 0; part < Layout::kParts; ++part) weights.operand(step, part, a[part]);
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r)
        sum[r].add(a, half == 0 ? b[r].x : b[r].z, half == 0 ? b[r].y : b[r].w);
      if (!Layout::ends_group(chunk_in_unit, step)) continue;
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) sum[r].end_group(weights, Layout::group_of_step(step));
    }
  }
}

/// sum += a segment of `length` units times x, from the ring; each stage that is free again is given to
/// `stream`.
template <class Layout, int kRowTiles, class Stream>
__device__ __forceinline__ void multiply_segment(Ring& ring, Stream& stream, const DecodePlan& plan,
                                                 int stage_units, int length, const uint32_t (&x)[kRowTiles],
                                                 int pair_bytes, int lane,
                                                 TileSum<Layout> (&sum)[kRowTiles]) {
  constexpr int kUnroll = Layout::kKeepsIntegers ? 1 : 2;
  int offset = 0;  // Into x, of the chunk.
  for (int left = length; left > 0; left -= stage_units) {
    mbarrier_wait(ring.full, ring.phase);
    uint32_t unit = ring.stage;
#pragma unroll kUnroll
    for (int i = min(stage_units, left); i > 0; --i) {
#pragma unroll
      for (int c = 0; c < Layout::kUnitChunks; ++c) {
        Chunk<Layout> chunk;
        chunk.load_from(SharedUnit{unit}, c, lane);
        multiply_chunk<Layout, kRowTiles>(chunk, c, x, offset, pair_bytes, sum);
        offset += 2 * pair_bytes;
      }
      unit += Layout::kUnitBytes;
    }
    __syncwarp();
    stream.load_next(ring.stage, ring.full);
    ring.next(plan.stage_bytes);
  }
}

/// Where a lane reads its row of x of each row tile, at the block's chunk `chunk`. Lanes of rows that do not
/// exist read the last row: their columns of the product are not stored.
template <int kRowTiles>
__device__ __forceinline__ void operand_addresses(uint32_t (&x)[kRowTiles], uint32_t block_x, int chunk,
                                                  int rows, int pair_bytes, int lane) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
    x[r] = block_x + chunk * 2 * pair_bytes + min(r * 8 + lane / 4, rows - 1) * 64 + lane % 4 * 16;
}

/// Rows of x as they lie in memory.
struct PlainRows {
  const std::byte* data;  ///< bf16
  int64_t stride;         ///< Elements.
  int in;
};

/// Copies the block's columns of x to shared memory in operand order, zeros for columns from x.in on. A warp
/// takes 256 columns of a row at a time, a thread 8 of them: half a step. All loads of a thread are under way
/// before its first store, since each is a trip to L2.
__device__ __forceinline__ void stage_x(const PlainRows& x, const DecodePlan& plan, int rows, int first_chunk,
                                        int num_chunks, std::byte* to) {
  constexpr int kBatch = 4;
  const int pair_bytes = x_pair_bytes(plan.rows), lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const int tasks = (num_chunks * 8 + 31) / 32 << plan.row_shift;
  for (int base = threadIdx.x / 32; base < tasks; base += kBatch * warps) {
    uint4 v[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int task = base + i * warps, row = task & ((1 << plan.row_shift) - 1);
      const int column = (first_chunk * 8 + (task >> plan.row_shift) * 32 + lane) * 8;
      v[i] = {0, 0, 0, 0};
      if (task < tasks && row < rows && column < x.in)
        v[i] = *reinterpret_cast<const uint4*>(x.data + (row * x.stride + column) * 2);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int task = base + i * warps, row = task & ((1 << plan.row_shift) - 1);
      const int piece = (task >> plan.row_shift) * 32 + lane;
      if (task >= tasks || row >= rows || piece >= num_chunks * 8) continue;
      auto* words = reinterpret_cast<uint32_t*>(to + piece / 4 * pair_bytes + row * 64 + piece % 4 * 4);
      words[0] = v[i].x, words[4] = v[i].y, words[8] = v[i].z, words[12] = v[i].w;
    }
  }
}

/// The tree of arithmetic.md over `count` neighbouring sums (1, 2, 4 or 8), the first one in `sum`, the
/// others at others + (i - 1) * kRowTiles * kSumBytes: each lane its own floats.
template <int kRowTiles>
__device__ __forceinline__ void add_tree(float (&sum)[kRowTiles][4], const std::byte* others, int count,
                                         int lane) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    const auto other = [&](int i) {
      return *reinterpret_cast<const float4*>(others + ((i - 1) * kRowTiles + r) * kSumBytes + lane * 16);
    };
    const auto add = [](float4 a, float4 b) {
      return float4{__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w)};
    };
    // Loads stay between the fences: all at once would need more registers than there are.
    const auto fence = [] { asm volatile("" ::: "memory"); };
    float4 total = {sum[r][0], sum[r][1], sum[r][2], sum[r][3]};
    if (count >= 2) total = add(total, other(1));
    if (count >= 4) fence(), total = add(total, add(other(2), other(3)));
    if (count == 8) {
      fence();
      const float4 left = add(other(4), other(5));
      fence();
      total = add(total, add(left, add(other(6), other(7))));
    }
    sum[r][0] = total.x, sum[r][1] = total.y, sum[r][2] = total.z, sum[r][3] = total.w;
  }
}

/// A tile of a launch: its matrix, and which of the matrix's tiles it is.
struct TilePlace {
  const LinearDeviceCall& call;
  int tile;
};

/// What the sums of a tile are finished with: what they are added to, or the gate of their activation.
/// Elements at the same rows and columns as the outputs; null: nothing.
struct Before {
  const float* data;
  int64_t stride;
};
/// In order with the stores and barriers around it.
__device__ __forceinline__ float load_global(const float* from) {
  float v;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ Before accumulated(const LinearDeviceCall& call) {
  return {call.accumulate ? static_cast<const float*>(call.out) : nullptr, call.out_stride};
}

/// How a tile's eight sums come together: the segments of a block in its first warp of the tile ("leader"),
/// the blocks' sums in the leader of block 0, which then finishes a tile one tile later, so that it seldom
/// waits for the others. A block alone finishes it at once, and asks for what outputs are added to before it
/// waits for the sums.
template <class Layout, int kRowTiles, class Product>
struct Finisher {
  Product product;
  const DecodePlan& plan;
  std::byte* sums;                   ///< [segments - 1][kRowTiles][kSumBytes]
  std::byte* incoming;               ///< [exchange_depth][cluster - 1][kRowTiles][kSumBytes], block 0's used.
  uint64_t *sums_full, *sums_empty;  ///< One each; every lane arrives, for what it wrote or read itself.
  uint64_t *incoming_full, *incoming_empty;  ///< [exchange_depth]; full in block 0, empty in the others.
  int segment, rank, lane, first_row;
  uint32_t sum_phase = 0, exchange_phase = 0;
  int slot = 0;  ///< Of the exchange.
  int pending_tile = -1;
  /// Alone: what the tile's sums are finished with (Before). In a cluster: the sums of pending_tile.
  float held[kRowTiles][4] = {};

  __device__ __forceinline__ void add(int tile, const TileSum<Layout> (&sum)[kRowTiles]) {
    float acc[kRowTiles][4];
    copy(acc, [&](int r, int i) { return sum[r].acc[i]; });
    if (segment > 0) return hand_over(acc);
    if (plan.cluster == 1) load_before(tile);
    if (plan.segments > 1) {
      mbarrier_wait(sums_full, sum_phase);
      add_tree<kRowTiles>(acc, sums, plan.segments, lane);
      mbarrier_arrive(sums_empty);
      sum_phase ^= 1;
    }
    if (plan.cluster == 1) return store(tile, acc, [&](int r, int i, int, int) { return held[r][i]; });
    if (rank > 0) return send(acc);
    finish_pending();
    pending_tile = tile;
    copy(held, [&](int r, int i) { return acc[r][i]; });
  }

  /// Between products, when nothing is pending: saves the registers of what was held.
  __device__ __forceinline__ void forget() {
    pending_tile = -1;
    copy(held, [](int, int) { return 0.0f; });
  }

  __device__ __forceinline__ void finish_pending() {
    if (segment > 0 || rank > 0 || pending_tile < 0) return;
    const int bytes = (plan.cluster - 1) * kRowTiles * kSumBytes;
    if (lane == 0) mbarrier_expect_bytes(&incoming_full[slot], bytes);
    mbarrier_wait(&incoming_full[slot], exchange_phase);
    add_tree<kRowTiles>(held, incoming + slot * bytes, plan.cluster, lane);
    __syncwarp();
    if (lane > 0 && lane < plan.cluster) mbarrier_arrive_remote(cluster_address(&incoming_empty[slot], lane));
    next_slot();
    store(pending_tile, held);
  }

 private:
  __device__ __forceinline__ void next_slot() {
    if (++slot == plan.exchange_depth) slot = 0, exchange_phase ^= 1;
  }
  __device__ __forceinline__ void hand_over(const float (&acc)[kRowTiles][4]) {
    mbarrier_wait(sums_empty, sum_phase ^ 1);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      *reinterpret_cast<float4*>(sums + ((segment - 1) * kRowTiles + r) * kSumBytes + lane * 16) =
          float4{acc[r][0], acc[r][1], acc[r][2], acc[r][3]};
    }
    mbarrier_arrive(sums_full);
    sum_phase ^= 1;
  }
  __device__ __forceinline__ void send(const float (&acc)[kRowTiles][4]) {
    mbarrier_wait(&incoming_empty[slot], exchange_phase ^ 1);
    const uint32_t barrier = cluster_address(&incoming_full[slot], 0);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const int at = (slot * (plan.cluster - 1) + rank - 1) * kRowTiles + r;
      store_remote(cluster_address(incoming + at * kSumBytes + lane * 16, 0), acc[r], barrier);
    }
    next_slot();
  }
  template <class Value>
  __device__ __forceinline__ static void copy(float (&to)[kRowTiles][4], const Value& value) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[r][i] = value(r, i);
    }
  }
  /// visit(r, i, row, column) for each output of the tile that this lane has and that exists.
  template <class Visit>
  __device__ __forceinline__ void for_each_output(const TilePlace& at, const Visit& visit) const {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = r * 8 + 2 * (lane % 4) + i % 2;
        const int column = at.tile * kLinearTileRows + lane / 4 + i / 2 * 8;
        if (row < plan.rows && first_row + row < product.num_rows() && column < at.call.out_size)
          visit(r, i, first_row + row, column);
      }
    }
  }
  /// Asks for what the tile's sums will be finished with: the loads are under way when this returns.
  __device__ __forceinline__ void load_before(int tile) {
    const TilePlace at = product.place(tile);
    const Before before = product.before(tile, at.call);
    if (before.data == nullptr) return;
    for_each_output(at, [&](int r, int i, int row, int column) {
      held[r][i] = load_global(before.data + row * before.stride + column);
    });
  }
  /// Of block 0 of a cluster: what sums are finished with is loaded here.
  __device__ __forceinline__ void store(int tile, const float (&sum)[kRowTiles][4]) const {
    const Before before = product.before(tile, product.place(tile).call);
    store(tile, sum, [&](int, int, int row, int column) {
      return before.data == nullptr ? 0.0f : load_global(before.data + row * before.stride + column);
    });
  }
  template <class Value>
  __device__ __forceinline__ void store(int tile, const float (&sum)[kRowTiles][4],
                                        const Value& before) const {
    const TilePlace at = product.place(tile);
    const auto scaled = [&](int r, int i) { return __fmul_rn(sum[r][i], Layout::kResultScale); };
    for_each_output(at, [&](int r, int i, int row, int column) {
      store_output(at.call, row, column, scaled(r, i), at.call.accumulate ? before(r, i, row, column) : 0.0f);
    });
    if constexpr (Product::kActivates) {
      product.activate(tile, [&](const auto& activate) {
        for_each_output(at, [&](int r, int i, int row, int column) {
          activate(row, column, before(r, i, row, column), with_bias(at.call, column, scaled(r, i)));
        });
      });
    }
  }
};

/// The finisher of a warp, with its places in shared memory.
template <class Layout, int kRowTiles, int kWarps, class Product>
__device__ __forceinline__ Finisher<Layout, kRowTiles, Product> make_finisher(
    Product product, const DecodePlan& plan, const WarpPlace& at, std::byte* shared, int first_row) {
  // Barriers: [warp][stage] of the rings, then per slot sums full and empty, incoming full and empty.
  auto* slot_barriers = reinterpret_cast<uint64_t*>(shared + plan.barriers_offset) + kWarps * plan.stages +
                        at.slot * (2 + 2 * plan.exchange_depth);
  return {.product = product,
          .plan = plan,
          .sums = shared + plan.sums_offset + at.slot * (plan.segments - 1) * kRowTiles * kSumBytes,
          .incoming = shared + plan.incoming_offset +
                      at.slot * plan.exchange_depth * (plan.cluster - 1) * kRowTiles * kSumBytes,
          .sums_full = slot_barriers,
          .sums_empty = slot_barriers + 1,
          .incoming_full = slot_barriers + 2,
          .incoming_empty = slot_barriers + 2 + plan.exchange_depth,
          .segment = at.segment,
          .rank = at.rank,
          .lane = at.lane,
          .first_row = first_row};
}

/// Prepares the barriers of a warp's ring and, in a slot's first warp, of its finisher.
template <class Finisher>
__device__ __forceinline__ void init_barriers(const DecodePlan& plan, const WarpPlace& at,
                                              uint32_t ring_barriers, const Finisher& finisher) {
  if (at.lane == 0) {
    for (int i = 0; i < plan.stages; ++i) mbarrier_init(ring_barriers + i * 8, 1);
    if (at.segment == 0) {
      mbarrier_init(finisher.sums_full, 32 * (plan.segments > 1 ? plan.segments - 1 : 1));
      mbarrier_init(finisher.sums_empty, 32);
      for (int i = 0; i < 2 * plan.exchange_depth; ++i) mbarrier_init(&finisher.incoming_full[i], 1);
    }
    fence_mbarrier_init();
  }
  __syncwarp();
}

}  // namespace tensorfold::cuda
