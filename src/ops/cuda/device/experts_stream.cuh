// The products of experts() for one row where weights come as a stream, as in linear()'s decode kernel: one
// kernel for all of them, one block an SM, whose producing warp fills a ring for each slot, with matrices
// found by the row's choices. Layout and arithmetic: ops/cuda/linear.h.
//
// Blocks of one tile each (device/experts_few.cuh) have some hundred short streams at once, but each pays the
// latency of its first load, and those of down cannot begin before others leave. Here loads run on over the
// borders of tiles, experts and products: while the blocks meet between the activation and down, which needs
// all of it, down's weights fill the rings.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "ops/cuda/device/experts.cuh"
#include "ops/cuda/device/launch.cuh"
#include "ops/cuda/device/linear_stream.cuh"
#include "ops/cuda/experts_params.h"
#include "ops/cuda/multiprocessors.h"

namespace tensorfold::cuda {
namespace experts_stream {

/// Outputs of a row at most: their products are the rows of down's x.
constexpr int kMaxOutputs = 16;

/// How the kernel is cut: two plans with one ring, and the places of what a block has beside them, from
/// extra_offset on.
struct RowPlan {
  DecodePlan into;    ///< Gate and up, of one row.
  DecodePlan out_of;  ///< Down, of a row an output.
  int tiles;          ///< Of down, of a block at most.

  // The choices' numbers, [kMaxOutputs]; their weights; of the block's tiles of down [tile][output][16] sums,
  // kept until all of a tile are there, and as many biases.
  __host__ __device__ static constexpr int weights_place() { return kMaxOutputs * 4; }
  __host__ __device__ static constexpr int kept_place() { return 2 * kMaxOutputs * 4; }
  __host__ __device__ int kept_floats() const { return tiles * out_of.rows * kLinearTileRows; }
  int extra_bytes() const { return kept_place() + 2 * kept_floats() * 4; }
};

/// A plan for `blocks` blocks; without stages: it does not fit.
template <class Layout>
RowPlan make_plan(const ExpertsLaunch& p, int blocks) {
  constexpr int kWarps = decode_warps(Layout::kUnitBytes);
  const int outputs = outputs_of_row(p);
  for (const int target : kStageTargets) {
    const auto plan_of = [&](const ExpertProduct& product, int rows) {
      const int units = product.chunks_per_segment / Layout::kUnitChunks;
      return make_decode_plan(rows, 1, units, stage_units_for(units, Layout::kUnitBytes, target),
                              Layout::kUnitBytes);
    };
    RowPlan plan{plan_of(p.into, 1), plan_of(p.out_of, outputs), (p.out_of.tiles + blocks - 1) / blocks};
    plan.into.stage_bytes = plan.out_of.stage_bytes =
        std::max(plan.into.stage_bytes, plan.out_of.stage_bytes);
    const int x = std::max(x_bytes(kLinearSegments * p.into.chunks_per_segment, 1),
                           x_bytes(kLinearSegments * p.out_of.chunks_per_segment, outputs));
    lay_out(plan.into, x, kWarps, 1, plan.extra_bytes());
    lay_out(plan.out_of, x, kWarps, 1, plan.extra_bytes());
    if (plan.into.stages >= stages_wanted(target)) return plan;
  }
  return {};
}

/// A block's parts, and the barriers that its warps prepare.
template <class Layout, int kWarps>
struct Block {
  static constexpr int kSlots = kWarps / kLinearSegments;
  std::byte* shared;
  int warp, lane;
  WarpPlace at;
  RingReader ring;
  SegmentSums<1> sums;

  __device__ __forceinline__ Block(const DecodePlan& plan, std::byte* shared_)
      : shared(shared_),
        warp(static_cast<int>(threadIdx.x / 32)),
        lane(static_cast<int>(threadIdx.x % 32)),
        at(warp_place(plan, warp)),
        ring(plan, SlotRing(plan, shared_address(shared), at.slot), at.segment, Layout::kUnitBytes) {
    auto* barriers =
        reinterpret_cast<uint64_t*>(shared + plan.barriers_offset) + kSlots * plan.stages * 2 + at.slot * 2;
    sums = {.sums = shared + plan.sums_offset + at.slot * (kLinearSegments - 1) * kSumBytes,
            .full = barriers,
            .empty = barriers + 1};
    if (is_producing()) {
      init_ring_barriers(plan, kSlots, shared_address(shared));
    } else if (at.segment == 0 && lane == 0) {
      mbarrier_init(sums.full, 32 * (kLinearSegments - 1));
      mbarrier_init(sums.empty, 32);
      fence_mbarrier_init();
    }
    __syncthreads();
  }
  __device__ __forceinline__ bool is_producing() const { return warp == kWarps; }

