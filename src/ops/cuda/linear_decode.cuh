// linear() on CUDA for up to 16 rows at a time. Layout and arithmetic: ops/cuda/linear.h.
//
// A decode step reads every weight once and does little with it, so the kernel is built around the stream of
// weights: each warp has a ring in shared memory that the copy engine fills, and the stream runs on over the
// borders of tiles, so that loads never drain; the first ones are issued before the previous kernel of the
// stream has ended, since weights depend on nothing. A cluster of blocks shares a tile, each block some of
// the segments: x, which every tile needs whole, then fits in shared memory, and the unit of work is small
// enough for all multiprocessors to end together.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "ops/cuda/device/async.cuh"
#include "ops/cuda/device/linear_operand.cuh"
#include "ops/cuda/device/mma.cuh"
#include "ops/cuda/linear_params.h"

namespace tensorfold::cuda {
namespace {  // Each file that includes this compiles its own kernels.

/// Shared memory of a block, one to a multiprocessor (which keeps 1 KB of its 228).
constexpr int kMaxSharedBytes = 227 << 10;
/// Bytes of the sums of 8 rows of a tile: four floats a lane.
constexpr int kSumBytes = 512;

/// How a launch is cut into blocks, beside LinearLaunch. Byte offsets are into dynamic shared memory.
struct DecodePlan {
  int cluster;      ///< Blocks that share a tile.
  int segments;     ///< Segments of a block: 8 / cluster.
  int rows;         ///< Rows of x of a block: at most 8 * kRowTiles.
  int row_shift;    ///< rows rounded up to a power of two.
  int stages;       ///< Of a warp's ring.
  int stage_units;  ///< Units (ops/cuda/linear.h) in one stage.
  int stage_bytes;
  int exchange_depth;  ///< Tiles whose sums a block may be ahead of the one that finishes them.
  int x_offset, sums_offset, incoming_offset, barriers_offset, shared_bytes;
};

/// Bytes of x's 32 columns in operand order: [row][4 lanes][two steps x (low pair, high pair)]. The 16 bytes
/// more put the eight 32-column pieces that a warp writes at once into different banks.
__host__ __device__ constexpr int x_pair_bytes(int rows) { return rows * 64 + 16; }

/// A warp's weights on their way: the units of its segment of each of its tiles, in order, through a ring of
/// stages. The whole warp keeps count, one lane asks.
template <class Layout>
struct WeightStream {
  const LinearLaunch& p;
  const DecodePlan& plan;
  int begin, length;  ///< The segment's units.
  int tile, stride;   ///< Of the next load, and to the next tile.
  int left = 0;       ///< Units of the tile that are still to be asked for.
  const std::byte* source = nullptr;

