// The products of experts() for one row where weights come as a stream, as in linear()'s decode kernel: one
// kernel for all of them, one block an SM, whose producing warp fills a ring for each slot, with matrices
// found by the row's choices; a warp a slot adds its sums up and finishes its tiles. Layout and arithmetic:
// ops/cuda/linear.h.
//
// Blocks of one tile each (device/experts_few.cuh) have some hundred short streams at once, but each pays the
// latency of its first load, and those of down cannot begin before others leave. Here loads run on over the
// borders of tiles, experts and products: while the blocks meet between the activation and down, which needs
// all of it, down's weights fill the rings.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "ops/cuda/device/experts.cuh"
#include "ops/cuda/device/launch.cuh"
#include "ops/cuda/device/linear_stream.cuh"
#include "ops/cuda/device/register_stream.cuh"
#include "ops/cuda/experts_params.h"
#include "ops/cuda/multiprocessors.h"

namespace tensorfold::cuda {
namespace experts_stream {

/// Outputs of a row at most: their products are the rows of down's x.
constexpr int kMaxOutputs = 16;

/// How the kernel is cut: two plans with one ring, and the places of what a block has beside them, from
/// extra_offset on: the choices' numbers, [kMaxOutputs]; of its tiles of down the outputs of each choice,
/// kept until all of a tile are there, [tile][output][16]; and what Block has.
struct RowPlan {
  DecodePlan into;    ///< Gate and up, of one row.
  DecodePlan out_of;  ///< Down, of a row an output.
  int tiles;          ///< Of down, of a block at most.

  __host__ __device__ int kept_place() const { return kMaxOutputs * 4; }
  __host__ __device__ int block_place() const {
    return kept_place() + tiles * out_of.rows * kLinearTileRows * 4;
  }
};

/// Sums that the multiplying warps of a slot may be ahead of the one that finishes its tiles.
constexpr int kSumTurns = 4;
/// Floats of a tile's sums: of each segment, 16 outputs of the one row.
constexpr int kTileSumFloats = kLinearSegments * kLinearTileRows;

/// A place among a slot's sums, and the parity of its turn.
struct SumTurn {
  int turn = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++turn == kSumTurns) turn = 0, parity ^= 1;
  }
};

/// A block: kWarps multiplying warps, the one that brings weights, and one for each slot that adds its sums
/// up and does what follows, so that the others go on. Its parts, and the barriers that its warps prepare.
template <class Layout, int kWarps>
struct Block {
  static constexpr int kSlots = kWarps / kLinearSegments, kThreads = 32 * (kWarps + 1 + kSlots);
  std::byte* shared;
  int warp, lane;
  WarpPlace at;  ///< Of a multiplying warp; a finishing one's slot.
  RingReader ring;
  float* sums;             ///< The slot's, [kSumTurns][segment][16].
  uint64_t *full, *empty;  ///< [kSumTurns]
  SumTurn sum_turn;

  /// Shared memory of the slots' sums, and of their barriers.
  static constexpr int kSumsBytes = kSlots * kSumTurns * kTileSumFloats * 4;
  static constexpr int kBytes = kSumsBytes + kSlots * kSumTurns * 16;

  /// own: kBytes of shared memory.
  __device__ __forceinline__ Block(const DecodePlan& plan, std::byte* shared_, std::byte* own)
      : shared(shared_),
        warp(static_cast<int>(threadIdx.x / 32)),
        lane(static_cast<int>(threadIdx.x % 32)),
        at(is_finishing() ? WarpPlace{warp - kWarps - 1, 0} : warp_place(plan, warp)),
        ring(plan, SlotRing(plan, shared_address(shared), at.slot), at.segment, Layout::kUnitBytes),
        sums(reinterpret_cast<float*>(own) + at.slot * kSumTurns * kTileSumFloats),
        full(reinterpret_cast<uint64_t*>(own + kSumsBytes) + at.slot * 2 * kSumTurns),
        empty(full + kSumTurns) {
    if (is_producing()) {
      init_ring_barriers(plan, kSlots, shared_address(shared));
    } else if (is_finishing() && lane < kSumTurns) {
      mbarrier_init(full + lane, kLinearSegments);
      mbarrier_init(empty + lane, 1);
      fence_mbarrier_init();
    }
    __syncthreads();
  }
  __device__ __forceinline__ bool is_producing() const { return warp == kWarps; }
  __device__ __forceinline__ bool is_finishing() const { return warp > kWarps; }
  /// All but the producing warp meet.
  __device__ __forceinline__ void sync() const {
    asm volatile("bar.sync 2, %0;" ::"n"(kThreads - 32) : "memory");
  }

