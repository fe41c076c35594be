// The products of experts() for one row where weights come as a stream, as in linear()'s decode kernel: one
// block an SM, whose producing warp fills a ring for each slot, with matrices found by the row's choices.
// Layout and arithmetic: ops/cuda/linear.h.
//
// Blocks of one tile each (device/experts_few.cuh) have some hundred short streams at once, but each pays the
// latency of its first load, and few fit an SM. Here loads run on over the borders of tiles and experts.
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
constexpr int kIdBytes = kMaxOutputs * 4;

/// What a block of down has beside its ring: the choices' numbers and weights, and for its tiles the outputs
/// of each choice, kept until all are there, and their biases.
__host__ __device__ constexpr int down_bytes(int tiles, int outputs) {
  return kIdBytes + kMaxOutputs * 4 + 2 * tiles * outputs * kLinearTileRows * 4;
}

/// A plan for a product of x with `rows` rows, `extra_bytes` beside it; without stages: it does not fit.
template <class Layout>
DecodePlan make_plan(const ExpertProduct& product, int rows, int extra_bytes) {
  constexpr int kWarps = decode_warps(Layout::kUnitBytes);
  const int units = product.chunks_per_segment / Layout::kUnitChunks;
  for (const int target : kStageTargets) {
    const DecodePlan plan = make_decode_plan(
        rows, 1, units, stage_units_for(units, Layout::kUnitBytes, target), Layout::kUnitBytes,
        kLinearSegments * product.chunks_per_segment, kWarps, 1, extra_bytes);
    if (plan.stages >= stages_wanted(target)) return plan;
  }
  return {};
}

/// The numbers of the chosen experts in shared memory: by one warp, for itself.
__device__ __forceinline__ void load_ids(const ExpertsLaunch& p, int* ids) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (lane < outputs_of_row(p))
    ids[lane] = lane < p.num_choices ? load_written(p.expert_ids + lane) : kSharedExpertId;
  __syncwarp();
}

/// A block's parts, and the barriers that its warps prepare.
template <class Layout, int kWarps>
struct Block {
  static constexpr int kSlots = kWarps / kLinearSegments;
  const DecodePlan& plan;
  std::byte* shared;
  int warp, lane;
  WarpPlace at;
  SegmentSums<1> sums;