  /// Asks for the next units, to be found at shared address `stage` once the barrier at `full` completes.
  __device__ __forceinline__ void load_next(uint32_t stage, uint32_t full) {
    if (tile >= p.num_tiles) return;
    if (left == 0) {
      const LinearDeviceCall& call = call_of_tile(p, tile);
      const int64_t units = p.chunks / Layout::kUnitChunks;
      source = call.weights + ((tile - call.first_tile) * units + begin) * Layout::kUnitBytes;
      left = length;
    }
    const int units = min(plan.stage_units, left), bytes = units * Layout::kUnitBytes;
    if (elect_one()) {
      mbarrier_expect_bytes(full, bytes);
      bulk_copy(stage, source, bytes, full);
    }
    source += bytes;
    left -= units;
    if (left == 0) tile += stride;
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

/// Copies the block's columns of x to shared memory in operand order, zeros for columns from p.in on. A warp
/// takes 256 columns of a row at a time, a thread 8 of them: half a step. All loads of a thread are under way
/// before its first store, since each is a trip to L2.
__device__ __forceinline__ void stage_x(const LinearLaunch& p, const DecodePlan& plan, int first_row,
                                        int rows, int first_chunk, int num_chunks, std::byte* to) {
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
      if (task < tasks && row < rows && column < p.in)
        v[i] = *reinterpret_cast<const uint4*>(p.x + ((first_row + row) * p.x_stride + column) * 2);
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

/// How a tile's eight sums come together: the segments of a block in its first warp of the tile ("leader"),
/// the blocks' sums in the leader of block 0, which then finishes a tile one tile later, so that it seldom
/// waits for the others. A block alone finishes it at once, and asks for what outputs are added to before it
/// waits for the sums.
template <class Layout, int kRowTiles>
struct Finisher {
  const LinearLaunch& p;
  const DecodePlan& plan;
  std::byte* sums;                   ///< [segments - 1][kRowTiles][kSumBytes]
  std::byte* incoming;               ///< [exchange_depth][cluster - 1][kRowTiles][kSumBytes], block 0's used.
  uint64_t *sums_full, *sums_empty;  ///< One each; every lane arrives, for what it wrote or read itself.
  uint64_t *incoming_full, *incoming_empty;  ///< [exchange_depth]; full in block 0, empty in the others.
  int segment, rank, lane, first_row;
  uint32_t sum_phase = 0, exchange_phase = 0;
  int slot = 0;  ///< Of the exchange.
  int pending_tile = -1;
  /// Alone: what the tile's outputs are added to. In a cluster: the sums of pending_tile.
  float held[kRowTiles][4] = {};

  __device__ __forceinline__ void add(int tile, const TileSum<Layout> (&sum)[kRowTiles]) {
    float acc[kRowTiles][4];
    copy(acc, [&](int r, int i) { return sum[r].acc[i]; });
    if (segment > 0) return hand_over(acc);
    if (plan.cluster == 1) load_outputs(tile);
    if (plan.segments > 1) {
      mbarrier_wait(sums_full, sum_phase);
      add_tree<kRowTiles>(acc, sums, plan.segments, lane);
      mbarrier_arrive(sums_empty);
      sum_phase ^= 1;
    }
    if (plan.cluster == 1) return store(tile, acc, [&](int r, int i) { return held[r][i]; });
    if (rank > 0) return send(acc);
    finish_pending();
    pending_tile = tile;
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
  __device__ __forceinline__ void for_each_output(const LinearDeviceCall& call, int tile,
                                                  const Visit& visit) const {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = r * 8 + 2 * (lane % 4) + i % 2;
        const int column = (tile - call.first_tile) * kLinearTileRows + lane / 4 + i / 2 * 8;
        if (row < plan.rows && first_row + row < p.num_rows && column < call.out_size)
          visit(r, i, first_row + row, column);
      }
    }
  }
  /// Asks for what the tile's sums will be added to: the loads are under way when this returns.
  __device__ __forceinline__ void load_outputs(int tile) {
    const LinearDeviceCall& call = call_of_tile(p, tile);
    if (!call.accumulate) return;
    for_each_output(call, tile, [&](int r, int i, int row, int column) {
      const float* from = static_cast<const float*>(call.out) + row * call.out_stride + column;
      asm volatile("ld.global.f32 %0, [%1];" : "=f"(held[r][i]) : "l"(from) : "memory");
    });
  }
  __device__ __forceinline__ void store(int tile, const float (&sum)[kRowTiles][4]) const {
    const LinearDeviceCall& call = call_of_tile(p, tile);
    for_each_output(call, tile, [&](int r, int i, int row, int column) {
      store_output(call, row, column, __fmul_rn(sum[r][i], Layout::kResultScale));
    });
  }
  template <class Before>
  __device__ __forceinline__ void store(int tile, const float (&sum)[kRowTiles][4],
                                        const Before& before) const {
    const LinearDeviceCall& call = call_of_tile(p, tile);
    for_each_output(call, tile, [&](int r, int i, int row, int column) {
      store_output(call, row, column, __fmul_rn(sum[r][i], Layout::kResultScale), before(r, i));
    });
  }
};

/// Grid: x clusters of plan.cluster blocks, y groups of plan.rows rows. A cluster computes every
/// (clusters)-th tile of 16 outputs; block `rank` of it the segments rank * segments and on, kWarps /
/// segments tiles at a time, a warp each (tile, segment). Traffic: every weight once per blockIdx.y, x once
/// per block, from L2.
template <class Layout, int kRowTiles, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, 1)
    linear_decode_kernel(const __grid_constant__ LinearLaunch p, const __grid_constant__ DecodePlan plan) {
  extern __shared__ __align__(128) std::byte shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int rank = plan.cluster > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int segment = warp % plan.segments, slot = warp / plan.segments, slots = kWarps / plan.segments;
  const int cluster = blockIdx.x / plan.cluster, clusters = gridDim.x / plan.cluster;
  const int first_row = blockIdx.y * plan.rows;

  constexpr int kUnitChunks = Layout::kUnitChunks;
  constexpr int kUnroll = Layout::kKeepsIntegers ? 1 : 2;
  const int begin = min((rank * plan.segments + segment) * p.chunks_per_segment, p.chunks);
  const int length = (min(begin + p.chunks_per_segment, p.chunks) - begin) / kUnitChunks;
  const int first_tile = slot * clusters + cluster, stride = slots * clusters;

  // Barriers: [warp][stage] of the rings, then per slot sums full and empty, incoming full and empty.
  auto* barriers = reinterpret_cast<uint64_t*>(shared + plan.barriers_offset);
  WeightStream<Layout> stream{.p = p,
                              .plan = plan,
                              .begin = begin / kUnitChunks,
                              .length = length,
                              .tile = first_tile,
                              .stride = stride};
  const uint32_t ring = shared_address(shared) + warp * plan.stages * plan.stage_bytes;
  const uint32_t ring_full = shared_address(barriers + warp * plan.stages);
  uint64_t* slot_barriers = barriers + kWarps * plan.stages + slot * (2 + 2 * plan.exchange_depth);
  Finisher<Layout, kRowTiles> finisher{
      .p = p,
      .plan = plan,
      .sums = shared + plan.sums_offset + slot * (plan.segments - 1) * kRowTiles * kSumBytes,
      .incoming = shared + plan.incoming_offset +
                  slot * plan.exchange_depth * (plan.cluster - 1) * kRowTiles * kSumBytes,
      .sums_full = slot_barriers,
      .sums_empty = slot_barriers + 1,
      .incoming_full = slot_barriers + 2,
      .incoming_empty = slot_barriers + 2 + plan.exchange_depth,
      .segment = segment,
      .rank = rank,
      .lane = lane,
      .first_row = first_row};
  if (lane == 0) {
    for (int i = 0; i < plan.stages; ++i) mbarrier_init(barriers + warp * plan.stages + i, 1);
    if (segment == 0) {
      mbarrier_init(finisher.sums_full, 32 * (plan.segments > 1 ? plan.segments - 1 : 1));
      mbarrier_init(finisher.sums_empty, 32);
      for (int i = 0; i < 2 * plan.exchange_depth; ++i) mbarrier_init(&finisher.incoming_full[i], 1);
    }
    fence_mbarrier_init();
  }
  __syncwarp();
  if (length > 0) {
    for (int i = 0; i < plan.stages; ++i) stream.load_next(ring + i * plan.stage_bytes, ring_full + i * 8);
  }
  if (plan.cluster > 1) cluster_arrive();
  launch_dependents();
  wait_for_previous_kernel();

  const int block_begin = min(rank * plan.segments * p.chunks_per_segment, p.chunks);
  const int block_chunks = min(block_begin + plan.segments * p.chunks_per_segment, p.chunks) - block_begin;
  const int rows = min(plan.rows, p.num_rows - first_row);
  stage_x(p, plan, first_row, rows, block_begin, block_chunks, shared + plan.x_offset);
  __syncthreads();
  if (plan.cluster > 1) cluster_wait();

  // Lanes of rows that do not exist read the last row: their columns of the product are not stored.
  const int pair_bytes = x_pair_bytes(plan.rows);
  uint32_t x[kRowTiles];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
    x[r] = shared_address(shared) + plan.x_offset + (begin - block_begin) * 2 * pair_bytes +
           min(r * 8 + lane / 4, rows - 1) * 64 + lane % 4 * 16;

  uint32_t stage = ring, full = ring_full, phase = 0;
  for (int tile = first_tile; tile < p.num_tiles; tile += stride) {
    TileSum<Layout> sum[kRowTiles];
    int offset = 0;  // Into x, of the chunk.
    for (int left = length; left > 0; left -= plan.stage_units) {
      mbarrier_wait(full, phase);
      uint32_t unit = stage;
#pragma unroll kUnroll
      for (int i = min(plan.stage_units, left); i > 0; --i) {
#pragma unroll
        for (int c = 0; c < kUnitChunks; ++c) {
          Chunk<Layout> chunk;
          chunk.load_from(SharedUnit{unit}, c, lane);
          multiply_chunk<Layout, kRowTiles>(chunk, c, x, offset, pair_bytes, sum);
          offset += 2 * pair_bytes;
        }
        unit += Layout::kUnitBytes;
      }
      __syncwarp();
      stream.load_next(stage, full);
      stage += plan.stage_bytes, full += 8;
      if (full == ring_full + plan.stages * 8) stage = ring, full = ring_full, phase ^= 1;
    }
    finisher.add(tile, sum);
  }
  finisher.finish_pending();
  if (plan.cluster > 1) {  // A block's shared memory must outlive the others' arrivals in it.
    cluster_arrive();
    cluster_wait();
  }
}

/// The plan for `rows` rows a block in clusters of `cluster`; stages may be 0: x does not fit.
template <class Layout, int kRowTiles, int kWarps>
DecodePlan make_plan(const LinearLaunch& p, int rows, int cluster, int stage_target) {
  DecodePlan plan{.cluster = cluster, .segments = kLinearSegments / cluster, .rows = rows};
  while (1 << plan.row_shift < rows) ++plan.row_shift;
  // A stage is an even share of a segment of about `stage_target` bytes: a wait and a copy cost some 60
  // instructions.
  const int units = p.chunks_per_segment / Layout::kUnitChunks;
  const int shares = (units * Layout::kUnitBytes + stage_target - 1) / stage_target;
  plan.stage_units = (units + shares - 1) / shares;
  plan.stage_bytes = plan.stage_units * Layout::kUnitBytes;
  const int slots = kWarps / plan.segments, sums = kRowTiles * kSumBytes;
  plan.exchange_depth = cluster == 1 ? 0 : cluster == 4 ? 1 : 2;
  const int x_bytes = plan.segments * p.chunks_per_segment * 2 * x_pair_bytes(rows);
  const int sums_bytes = slots * (plan.segments - 1) * sums;
  const int incoming_bytes = slots * plan.exchange_depth * (cluster - 1) * sums;
  const int slot_barrier_bytes = slots * (2 + 2 * plan.exchange_depth) * 8;
  const int left = kMaxSharedBytes - x_bytes - sums_bytes - incoming_bytes - slot_barrier_bytes;
  // A stage is its bytes and a barrier in each warp's ring. (2.998 stages of 5,120 4-bit columns were once
  // lost to barriers of stages that did not exist.)
  constexpr int kMaxStages = 8;
  const int fitting = left < 0 ? 0 : left / (kWarps * (plan.stage_bytes + 8));
  plan.stages = fitting < kMaxStages ? fitting : kMaxStages;
  plan.x_offset = kWarps * plan.stages * plan.stage_bytes;
  plan.sums_offset = plan.x_offset + x_bytes;
  plan.incoming_offset = plan.sums_offset + sums_bytes;
  plan.barriers_offset = plan.incoming_offset + incoming_bytes;
  plan.shared_bytes = plan.barriers_offset + slot_barrier_bytes + kWarps * plan.stages * 8;
  return plan;
}

/// Where a matrix has no more tiles than a multiprocessor takes at once (three slots of 132), some get one
/// tile more than others, and long segments make that dear: two blocks then share their tiles
/// (5120x17408: 17.9 against 20.3 us).
constexpr int kOneRoundTiles = 3 * 132, kLongSegment = 20;

/// As many rows as kRowTiles holds if they leave room for the ring, else fewer; stages of 3 KB, else smaller
/// ones; one block to a tile, or a cluster where x needs the room of several: halving the rows instead would
/// read the weights twice. Without stages: nothing fits.
template <class Layout, int kRowTiles, int kWarps>
DecodePlan choose_plan(const LinearLaunch& p) {
  const int first_cluster = p.num_tiles <= kOneRoundTiles && p.chunks_per_segment >= kLongSegment ? 2 : 1;
  int rows = p.num_rows < 8 * kRowTiles ? p.num_rows : 8 * kRowTiles;
  for (;; rows = (rows + 1) / 2) {
    for (int stage_bytes : {3072, 1536, 1152, 576}) {
      for (int cluster = first_cluster; cluster <= 4; cluster *= 2) {
        const auto plan = make_plan<Layout, kRowTiles, kWarps>(p, rows, cluster, stage_bytes);
        const bool is_last = rows == 1 && cluster == 4 && stage_bytes == 576;
        if (plan.stages >= (is_last ? 1 : stage_bytes > 1152 ? 3 : 2)) return plan;
      }
    }
    if (rows == 1) return {};
  }
}

/// Clusters that are resident at once, one block to a multiprocessor: what the tiles are dealt to.
template <class Kernel>
int resident_clusters(Kernel* kernel, int cluster, int threads) {
  int device = 0, count = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  if (cluster == 1) return count;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(cluster));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = kMaxSharedBytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cudaOccupancyMaxActiveClusters(&count, kernel, &config);
  return count;
}

template <class Layout, int kRowTiles, int kWarps>
void launch_decode(CUstream_st* stream, const LinearLaunch& p) {
  const DecodePlan plan = choose_plan<Layout, kRowTiles, kWarps>(p);
  // Fits up to 150,000 columns of f32, whose units are the largest.
  if (plan.stages == 0) return;
  auto* kernel = linear_decode_kernel<Layout, kRowTiles, kWarps>;
  static const cudaError_t once =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes);
  static_cast<void>(once);      // A fault shows at the launch.
  static int resident[5] = {};  // By the cluster's size.
  int& clusters = resident[plan.cluster];
  if (clusters == 0) clusters = resident_clusters(kernel, plan.cluster, 32 * kWarps);

  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(plan.cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.blockDim = dim3(32 * kWarps);
  config.attrs = attributes;
  config.dynamicSmemBytes = plan.shared_bytes;
  config.stream = stream;
  config.numAttrs = plan.cluster > 1 ? 2 : 1;
  const int dealt = clusters < p.num_tiles ? clusters : p.num_tiles;
  config.gridDim = dim3(dealt * plan.cluster, (p.num_rows + plan.rows - 1) / plan.rows);
  cudaLaunchKernelEx(&config, kernel, p, plan);
}

/// Warps hide the latency of turning 4-bit weights into operands: 24 were faster than 16 by a tenth, and 32,
/// with 64 registers each, slower. Where a stage or x is large, 24 rings no longer fit. Scales in f16 and f32
/// are rare: those have no kernel for 16 rows at a time.
template <class Layout>
void launch_decode_for_rows(CUstream_st* stream, const LinearLaunch& p) {
  if constexpr (Layout::kScaleType == ScaleType::kBf16) {
    if (p.num_rows > 8) {
      launch_decode<Layout, 2, 16>(stream, p);
      return;
    }
  }
  constexpr int kWarps = Layout::kUnitBytes < 2048 ? 24 : 16;
  launch_decode<Layout, 1, kWarps>(stream, p);
}

}  // namespace
}  // namespace tensorfold::cuda