  /// The slot's tiles of [0, num_tiles), which are dealt to `dealt.slots` slots of which this is number
  /// `slot`: prepare(tile) in the leader before a tile is multiplied, to ask for what it needs; finish(tile,
  /// first, second) in its lanes that have outputs lane / 4 and lane / 4 + 8 of a tile. row_of(tile): its row
  /// of x.
  template <class RowOf, class Prepare, class Finish>
  __device__ __forceinline__ void multiply(const DecodePlan& plan, const ExpertProduct& product,
                                           int num_tiles, const DealtTiles& dealt, int slot,
                                           const RowOf& row_of, const Prepare& prepare,
                                           const Finish& finish) {
    const ChunkRange segment = segment_chunks(product.chunks, product.chunks_per_segment, at.segment);
    const int length = segment.count / Layout::kUnitChunks, pair_bytes = x_pair_bytes(plan.rows);
    const uint32_t first_x =
        shared_address(shared) + plan.x_offset + segment.begin * 2 * pair_bytes + lane % 4 * 16;
    for (int tile = dealt.first(slot); tile < num_tiles; tile = dealt.next(tile)) {
      // All columns of the product are the same: the row is every lane's.
      const uint32_t x[1] = {first_x + row_of(tile) * 64};
      TileSum<Layout> sum[1];
      if (at.segment == 0) prepare(tile);
      multiply_segment<Layout, 1>(ring, plan, length, x, pair_bytes, lane, sum);
      float acc[1][4] = {{sum[0].acc[0], sum[0].acc[1], sum[0].acc[2], sum[0].acc[3]}};
      if (at.segment > 0) {
        sums.hand_over(acc, at.segment, lane);
        continue;
      }
      sums.collect(acc, kLinearSegments, lane);
      if (lane % 4 == 0)
        finish(tile, __fmul_rn(acc[0][0], Layout::kResultScale), __fmul_rn(acc[0][2], Layout::kResultScale));
    }
  }
};

/// The tiles of gate and up: one of gate and the same of up after each other; or of up alone, where the
/// activation has no gate.
struct IntoTiles {
  bool is_gated;
  int of_output;  ///< Of a matrix.

  __device__ __forceinline__ explicit IntoTiles(const ExpertsLaunch& p)
      : is_gated(p.gate.data != nullptr), of_output(p.into.tiles) {}
  __device__ __forceinline__ int deal() const { return is_gated ? 2 : 1; }
  __device__ __forceinline__ bool is_gate(int tile) const { return is_gated && tile % 2 == 0; }
  __device__ __forceinline__ const ExpertMatrices& matrices(const ExpertsLaunch& p, int tile) const {
    return is_gate(tile) ? p.gate : p.up;
  }
  __device__ __forceinline__ int output(int tile) const { return tile / deal() / of_output; }
  /// Of its matrix.
  __device__ __forceinline__ int index(int tile, int output) const {
    return tile / deal() - output * of_output;
  }
};

/// The blocks meet: what any has written before is there for all behind. By the multiplying warps; all blocks
/// are on the device, since the next kernel starts only where each of this one has.
template <int kWarps>
__device__ __forceinline__ void meet_blocks(int32_t* arrived) {
  sync_multiplying_warps<kWarps>();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(arrived, 1);
    int32_t count;
    do {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(count) : "l"(arrived) : "memory");
    } while (count < static_cast<int32_t>(gridDim.x));
  }
  sync_multiplying_warps<kWarps>();
}

