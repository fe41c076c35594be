// What linear()'s decode kernel and the stream of experts() (device/experts_stream.cuh) are made of: weights
// that one warp brings to rings in shared memory, x there in operand order, and how the eight sums of a tile
// come together. Arithmetic: ops/cuda/linear.h.
#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/device/async.cuh"
#include "ops/cuda/device/linear_operand.cuh"
#include "ops/cuda/device/mma.cuh"
#include "ops/cuda/linear_plan.h"

namespace tensorfold::cuda {

/// The kWarps multiplying warps of the block meet, without the producing one.
template <int kWarps>
__device__ __forceinline__ void sync_multiplying_warps() {
  asm volatile("bar.sync 1, %0;" ::"n"(32 * kWarps) : "memory");
}

/// Which blocks this one is among: its cluster of `clusters`, and its rank there.
struct BlockPlace {
  int rank, cluster, clusters;
};
__device__ __forceinline__ BlockPlace block_place(const DecodePlan& plan) {
  return {.rank = plan.cluster > 1 ? static_cast<int>(cluster_rank()) : 0,
          .cluster = static_cast<int>(blockIdx.x) / plan.cluster,
          .clusters = static_cast<int>(gridDim.x) / plan.cluster};
}

/// A multiplying warp's place: the slot that it shares with the warps of the block's other segments, and
/// which segment is its own. The first segment's warp finishes a slot's tiles. It is another one in each
/// slot, so that this work is spread over the schedulers of the multiprocessor; the one that the producing
/// warp is on has least of it.
struct WarpPlace {
  int slot, segment;
};
__device__ __forceinline__ WarpPlace warp_place(const DecodePlan& plan, int warp) {
  const int slot = warp / plan.segments;  // segments is a power of two.
  return {slot, (warp - slot - 1) & (plan.segments - 1)};
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

/// A slot's ring: stages of plan.stage_units units for each of the block's segments, which lie in it in
/// pairs, one unit of both after the other, as in memory (UnitOrder); and for each stage a barrier that says
/// it is full and one that says it is empty again.
struct SlotRing {
  uint32_t stages, full, empty;  ///< Shared addresses of the first ones.

  __device__ __forceinline__ SlotRing(const DecodePlan& plan, uint32_t shared, int slot) {
    stages = shared + slot * plan.stages * plan.segments * plan.stage_bytes;
    full = shared + plan.barriers_offset + slot * plan.stages * 16;
    empty = full + plan.stages * 8;
  }
};

/// A place in a ring, and the parity of its turn.
struct RingTurn {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

/// How tiles are dealt to the slots of a grid: `deal` of them at a time, 1 or 2, in turn.
struct DealtTiles {
  int deal, slots;
  __device__ __forceinline__ int first(int slot) const { return slot * deal; }
  __device__ __forceinline__ int next(int tile) const {
    const bool ends_deal = (tile & (deal - 1)) == deal - 1;
    return ends_deal ? tile + 1 + (slots - 1) * deal : tile + 1;
  }
  static constexpr bool kPublishes = false;  ///< Whether the producing warp says which tile comes.
};

/// How a slot's multiplying warps learn which tiles come: places in shared memory in turn, each written
/// before the tile's first stage is asked for. A tile that does not exist: there are no more.
inline constexpr int kTileQueue = 16;
static_assert(kTileQueue > kMaxStages,
              "the producing warp is a tile ahead of a ring of one stage a tile, at most");
inline constexpr int kTileQueueBytes = kTileQueue * 4;

/// Tiles that slots take when they have room for one, beyond each one's first: multiprocessors are not
/// equally fast, as some share their way to memory with more others, and some begin late. Where `drawn` is
/// null: every slots-th tile. By the producing warp.
struct DrawnTiles {
  int32_t* drawn;  ///< LinearLaunch::drawn_tiles
  int slots;       ///< Of the grid.
  int first_lane;  ///< Of the lanes that have the slot.
  bool draws;      ///< By this lane, for its slot.
  int* queue;      ///< The slot's.
  int turn = 0;

  __device__ __forceinline__ int first(int slot) const { return slot; }
  __device__ __forceinline__ int next(int tile) const {
    if (drawn == nullptr) return tile + slots;
    const int number = draws ? atomicAdd(drawn, 1) : 0;
    return slots + __shfl_sync(0xffffffffu, number, first_lane);
  }
  static constexpr bool kPublishes = true;
  __device__ __forceinline__ void publish(int tile) {
    queue[turn] = tile;
    turn = (turn + 1) % kTileQueue;
  }
};

/// Asks for one stage of a slot's ring, of a pair of segments whose lengths in units are `even` and `odd`:
/// their units [unit, unit + stage_units), which lie as UnitOrder says at `weights`.
template <class Layout>
__device__ __forceinline__ void bring_stage(const std::byte* weights, int even, int odd, int unit,
                                            int stage_units, uint32_t to, uint32_t full) {
  constexpr int kUnitBytes = Layout::kUnitBytes;
  const int end = unit + stage_units, both_end = min(end, odd), alone_end = min(end, even);
  mbarrier_expect_bytes(full, (max(both_end - unit, 0) + max(alone_end - unit, 0)) * kUnitBytes);
  if (unit < both_end)
    bulk_copy(to, weights + int64_t{2 * unit} * kUnitBytes, 2 * (both_end - unit) * kUnitBytes, full);
  for (int u = max(unit, odd); u < alone_end; ++u)
    bulk_copy(to + 2 * (u - unit) * kUnitBytes, weights + int64_t{u + odd} * kUnitBytes, kUnitBytes, full);
}

/// A lane of the producing warp: it has a pair of segments of a slot, the slots' lanes one after the other.
struct ProducingLane {
  int slot, segment;

  __device__ __forceinline__ explicit ProducingLane(const DecodePlan& plan) {
    const int lane = static_cast<int>(threadIdx.x % 32), pairs = plan.segments / 2;
    slot = lane / pairs, segment = lane % pairs * 2;
  }
};

/// How far the producing warp is.
struct ProducingTurn {
  RingTurn ring;  ///< Of the lane's slot.
  int early;      ///< Stages that may be asked for before the previous kernel has ended.

  __device__ __forceinline__ explicit ProducingTurn(const DecodePlan& plan) : early(plan.early_stages) {}
};

/// By one whole warp: keeps the rings of the block's slots full until all their tiles have been asked for,
/// but asks for no more than plan.early_stages stages each before the previous kernel has ended. Slots take
/// the tiles in turn, so that their rings go round together. tiles: which (DealtTiles, DrawnTiles);
/// slot s of the block is number s * at.clusters + at.cluster of the grid's.
/// weights_of_tile(tile): where its tile's units begin.
template <class Layout, class Tiles, class TileWeights>
__device__ __forceinline__ void produce_tiles(int chunks, int num_tiles, Tiles tiles, const DecodePlan& plan,
                                              const BlockPlace& at, int slots, uint32_t shared,
                                              ProducingTurn& turn, const TileWeights& weights_of_tile) {
  const UnitOrder order(chunks / Layout::kUnitChunks);
  const ProducingLane lane(plan);
  const bool has_pair = lane.slot < slots;
  const SlotRing ring(plan, shared, lane.slot);
  const uint32_t stages = ring.stages + lane.segment * plan.stage_bytes;
  const int first_segment = at.rank * plan.segments + lane.segment;
  const int even = order.length(first_segment), odd = order.length(first_segment + 1);
  RingTurn& place = turn.ring;
  bool goes_on = has_pair;
  for (int tile = tiles.first(lane.slot * at.clusters + at.cluster);; tile = tiles.next(tile)) {
    const bool has_tile = goes_on && tile < num_tiles;
    if constexpr (Tiles::kPublishes) {
      if (goes_on) tiles.publish(tile);
      if (goes_on && !has_tile) mbarrier_arrive(ring.full + place.stage * 8);
    }
    goes_on = has_tile;
    if (!__any_sync(0xffffffffu, goes_on)) return;
    const std::byte* weights = nullptr;
    if (has_tile) weights = weights_of_tile(tile) + int64_t{order.first(first_segment)} * Layout::kUnitBytes;
    for (int unit = 0; unit < order.per_segment; unit += plan.stage_units) {
      if (turn.early-- == 0) wait_for_previous_kernel();
      if (!has_tile) continue;
      mbarrier_wait(ring.empty + place.stage * 8, place.parity ^ 1);
      bring_stage<Layout>(weights, even, odd, unit, plan.stage_units,
                          stages + place.stage * plan.segments * plan.stage_bytes,
                          ring.full + place.stage * 8);
      place.next(plan.stages);
    }
    // Drawn no earlier than there is room for it.
    if (Tiles::kPublishes && has_tile) mbarrier_wait(ring.empty + place.stage * 8, place.parity ^ 1);
  }
}

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

/// A multiplying warp's way through its slot's ring.
struct RingReader {
  uint32_t first_stage, stage, full, end_full;
  uint32_t parity = 0;

  /// Of segment `segment` of the block.
  __device__ __forceinline__ RingReader(const DecodePlan& plan, const SlotRing& ring, int segment,
                                        int unit_bytes)
      : first_stage(ring.stages + segment / 2 * 2 * plan.stage_bytes + segment % 2 * unit_bytes),
        stage(first_stage),
        full(ring.full),
        end_full(ring.empty) {}
  /// By the whole warp, when it has read the stage.
  __device__ __forceinline__ void release(const DecodePlan& plan) {
    __syncwarp();
    if (elect_one()) mbarrier_arrive(full + plan.stages * 8);
    stage += plan.segments * plan.stage_bytes, full += 8;
    if (full == end_full) stage = first_stage, full -= plan.stages * 8, parity ^= 1;
  }
};

/// sum += a segment of `length` units times x, from the ring.
template <class Layout, int kRowTiles>
__device__ __forceinline__ void multiply_segment(RingReader& ring, const DecodePlan& plan, int length,
                                                 const uint32_t (&x)[kRowTiles], int pair_bytes, int lane,
                                                 TileSum<Layout> (&sum)[kRowTiles]) {
  constexpr int kUnroll = Layout::kKeepsIntegers ? 1 : 2;
  int offset = 0;  // Into x, of the chunk.
  for (int stages = plan.tile_stages; stages > 0; --stages, length -= plan.stage_units) {
    mbarrier_wait(ring.full, ring.parity);
    uint32_t unit = ring.stage;
#pragma unroll kUnroll
    for (int i = min(plan.stage_units, length); i > 0; --i) {
#pragma unroll
      for (int c = 0; c < Layout::kUnitChunks; ++c) {
        Chunk<Layout> chunk;
        chunk.load_from(SharedUnit{unit}, c, lane);
        multiply_chunk<Layout, kRowTiles>(chunk, c, x, offset, pair_bytes, sum);
        offset += 2 * pair_bytes;
      }
      unit += 2 * Layout::kUnitBytes;  // Past the other segment's.
    }
    ring.release(plan);
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

/// By kWarps warps: copies the block's columns of x to shared memory in operand order, zeros for columns from
/// x.in on. A warp takes 256 columns of a row at a time, a thread 8 of them: half a step. All loads of a
/// thread are under way before its first store, since each is a trip to L2.
template <int kWarps>
__device__ __forceinline__ void stage_x(const PlainRows& x, const DecodePlan& plan, int rows, int first_chunk,
                                        int num_chunks, std::byte* to) {
  constexpr int kBatch = 4;
  const int pair_bytes = x_pair_bytes(plan.rows), lane = threadIdx.x % 32;
  const int tasks = (num_chunks * 8 + 31) / 32 << plan.row_shift;
  for (int base = threadIdx.x / 32; base < tasks; base += kBatch * kWarps) {
    uint4 v[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int task = base + i * kWarps, row = task & ((1 << plan.row_shift) - 1);
      const int column = (first_chunk * 8 + (task >> plan.row_shift) * 32 + lane) * 8;
      v[i] = {0, 0, 0, 0};
      if (task < tasks && row < rows && column < x.in)
        v[i] = load_written(reinterpret_cast<const uint4*>(x.data + (row * x.stride + column) * 2));
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int task = base + i * kWarps, row = task & ((1 << plan.row_shift) - 1);
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

/// In order with the stores and barriers around it.
__device__ __forceinline__ float load_global(const float* from) {
  float v;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(from) : "memory");
  return v;
}

/// How the sums of a block's segments come together, in the warp of its first one ("leader").
template <int kRowTiles>
struct SegmentSums {
  std::byte* sums;         ///< [segments - 1][kRowTiles][kSumBytes]
  uint64_t *full, *empty;  ///< Every lane arrives, for what it wrote or read itself.
  uint32_t phase = 0;

  /// By the warps of the others, the sum of `segment`.
  __device__ __forceinline__ void hand_over(const float (&acc)[kRowTiles][4], int segment, int lane) {
    mbarrier_wait(empty, phase ^ 1);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      *reinterpret_cast<float4*>(sums + ((segment - 1) * kRowTiles + r) * kSumBytes + lane * 16) =
          float4{acc[r][0], acc[r][1], acc[r][2], acc[r][3]};
    }
    mbarrier_arrive(full);
    phase ^= 1;
  }
  /// By the leader: acc, its own sum, becomes that of all.
  __device__ __forceinline__ void collect(float (&acc)[kRowTiles][4], int segments, int lane) {
    if (segments == 1) return;
    mbarrier_wait(full, phase);
    add_tree<kRowTiles>(acc, sums, segments, lane);
    mbarrier_arrive(empty);
    phase ^= 1;
  }
};

/// How a tile's eight sums come together: the segments of a block in the warp of its first one ("leader"),
/// the blocks' sums in the leader of block 0, which then finishes a tile one tile later, so that it seldom
/// waits for the others. A block alone finishes it at once, and asks for what outputs are added to before it
/// waits for the sums. Biases are asked for before as well.
template <class Layout, int kRowTiles>
struct Finisher {
  const LinearLaunch& p;
  const DecodePlan& plan;
  SegmentSums<kRowTiles> of_block;
  std::byte* incoming;  ///< [exchange_depth][cluster - 1][kRowTiles][kSumBytes], block 0's used.
  uint64_t *incoming_full, *incoming_empty;  ///< [exchange_depth]; full in block 0, empty in the others.
  int segment, rank, lane, first_row;
  uint32_t exchange_phase = 0;
  int slot = 0;  ///< Of the exchange.
  int pending_tile = -1;
  /// Alone: what the tile's sums are added to. In a cluster: the sums of pending_tile.
  float held[kRowTiles][4] = {};
  float bias[2] = {};  ///< Of that tile's outputs lane / 4 and lane / 4 + 8.

  __device__ __forceinline__ void add(int tile, const TileSum<Layout> (&sum)[kRowTiles]) {
    float acc[kRowTiles][4];
    copy(acc, [&](int r, int i) { return sum[r].acc[i]; });
    if (segment > 0) return of_block.hand_over(acc, segment, lane);
    if (plan.cluster == 1) load_before(tile), load_bias(tile);
    of_block.collect(acc, plan.segments, lane);
    if (plan.cluster == 1) return store(tile, acc, [&](int r, int i, const float*) { return held[r][i]; });
    if (rank > 0) return send(acc);
    finish_pending();
    pending_tile = tile;
    load_bias(tile);
    copy(held, [&](int r, int i) { return acc[r][i]; });
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
    store(pending_tile, held, [&](int, int, const float* to) { return load_global(to); });
  }

 private:
  __device__ __forceinline__ void next_slot() {
    if (++slot == plan.exchange_depth) slot = 0, exchange_phase ^= 1;
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
  /// visit(r, i, row, column) for each output of a tile that this lane has and that exists.
  template <class Visit>
  __device__ __forceinline__ void for_each_output(const LinearDeviceCall& call, int tile,
                                                  const Visit& visit) const {
    const int first_column = (tile - call.first_tile) * kLinearTileRows + lane / 4;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = r * 8 + 2 * (lane % 4) + i % 2, column = first_column + i / 2 * 8;
        if (row < plan.rows && first_row + row < p.num_rows && column < call.out_size)
          visit(r, i, first_row + row, column);
      }
    }
  }
  /// Asks for what the tile's sums will be added to: the loads are under way when this returns.
  __device__ __forceinline__ void load_before(int tile) {
    const LinearDeviceCall& call = call_of_tile(p, tile);
    if (!call.accumulate) return;
    const float* out = static_cast<const float*>(call.out);
    for_each_output(call, tile, [&](int r, int i, int row, int column) {
      held[r][i] = load_global(out + row * call.out_stride + column);
    });
  }
  __device__ __forceinline__ void load_bias(int tile) {
    const LinearDeviceCall& call = call_of_tile(p, tile);
    if (call.bias == nullptr) return;
    const int first_column = (tile - call.first_tile) * kLinearTileRows + lane / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (first_column + 8 * i < call.out_size) bias[i] = load_global(call.bias + first_column + 8 * i);
  }
  /// before(r, i, address): what is there already.
  template <class Before>
  __device__ __forceinline__ void store(int tile, const float (&sum)[kRowTiles][4],
                                        const Before& before) const {
    const LinearDeviceCall& call = call_of_tile(p, tile);
    const float* out = static_cast<const float*>(call.out);
    for_each_output(call, tile, [&](int r, int i, int row, int column) {
      const float base = call.accumulate ? before(r, i, out + row * call.out_stride + column) : 0.0f;
      store_output(call, row, column, __fmul_rn(sum[r][i], Layout::kResultScale), bias[i / 2], base);
    });
  }
};

/// The finisher of a warp, with its places in shared memory.
template <class Layout, int kRowTiles>
__device__ __forceinline__ Finisher<Layout, kRowTiles> make_finisher(const LinearLaunch& p,
                                                                     const DecodePlan& plan, int rank,
                                                                     const WarpPlace& at, int slots,
                                                                     std::byte* shared, int first_row) {
  // Barriers: of the rings, then per slot sums full and empty, incoming full and empty.
  auto* slot_barriers = reinterpret_cast<uint64_t*>(shared + plan.barriers_offset) + slots * plan.stages * 2 +
                        at.slot * (2 + 2 * plan.exchange_depth);
  return {
      .p = p,
      .plan = plan,
      .of_block = {.sums = shared + plan.sums_offset + at.slot * (plan.segments - 1) * kRowTiles * kSumBytes,
                   .full = slot_barriers,
                   .empty = slot_barriers + 1},
      .incoming = shared + plan.incoming_offset +
                  at.slot * plan.exchange_depth * (plan.cluster - 1) * kRowTiles * kSumBytes,
      .incoming_full = slot_barriers + 2,
      .incoming_empty = slot_barriers + 2 + plan.exchange_depth,
      .segment = at.segment,
      .rank = rank,
      .lane = static_cast<int>(threadIdx.x % 32),
      .first_row = first_row};
}

/// By the producing warp.
__device__ __forceinline__ void init_ring_barriers(const DecodePlan& plan, int slots, uint32_t shared) {
  for (int slot = static_cast<int>(threadIdx.x % 32); slot < slots; slot += 32) {
    const SlotRing ring(plan, shared, slot);
    for (int i = 0; i < plan.stages; ++i) {
      mbarrier_init(ring.full + i * 8, plan.segments / 2);
      mbarrier_init(ring.empty + i * 8, plan.segments);
    }
  }
  fence_mbarrier_init();
}

/// By the first lane of the warp that finishes a slot's tiles.
template <class Finisher>
__device__ __forceinline__ void init_finisher_barriers(const DecodePlan& plan, const Finisher& finisher) {
  if (finisher.segment > 0 || finisher.lane > 0) return;
  mbarrier_init(finisher.of_block.full, 32 * (plan.segments > 1 ? plan.segments - 1 : 1));
  mbarrier_init(finisher.of_block.empty, 32);
  for (int i = 0; i < 2 * plan.exchange_depth; ++i) mbarrier_init(&finisher.incoming_full[i], 1);
  fence_mbarrier_init();
}

}  // namespace tensorfold::cuda