  /// By the multiplying warps: the slot's tiles of [0, num_tiles), which are dealt to `dealt.slots` slots of
  /// which this is number `slot`. row_of(tile): its row of x.
  template <class RowOf>
  __device__ __forceinline__ void multiply(const DecodePlan& plan, const ExpertProduct& product,
                                           int num_tiles, const DealtTiles& dealt, int slot,
                                           const RowOf& row_of) {
    const ChunkRange segment = segment_chunks(product.chunks, product.chunks_per_segment, at.segment);
    const int length = segment.count / Layout::kUnitChunks, pair_bytes = x_pair_bytes(plan.rows);
    const uint32_t first_x =
        shared_address(shared) + plan.x_offset + segment.begin * 2 * pair_bytes + lane % 4 * 16;
    for (int tile = dealt.first(slot); tile < num_tiles; tile = dealt.next(tile)) {
      // All columns of the product are the same: the row is every lane's.
      const uint32_t x[1] = {first_x + row_of(tile) * 64};
      TileSum<Layout> sum[1];
      multiply_segment<Layout, 1>(ring, plan, length, x, pair_bytes, lane, sum);
      mbarrier_wait(empty + sum_turn.turn, sum_turn.parity ^ 1);
      float* to = sums + sum_turn.turn * kTileSumFloats + at.segment * kLinearTileRows + lane / 4;
      if (lane % 4 == 0) to[0] = sum[0].acc[0], to[8] = sum[0].acc[2];
      __syncwarp();
      if (elect_one()) mbarrier_arrive(full + sum_turn.turn);
      sum_turn.next();
    }
  }
  /// By the finishing warp, of the same tiles: prepare(tile) to ask for what finish() needs, then
  /// finish(tile, sum), in the first 16 lanes, of output `lane` of the tile.
  template <class Prepare, class Finish>
  __device__ __forceinline__ void finish(int num_tiles, const DealtTiles& dealt, int slot,
                                         const Prepare& prepare, const Finish& finish) {
    for (int tile = dealt.first(slot); tile < num_tiles; tile = dealt.next(tile)) {
      prepare(tile);
      mbarrier_wait(full + sum_turn.turn, sum_turn.parity);
      const float sum = register_stream::add_segments<Layout>(
          sums + sum_turn.turn * kTileSumFloats + lane % kLinearTileRows, kLinearTileRows);
      __syncwarp();
      if (elect_one()) mbarrier_arrive(empty + sum_turn.turn);
      sum_turn.next();
      if (lane < kLinearTileRows) finish(tile, sum);
    }
  }
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
    const int extra = plan.block_place() + Block<Layout, kWarps>::kBytes;
    lay_out(plan.into, x, kWarps, 0, extra);
    lay_out(plan.out_of, x, kWarps, 0, extra);
    if (plan.into.stages >= stages_wanted(target)) return plan;
  }
  return {};
}

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

/// Says that this block has come so far: what its threads had written when they met before is there for
/// whoever sees all blocks here. By one thread.
__device__ __forceinline__ void arrive_block(int32_t* arrived) {
  __threadfence();
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(arrived) : "memory");
}
/// Waits for all blocks. All of them come: they are no more than the multiprocessors, earlier kernels do not
/// wait for this one, and the next one's blocks start only when all of these have begun. (Not so where another
/// process computes on the device in the same moment, as MPS lets it.) By one thread.
__device__ __forceinline__ void await_blocks(const int32_t* arrived) {
  int32_t count;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(count) : "l"(arrived) : "memory");
  } while (count < static_cast<int32_t>(gridDim.x));
}