/// A row's experts. Grid: blocks to which the tiles of gate and up are dealt, and that have every gridDim-th
/// tile of down, of all choices; no more than there are multiprocessors. Traffic: the chosen experts' weights
/// once, x and the row's products once a block, from L2.
template <class Layout, int kWarps>
__global__ void __launch_bounds__(32 * (kWarps + 1), 1)
    experts_row_kernel(const __grid_constant__ ExpertsLaunch p, const __grid_constant__ RowPlan plan) {
  extern __shared__ __align__(128) std::byte shared[];
  Block<Layout, kWarps> block(plan.into, shared);
  std::byte* extra = shared + plan.into.extra_offset;
  int* ids = reinterpret_cast<int*>(extra);
  const IntoTiles into(p);
  const int thread = static_cast<int>(threadIdx.x), lane = block.lane;
  const int outputs = outputs_of_row(p), blocks = static_cast<int>(gridDim.x),
            this_block = static_cast<int>(blockIdx.x);
  const int num_into_tiles = outputs * into.of_output * into.deal();
  const DealtTiles dealt{into.deal(), block.kSlots * blocks};
  const int num_tiles = (p.out_of.tiles - this_block + blocks - 1) / blocks;
  const int num_items = num_tiles * outputs;  // Item: a tile of down for an output, outputs first.
  const DealtTiles dealt_items{1, block.kSlots};
  const auto bring_x = [&] {
    stage_x<kWarps>({p.x, p.x_stride, p.into.in}, plan.into, 1, 0, p.into.chunks,
                    shared + plan.into.x_offset);
  };
  if (p.x_is_early && !block.is_producing()) bring_x();
  wait_for_previous_kernel();  // The experts' numbers come from there.
  launch_dependents();
  const int expert_of_lane = lane < p.num_choices ? load_written(p.expert_ids + lane) : kSharedExpertId;

  if (block.is_producing()) {
    if (lane < kMaxOutputs) ids[lane] = expert_of_lane;
    __syncwarp();
    const auto tile_bytes = [](const ExpertProduct& product) {
      return int64_t{product.chunks / Layout::kUnitChunks} * Layout::kUnitBytes;
    };
    const int64_t into_bytes = tile_bytes(p.into), out_of_bytes = tile_bytes(p.out_of);
    ProducingTurn turn(plan.into);
    produce_tiles<Layout>(p.into.chunks, num_into_tiles, dealt, plan.into, {0, this_block, blocks},
                          block.kSlots, shared_address(shared), turn, [&](int tile) {
                            const int output = into.output(tile);
                            return matrix_of(into.matrices(p, tile), ids[output]) +
                                   into.index(tile, output) * into_bytes;
                          });
    produce_tiles<Layout>(p.out_of.chunks, num_items, dealt_items, plan.out_of, {0, 0, 1}, block.kSlots,
                          shared_address(shared), turn, [&](int item) {
                            const int tile = item / outputs;
                            return matrix_of(p.down, ids[item - tile * outputs]) +
                                   (this_block + tile * blocks) * out_of_bytes;
                          });
    return;
  }

  if (!p.x_is_early) bring_x();
  sync_multiplying_warps<kWarps>();
  float gate[2] = {}, bias[2] = {};
  block.multiply(
      plan.into, p.into, num_into_tiles, dealt, block.at.slot * blocks + this_block, [](int) { return 0; },
      [&](int tile) {
        const ExpertMatrices& matrices = into.matrices(p, tile);
        if (matrices.bias == nullptr) return;
        const int output = into.output(tile),
                  first_column = into.index(tile, output) * kLinearTileRows + lane / 4;
        const int expert = __shfl_sync(0xffffffffu, expert_of_lane, output);
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (first_column + 8 * i < p.into.out) bias[i] = bias_of(matrices, expert, first_column + 8 * i);
      },
      [&](int tile, float first, float second) {
        const ExpertMatrices& matrices = into.matrices(p, tile);
        const int output = into.output(tile),
                  first_column = into.index(tile, output) * kLinearTileRows + lane / 4;
        const float sums[2] = {first, second};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int column = first_column + 8 * i;
          if (column >= p.into.out) continue;
          const float y = with_bias(matrices, bias[i], sums[i]);
          if (into.is_gate(tile)) {
            gate[i] = y;
          } else {
            reinterpret_cast<__nv_bfloat16*>(p.product)[output * p.product_stride + column] =
                __float2bfloat16_rn(activate(p, into.is_gated ? gate[i] : y, y));
          }
        }
      });

  // What the end needs, on its way while the blocks meet. A thread has an output of the row at most.
  float* choice_weights = reinterpret_cast<float*>(extra + RowPlan::weights_place());
  float* kept = reinterpret_cast<float*>(extra + RowPlan::kept_place());
  float* biases = kept + plan.kept_floats();
  const auto column_of = [&](int tile, int i) { return (this_block + tile * blocks) * kLinearTileRows + i; };
  const int my_tile = thread / kLinearTileRows, column = column_of(my_tile, thread % kLinearTileRows);
  const bool has_output = my_tile < num_tiles && column < p.out_of.out;
  const float before = has_output && p.accumulate ? static_cast<const float*>(p.out)[column] : 0.0f;
  const float shared_gate = has_output && p.shared_gate != nullptr ? *p.shared_gate : 0.0f;
  if (thread < p.num_choices) choice_weights[thread] = p.expert_weights[thread];
  if (p.down.bias != nullptr) {
    for (int i = thread; i < num_items * kLinearTileRows; i += 32 * kWarps) {
      const int item = i / kLinearTileRows, tile = item / outputs, choice = item - tile * outputs;
      const int its_column = column_of(tile, i % kLinearTileRows);
      if (choice < p.num_choices && its_column < p.out_of.out)
        biases[i] = bias_of(p.down, p.expert_ids[choice], its_column);
    }
  }
  meet_blocks<kWarps>(p.arrived_blocks);
  stage_x<kWarps>({p.product, p.product_stride, p.out_of.in}, plan.out_of, outputs, 0, p.out_of.chunks,
                  shared + plan.out_of.x_offset);
  sync_multiplying_warps<kWarps>();
  block.multiply(
      plan.out_of, p.out_of, num_items, dealt_items, block.at.slot, [&](int item) { return item % outputs; },
      [](int) {},
      [&](int item, float first, float second) {
        kept[item * kLinearTileRows + lane / 4] = first;
        kept[item * kLinearTileRows + lane / 4 + 8] = second;
      });
  sync_multiplying_warps<kWarps>();
  if (!has_output) return;
  const int first = my_tile * outputs * kLinearTileRows + thread % kLinearTileRows;
  const float *of_tile = kept + first, *bias_of_tile = biases + first;
  float y = 0.0f;
  for (int j = 0; j < p.num_choices; ++j) {
    const int at = j * kLinearTileRows;
    y = __fmaf_rn(choice_weights[j], with_bias(p.down, bias_of_tile[at], of_tile[at]), y);
  }
  store_row_output(
      p, column, y, before, [&] { return of_tile[p.num_choices * kLinearTileRows]; }, shared_gate);
}