  __device__ __forceinline__ Block(const DecodePlan& plan_, std::byte* shared_)
      : plan(plan_),
        shared(shared_),
        warp(static_cast<int>(threadIdx.x / 32)),
        lane(static_cast<int>(threadIdx.x % 32)),
        at(warp_place(plan, warp)) {
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
  __device__ __forceinline__ void multiply(const ExpertProduct& product, int num_tiles,
                                           const DealtTiles& dealt, int slot, const RowOf& row_of,
                                           const Prepare& prepare, const Finish& finish) {
    const ChunkRange segment = segment_chunks(product.chunks, product.chunks_per_segment, at.segment);
    const int length = segment.count / Layout::kUnitChunks, pair_bytes = x_pair_bytes(plan.rows);
    const uint32_t first_x =
        shared_address(shared) + plan.x_offset + segment.begin * 2 * pair_bytes + lane % 4 * 16;
    RingReader ring(plan, SlotRing(plan, shared_address(shared), at.slot), at.segment, Layout::kUnitBytes);
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

/// Gate and up, and the activation; or up alone where the activation has no gate. Grid: blocks that the tiles
/// are dealt to, a tile of gate and the same of up after each other. Traffic: the chosen experts' weights
/// once, x once a block, from L2.
template <class Layout, int kWarps>
__global__ void __launch_bounds__(32 * (kWarps + 1), 1)
    experts_into_kernel(const __grid_constant__ ExpertsLaunch p, const __grid_constant__ DecodePlan plan,
                        const ExpertStage stage) {
  extern __shared__ __align__(128) std::byte shared[];
  Block<Layout, kWarps> block(plan, shared);
  const auto bring_x = [&] {
    stage_x<kWarps>({p.x, p.x_stride, p.into.in}, plan, 1, 0, p.into.chunks, shared + plan.x_offset);
  };
  if (p.x_is_early && !block.is_producing()) bring_x();
  wait_for_previous_kernel();  // The experts' numbers come from there.
  launch_dependents();
  const ExpertProduct& product = p.into;
  const bool is_gated = stage == ExpertStage::kGateUp;
  const int deal = is_gated ? 2 : 1, num_tiles = outputs_of_row(p) * product.tiles * deal;
  const BlockPlace place{0, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)};
  if (block.is_producing()) {
    int* ids = reinterpret_cast<int*>(shared + plan.extra_offset);
    load_ids(p, ids);
    const int64_t tile_bytes = int64_t{product.chunks / Layout::kUnitChunks} * Layout::kUnitBytes;
    produce_tiles<Layout>(product.chunks, num_tiles, DealtTiles{deal, block.kSlots * place.clusters}, plan,
                          place, block.kSlots, shared_address(shared), [&](int tile) {
                            const int of_both = is_gated ? tile / 2 : tile, output = of_both / product.tiles;
                            const ExpertMatrices& matrices = is_gated && tile % 2 == 0 ? p.gate : p.up;
                            return matrix_of(matrices, ids[output]) +
                                   (of_both - output * product.tiles) * tile_bytes;
                          });
    return;
  }
  if (!p.x_is_early) bring_x();
  const int expert_of_lane = block.lane < p.num_choices ? load_written(p.expert_ids + block.lane) : 0;
  sync_multiplying_warps<kWarps>();
  // Of tile number `tile`: its matrices, output of the row, and first column there.
  const auto matrices_at = [&](int tile) -> const ExpertMatrices& {
    return is_gated && tile % 2 == 0 ? p.gate : p.up;
  };
  const auto output_at = [&](int tile) { return (is_gated ? tile / 2 : tile) / product.tiles; };
  const auto column_at = [&](int tile, int output) {
    return ((is_gated ? tile / 2 : tile) - output * product.tiles) * kLinearTileRows + block.lane / 4;
  };
  float gate[2] = {}, bias[2] = {};
  block.multiply(
      product, num_tiles, {deal, block.kSlots * place.clusters},
      block.at.slot * place.clusters + place.cluster, [](int) { return 0; },
      [&](int tile) {
        const ExpertMatrices& matrices = matrices_at(tile);
        if (matrices.bias == nullptr) return;
        const int output = output_at(tile), first_column = column_at(tile, output);
        const int expert = __shfl_sync(0xffffffffu, expert_of_lane, output);
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (first_column + 8 * i < product.out) bias[i] = bias_of(matrices, expert, first_column + 8 * i);
      },
      [&](int tile, float first, float second) {
        const bool is_gate = is_gated && tile % 2 == 0;
        const ExpertMatrices& matrices = matrices_at(tile);
        const int output = output_at(tile), first_column = column_at(tile, output);
        const float sums[2] = {first, second};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int column = first_column + 8 * i;
          if (column >= product.out) continue;
          const float y = with_bias(matrices, bias[i], sums[i]);
          if (is_gate) {
            gate[i] = y;
          } else {
            reinterpret_cast<__nv_bfloat16*>(p.product)[output * p.product_stride + column] =
                __float2bfloat16_rn(activate(p, is_gated ? gate[i] : y, y));
          }
        }
      });
}

/// Down of the row's choices and of the shared expert, and their sum. Grid: blocks that have every gridDim-th
/// tile of 16 outputs, of all choices. Traffic: the chosen experts' weights once, the row's products once a
/// block, from L2.
template <class Layout, int kWarps>
__global__ void __launch_bounds__(32 * (kWarps + 1), 1)
    experts_out_of_kernel(const __grid_constant__ ExpertsLaunch p, const __grid_constant__ DecodePlan plan) {
  extern __shared__ __align__(128) std::byte shared[];
  Block<Layout, kWarps> block(plan, shared);
  launch_dependents();
  const ExpertProduct& product = p.out_of;
  const int outputs = outputs_of_row(p), blocks = static_cast<int>(gridDim.x);
  const int num_tiles = (product.tiles - static_cast<int>(blockIdx.x) + blocks - 1) / blocks;
  const int num_items = num_tiles * outputs;  // Item: a tile's output for a choice, choices first.
  if (block.is_producing()) {
    int* ids = reinterpret_cast<int*>(shared + plan.extra_offset);
    load_ids(p, ids);
    const int64_t tile_bytes = int64_t{product.chunks / Layout::kUnitChunks} * Layout::kUnitBytes;
    produce_tiles<Layout>(product.chunks, num_items, DealtTiles{1, block.kSlots}, plan, {0, 0, 1},
                          block.kSlots, shared_address(shared), [&](int item) {
                            const int tile = item / outputs;
                            return matrix_of(p.down, ids[item - tile * outputs]) +
                                   (static_cast<int>(blockIdx.x) + tile * blocks) * tile_bytes;
                          });
    return wait_for_previous_kernel();
  }
  // What the end needs, on its way now: written by kernels that the previous one has waited for.
  const int thread = static_cast<int>(threadIdx.x), my_tile = thread / kLinearTileRows;
  const int column =
      (static_cast<int>(blockIdx.x) + my_tile * blocks) * kLinearTileRows + thread % kLinearTileRows;
  const bool has_output = my_tile < num_tiles && column < product.out;
  const float before =
      has_output && p.accumulate ? load_written(static_cast<const float*>(p.out) + column) : 0.0f;
  const float shared_gate = has_output && p.shared_gate != nullptr ? load_written(p.shared_gate) : 0.0f;
  float* choice_weights = reinterpret_cast<float*>(shared + plan.extra_offset + kIdBytes);
  float* kept = choice_weights + kMaxOutputs;                    // [tile][choice][16]
  float* biases = kept + num_tiles * outputs * kLinearTileRows;  // As kept.
  if (thread < p.num_choices) choice_weights[thread] = load_written(p.expert_weights + thread);
  if (p.down.bias != nullptr) {
    for (int i = thread; i < num_items * kLinearTileRows; i += 32 * kWarps) {
      const int item = i / kLinearTileRows, tile = item / outputs, choice = item - tile * outputs;
      const int its_column =
          (static_cast<int>(blockIdx.x) + tile * blocks) * kLinearTileRows + i % kLinearTileRows;
      if (choice < p.num_choices && its_column < product.out)
        biases[i] = bias_of(p.down, load_written(p.expert_ids + choice), its_column);
    }
  }
  wait_for_previous_kernel();
  stage_x<kWarps>({p.product, p.product_stride, product.in}, plan, outputs, 0, product.chunks,
                  shared + plan.x_offset);
  sync_multiplying_warps<kWarps>();
  block.multiply(
      product, num_items, {1, block.kSlots}, block.at.slot, [&](int item) { return item % outputs; },
      [](int) {},
      [&](int item, float first, float second) {
        kept[item * kLinearTileRows + block.lane / 4] = first;
        kept[item * kLinearTileRows + block.lane / 4 + 8] = second;
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

/// Bytes of a stage from which on the start of a stream is worth it: 9 MB of Qwen3.6-35B-A3B's gate and up
/// were as fast with a block a tile, 17 MB of Nemotron 3 Nano's up were not.
constexpr int64_t kLeastBytes = int64_t{12} << 20;

/// Launches a stage of one row; false: these kernels do not take it, or it is too little for them.
template <class Layout>
bool launch_stage(CUstream_st* stream, const ExpertsLaunch& p, ExpertStage stage) {
  if constexpr (is_common(Layout::kLayout)) {
    constexpr int kWarps = decode_warps(Layout::kUnitBytes);
    constexpr int kThreads = 32 * (kWarps + 1);
    const int outputs = outputs_of_row(p), multiprocessors = num_multiprocessors();
    const bool is_whole =
        stage == ExpertStage::kGateUp || (stage == ExpertStage::kUp && p.gate.data == nullptr);
    if (outputs > kMaxOutputs || !(is_whole || stage == ExpertStage::kDown)) return false;
    const ExpertProduct& product = product_of(p, stage);
    const int64_t bytes = int64_t{outputs} * product.tiles * Layout::kLayout.tile_bytes(product.in) *
                          (stage == ExpertStage::kGateUp ? 2 : 1);
    if (p.variants.streams == ExpertStreams::kWhereFaster && bytes < kLeastBytes) return false;
    const auto set_up = [](auto* kernel) {
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes);
    };
    if (stage == ExpertStage::kDown) {
      const int blocks = p.out_of.tiles < multiprocessors ? p.out_of.tiles : multiprocessors;
      const int tiles = (p.out_of.tiles + blocks - 1) / blocks;
      const DecodePlan plan = make_plan<Layout>(p.out_of, outputs, down_bytes(tiles, outputs));
      if (plan.stages == 0 || tiles * kLinearTileRows > 32 * kWarps) return false;
      auto* kernel = experts_out_of_kernel<Layout, kWarps>;
      set_up(kernel);
      launch_kernel(kernel, dim3(blocks), dim3(kThreads), plan.shared_bytes, stream, p, plan);
      return true;
    }
    const DecodePlan plan = make_plan<Layout>(p.into, 1, kIdBytes);
    if (plan.stages == 0) return false;
    const int deals = outputs * p.into.tiles, blocks = deals < multiprocessors ? deals : multiprocessors;
    auto* kernel = experts_into_kernel<Layout, kWarps>;
    set_up(kernel);
    launch_kernel(kernel, dim3(blocks), dim3(kThreads), plan.shared_bytes, stream, p, plan, stage);
    return true;
  }
  return false;
}

}  // namespace experts_stream
}  // namespace tensorfold::cuda