/// A row's experts. Grid: blocks to which the tiles of gate and up are dealt, and that have every gridDim-th
/// tile of down, of all choices; no more than there are multiprocessors. Traffic: the chosen experts' weights
/// once, x and the row's products once a block, from L2.
template <class Layout, int kWarps>
__global__ void __launch_bounds__(Block<Layout, kWarps>::kThreads, 1)
    experts_row_kernel(const __grid_constant__ ExpertsLaunch p, const __grid_constant__ RowPlan plan) {
  extern __shared__ __align__(128) std::byte shared[];
  std::byte* extra = shared + plan.into.extra_offset;
  Block<Layout, kWarps> block(plan.into, shared, extra + plan.block_place());
  int* ids = reinterpret_cast<int*>(extra);
  const IntoTiles into(p);
  const int lane = block.lane, outputs = outputs_of_row(p), blocks = static_cast<int>(gridDim.x),
            this_block = static_cast<int>(blockIdx.x);
  const int num_into_tiles = outputs * into.of_output * into.deal();
  const DealtTiles dealt{into.deal(), block.kSlots * blocks};
  const int into_slot = block.at.slot * blocks + this_block;
  const int num_tiles = (p.out_of.tiles - this_block + blocks - 1) / blocks;
  const int num_items = num_tiles * outputs;  // Item: a tile of down for an output, outputs first.
  const DealtTiles dealt_items{1, block.kSlots};
  const auto bring_x = [&] {
    stage_x<kWarps>({p.x, p.x_stride, p.into.in}, plan.into, 1, 0, p.into.chunks,
                    shared + plan.into.x_offset);
  };
  const bool is_multiplying = !block.is_producing() && !block.is_finishing();
  if (p.x_is_early && is_multiplying) bring_x();
  wait_for_previous_kernel();  // The experts' numbers come from there.
  launch_dependents();

  if (block.is_producing()) {
    if (lane < kMaxOutputs) ids[lane] = lane < p.num_choices ? p.expert_ids[lane] : kSharedExpertId;
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

  float* kept = reinterpret_cast<float*>(extra + plan.kept_place());  // [item][16]
  if (is_multiplying) {
    if (!p.x_is_early) bring_x();
    sync_multiplying_warps<kWarps>();
    block.multiply(plan.into, p.into, num_into_tiles, dealt, into_slot, [](int) { return 0; });
    block.sync();  // The activation of the block's tiles has been stored.
    block.sync();  // That of all tiles.
    stage_x<kWarps>({p.product, p.product_stride, p.out_of.in}, plan.out_of, outputs, 0, p.out_of.chunks,
                    shared + plan.out_of.x_offset);
    sync_multiplying_warps<kWarps>();
    block.multiply(plan.out_of, p.out_of, num_items, dealt_items, block.at.slot,
                   [&](int item) { return item % outputs; });
    return;
  }

  const int expert_of_lane = lane < p.num_choices ? p.expert_ids[lane] : kSharedExpertId;
  float gate = 0.0f, bias = 0.0f;
  const auto into_column = [&](int tile, int output) {
    return into.index(tile, output) * kLinearTileRows + lane % kLinearTileRows;
  };
  block.finish(
      num_into_tiles, dealt, into_slot,
      [&](int tile) {
        const ExpertMatrices& matrices = into.matrices(p, tile);
        if (matrices.bias == nullptr) return;
        const int output = into.output(tile), column = into_column(tile, output);
        const int expert = __shfl_sync(0xffffffffu, expert_of_lane, output);
        if (column < p.into.out) bias = bias_of(matrices, expert, column);
      },
      [&](int tile, float sum) {
        const int output = into.output(tile), column = into_column(tile, output);
        if (column >= p.into.out) return;
        const float y = with_bias(into.matrices(p, tile), bias, sum);
        if (into.is_gate(tile)) {
          gate = y;
        } else {
          reinterpret_cast<__nv_bfloat16*>(p.product)[output * p.product_stride + column] =
              __float2bfloat16_rn(activate(p, into.is_gated ? gate : y, y));
        }
      });
  block.sync();
  const bool meets = block.at.slot == 0 && lane == 0;
  if (meets) arrive_block(p.arrived_blocks);
  // What the end needs, on its way while the blocks meet.
  const int thread = block.at.slot * 32 + lane;  // Of the finishing ones.
  const float weight_of_lane = lane < p.num_choices ? p.expert_weights[lane] : 0.0f;
  const auto column_of = [&](int tile) {
    return (this_block + tile * blocks) * kLinearTileRows + lane % kLinearTileRows;
  };
  // A thread's outputs of the block's: thread, thread + kFinishing, ...
  constexpr int kFinishing = 32 * Block<Layout, kWarps>::kSlots;
  const auto before_of = [&](int output) {
    const int tile = output / kLinearTileRows, column = column_of(tile);
    return p.accumulate && tile < num_tiles && column < p.out_of.out
               ? static_cast<const float*>(p.out)[column]
               : 0.0f;
  };
  float before = before_of(thread);
  const float shared_gate = p.shared_gate != nullptr ? *p.shared_gate : 0.0f;
  if (meets) await_blocks(p.arrived_blocks);
  block.sync();
  block.finish(
      num_items, dealt_items, block.at.slot,
      [&](int item) {
        if (p.down.bias == nullptr) return;
        const int tile = item / outputs, choice = item - tile * outputs, column = column_of(tile);
        const int expert = __shfl_sync(0xffffffffu, expert_of_lane, choice);
        if (choice < p.num_choices && column < p.out_of.out) bias = bias_of(p.down, expert, column);
      },
      [&](int item, float sum) {
        const int choice = item % outputs;
        kept[item * kLinearTileRows + lane] = choice < p.num_choices ? with_bias(p.down, bias, sum) : sum;
      });
  asm volatile("bar.sync 3, %0;" ::"n"(kFinishing) : "memory");
  for (int output = thread; output - thread < num_tiles * kLinearTileRows; output += kFinishing) {
    const int tile = output / kLinearTileRows, column = column_of(tile);
    const float* of_tile = kept + tile * outputs * kLinearTileRows + lane % kLinearTileRows;
    const bool has_output = tile < num_tiles && column < p.out_of.out;
    float y = 0.0f;
    for (int j = 0; j < p.num_choices; ++j) {
      const float weight = __shfl_sync(0xffffffffu, weight_of_lane, j);
      if (has_output) y = __fmaf_rn(weight, of_tile[j * kLinearTileRows], y);
    }
    if (has_output)
      store_row_output(
          p, column, y, before, [&] { return of_tile[p.num_choices * kLinearTileRows]; }, shared_gate);
    before = before_of(output + kFinishing);
  }
}

/// Bytes of a row's experts, gate, up and down together, from which on they are one kernel: the 16 MB of
/// Qwen3.6-35B-A3B were faster so (bench/results/h200-traced.txt), fewer were not measured.
constexpr int64_t kLeastBytes = int64_t{12} << 20;

/// Launches the experts of one row, all of whose matrices have this layout; false: the kernel does not take
/// them, or they are too little for it.
template <class Layout>
bool launch_row(CUstream_st* stream, const ExpertsLaunch& p) {
  if constexpr (is_common(Layout::kLayout)) {
    constexpr int kWarps = decode_warps(Layout::kUnitBytes);
    const int outputs = outputs_of_row(p);
    if (p.arrived_blocks == nullptr || outputs > kMaxOutputs || !(p.out_of.layout == p.into.layout) ||
        has_gate_alone(p))
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
    if (plan.into.stages == 0) return false;
    auto* kernel = experts_row_kernel<Layout, kWarps>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes);
    launch_kernel(kernel, dim3(blocks), dim3(Block<Layout, kWarps>::kThreads), plan.into.shared_bytes, stream,
                  p, plan);
    return true;
  }
  return false;
}

}  // namespace experts_stream
}  // namespace tensorfold::cuda