/// Bytes of a row's experts from which on the start of a stream is worth it.
constexpr int64_t kLeastBytes = int64_t{12} << 20;

/// Launches the experts of one row, all of whose matrices have this layout; false: the kernel does not take
/// them, or they are too little for it.
template <class Layout>
bool launch_row(CUstream_st* stream, const ExpertsLaunch& p) {
  if constexpr (is_common(Layout::kLayout)) {
    constexpr int kWarps = decode_warps(Layout::kUnitBytes);
    const int outputs = outputs_of_row(p);
    if (p.arrived_blocks == nullptr || outputs > kMaxOutputs || !(p.out_of.layout == p.into.layout) ||
        (p.gate.data != nullptr && !has_fused_gate(p)))
      return false;
    const auto bytes_of = [&](const ExpertProduct& product) {
      return int64_t{outputs} * product.tiles * Layout::kLayout.tile_bytes(product.in);
    };
    const int64_t bytes = bytes_of(p.into) * (p.gate.data != nullptr ? 2 : 1) + bytes_of(p.out_of);
    if (p.variants.streams == ExpertStreams::kWhereFaster && bytes < kLeastBytes) return false;
    const int multiprocessors = num_multiprocessors(),
              most = std::max(outputs * p.into.tiles, p.out_of.tiles),
              blocks = std::min(most, multiprocessors);
    const RowPlan plan = make_plan<Layout>(p, blocks);
    if (plan.into.stages == 0 || plan.tiles * kLinearTileRows > 32 * kWarps) return false;
    auto* kernel = experts_row_kernel<Layout, kWarps>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes);
    launch_kernel(kernel, dim3(blocks), dim3(32 * (kWarps + 1)), plan.into.shared_bytes, stream, p, plan);
    return true;
  }
  return false;
}

}  // namespace experts_stream
}  // namespace tensorfold::cuda
