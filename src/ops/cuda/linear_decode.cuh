// linear() on CUDA for up to 16 rows at a time. Layout and arithmetic: ops/cuda/linear.h.
//
// A decode step reads every weight once and does little with it, so the kernel is built around the stream of
// weights: the warps of a tile, one a segment, share a ring in shared memory that the copy engine fills at a
// producing warp's request, and the stream runs on over the borders of tiles, so that loads never drain; the
// first 3 KB a warp are asked for before the previous kernel of the stream has ended, since weights depend on
// nothing. A cluster of blocks may share a tile, each block some of the segments: x, which every tile needs
// whole, then fits in shared memory, and the unit of work is small enough for all multiprocessors to end
// together.
#pragma once

#include "ops/cuda/device/launch.cuh"
#include "ops/cuda/device/linear_stream.cuh"
#include "ops/cuda/resident_clusters.cuh"

namespace tensorfold::cuda {
namespace {  // Each file that includes this compiles its own kernels.

__device__ __forceinline__ int* tile_queue(const DecodePlan& plan, std::byte* shared, int slot) {
  return reinterpret_cast<int*>(shared + plan.extra_offset + slot * kTileQueueBytes);
}

/// Stages x, then multiplies the slot's tiles: by the kWarps multiplying warps.
template <class Layout, int kRowTiles, int kWarps, class Finisher>
__device__ __forceinline__ void multiply_tiles(const LinearLaunch& p, const DecodePlan& plan,
                                               const BlockPlace& block, const WarpPlace& at, int first_row,
                                               std::byte* shared, Finisher& finisher) {
  const int lane = static_cast<int>(threadIdx.x % 32), rows = min(plan.rows, p.num_rows - first_row);
  const ChunkRange columns =
      segment_chunks(p.chunks, p.chunks_per_segment, block.rank * plan.segments, plan.segments);
  stage_x<kWarps>({p.x + first_row * p.x_stride * 2, p.x_stride, p.in}, plan, rows, columns.begin,
                  columns.count, shared + plan.x_offset);
  sync_multiplying_warps<kWarps>();
  if (plan.cluster > 1) cluster_wait();

  const ChunkRange segment =
      segment_chunks(p.chunks, p.chunks_per_segment, block.rank * plan.segments + at.segment);
  const int length = segment.count / Layout::kUnitChunks, pair_bytes = x_pair_bytes(plan.rows);
  uint32_t x[kRowTiles];
  operand_addresses(x, shared_address(shared) + plan.x_offset, segment.begin - columns.begin, rows,
                    pair_bytes, lane);
  RingReader ring(plan, SlotRing(plan, shared_address(shared), at.slot), at.segment, Layout::kUnitBytes);
  const int* queue = tile_queue(plan, shared, at.slot);
  for (int turn = 0;; turn = (turn + 1) % kTileQueue) {
    mbarrier_wait(ring.full, ring.parity);  // Then the tile is known.
    const int tile = queue[turn];
    if (tile >= p.num_tiles) break;
    TileSum<Layout> sum[kRowTiles];
    multiply_segment<Layout, kRowTiles>(ring, plan, length, x, pair_bytes, lane, sum);
    finisher.add(tile, sum);
  }
  finisher.finish_pending();
}

/// Grid: x clusters of plan.cluster blocks, y groups of plan.rows rows. A cluster computes every
/// (clusters)-th tile of 16 outputs, or those that it draws; block `rank` of it the segments rank * segments
/// and on, kWarps / segments tiles at a time, a warp each (tile, segment); warp kWarps brings the weights.
/// Traffic: every weight once per blockIdx.y, x once per block, from L2.
template <class Layout, int kRowTiles, int kWarps>
__global__ void __launch_bounds__(32 * (kWarps + 1), 1)
    linear_decode_kernel(const __grid_constant__ LinearLaunch p, const __grid_constant__ DecodePlan plan) {
  extern __shared__ __align__(128) std::byte shared[];
  const int warp = static_cast<int>(threadIdx.x / 32), slots = kWarps / plan.segments;
  const int first_row = blockIdx.y * plan.rows;
  const BlockPlace block = block_place(plan);
  const WarpPlace at = warp_place(plan, warp);
  auto finisher = make_finisher<Layout, kRowTiles>(p, plan, block.rank, at, slots, shared, first_row);
  if (warp == kWarps) {
    init_ring_barriers(plan, slots, shared_address(shared));
  } else {
    init_finisher_barriers(plan, finisher);
  }
  __syncthreads();
  if (plan.cluster > 1) cluster_arrive();
  launch_dependents();
  if (warp == kWarps) {
    const ProducingLane lane(plan);
    const DrawnTiles tiles{.drawn = p.drawn_tiles,
                           .slots = slots * block.clusters,
                           .first_lane = lane.slot * plan.segments / 2,
                           .draws = lane.segment == 0 && lane.slot < slots,
                           .queue = tile_queue(plan, shared, lane.slot)};
    ProducingTurn turn(plan);
    produce_tiles<Layout>(
        p.chunks, p.num_tiles, tiles, plan, block, slots, shared_address(shared), turn, [&](int tile) {
          const LinearDeviceCall& call = call_of_tile(p, tile);
          constexpr int64_t kUnits = Layout::kUnitChunks;
          return call.weights + (tile - call.first_tile) * (p.chunks / kUnits) * Layout::kUnitBytes;
        });
    if (plan.cluster > 1) cluster_wait();
    wait_for_previous_kernel();
  } else {
    wait_for_previous_kernel();
    multiply_tiles<Layout, kRowTiles, kWarps>(p, plan, block, at, first_row, shared, finisher);
  }
  if (plan.cluster > 1) {  // A block's shared memory must outlive the others' arrivals in it.
    __syncwarp();
    cluster_arrive();
    cluster_wait();
  }
}

/// As many rows as kRowTiles holds if they leave room for the ring, else fewer; stages of 3 KB, else smaller
/// ones; one block to a tile, or a cluster where x needs the room of several: halving the rows instead would
/// read the weights twice. Without stages: nothing fits.
template <class Layout, int kRowTiles, int kWarps>
DecodePlan choose_plan(const LinearLaunch& p) {
  const int first_cluster = p.num_tiles <= kOneRoundTiles && p.chunks_per_segment >= kLongSegment ? 2 : 1;
  const int units = p.chunks_per_segment / Layout::kUnitChunks;
  int rows = p.num_rows < 8 * kRowTiles ? p.num_rows : 8 * kRowTiles;
  for (;; rows = (rows + 1) / 2) {
    for (const int target : kStageTargets) {
      for (int cluster = first_cluster; cluster <= 4; cluster *= 2) {
        DecodePlan plan = make_decode_plan(
            rows, cluster, units, stage_units_for(units, Layout::kUnitBytes, target), Layout::kUnitBytes);
        lay_out(plan, x_bytes(plan.segments * p.chunks_per_segment, rows), kWarps, kRowTiles,
                kWarps / plan.segments * kTileQueueBytes);
        const bool is_last = rows == 1 && cluster == 4 && target == 576;
        if (plan.stages >= (is_last ? 1 : stages_wanted(target))) return plan;
      }
    }
    if (rows == 1) return {};
  }
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
  if (clusters == 0) clusters = resident_clusters(kernel, plan.cluster, 32 * (kWarps + 1));

  const int dealt = clusters < p.num_tiles ? clusters : p.num_tiles;
  const dim3 grid(dealt * plan.cluster, (p.num_rows + plan.rows - 1) / plan.rows);
  LinearLaunch launch = p;
  // A counter serves one set of slots: blocks of a cluster have the same tiles, each group of rows needs all.
  if (plan.cluster > 1 || grid.y > 1) launch.drawn_tiles = nullptr;
  launch_clusters(kernel, plan.cluster, grid, dim3(32 * (kWarps + 1)), plan.shared_bytes, stream, launch,
                  plan);
}

/// Scales in f16 and f32 are rare: those have no kernel for 16 rows at a time.
template <class Layout>
void launch_decode_for_rows(CUstream_st* stream, const LinearLaunch& p) {
  if constexpr (Layout::kScaleType == ScaleType::kBf16) {
    if (p.num_rows > 8) {
      launch_decode<Layout, 2, kTwoRowTileWarps>(stream, p);
      return;
    }
  }
  launch_decode<Layout, 1, decode_warps(Layout::kUnitBytes)>(stream, p);
}

}  // namespace
}  // namespace tensorfold::cuda
