// The products of experts() for few rows an expert. Layout and arithmetic: ops/cuda/linear.h; tasks:
// experts_params.h.
//
// Decoding reads each chosen expert's weights once and does little with them, so what counts is how many
// loads are on their way. A block has 16 outputs of one task (of gate and of up, so that the activation is
// applied here, or else two tiles of 16) and a warp of it one segment: some hundred short streams at once,
// each wholly or mostly in registers before its first use. Each warp brings its own columns of x into shared
// memory, in operand order, while its weights are under way, so that a block meets but once, to add the
// segments up.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "ops/cuda/device/async.cuh"
#include "ops/cuda/device/experts.cuh"
#include "ops/cuda/device/experts_stream.cuh"
#include "ops/cuda/device/launch.cuh"
#include "ops/cuda/device/linear_operand.cuh"
#include "ops/cuda/device/mma.cuh"
#include "ops/cuda/device/register_stream.cuh"
#include "ops/cuda/experts_params.h"
#include "ops/cuda/multiprocessors.h"

namespace tensorfold::cuda {
namespace experts_few {

constexpr int kMaxFewBytes = 200 << 10;

/// Layouts that have kernels of three blocks an SM: integers of four bits, whose conversion takes long.
template <class Layout>
constexpr bool kHasDenseBlocks = Layout::kIsPrescaled&& Layout::kBits == 4;

using namespace register_stream;
__device__ __forceinline__ Segment segment_of_warp(const ExpertProduct& product) {
  return register_stream::segment_of_warp(product.chunks, product.chunks_per_segment);
}

/// Asks for this block's share of its expert's down, which the next kernel reads: into L2, a warp a piece.
__device__ __forceinline__ void prefetch_down(const ExpertsLaunch& p, int expert) {
  const int64_t bytes = p.out_of.tiles * p.out_of.layout.tile_bytes(p.out_of.in);
  const int64_t pieces = int64_t{gridDim.x} * kLinearSegments;
  const int64_t piece = (bytes + 16 * pieces - 1) / (16 * pieces) * 16;
  const int64_t begin = (int64_t{blockIdx.x} * kLinearSegments + threadIdx.x / 32) * piece;
  if (threadIdx.x % 32 == 0 && begin < bytes)
    prefetch_l2(matrix_of(p.down, expert) + begin, static_cast<uint32_t>(min(piece, bytes - begin)));
}

/// Grid: x outputs (a tile of gate and of up, else two tiles), y tasks; a warp a segment. Traffic: the task's
/// weights once, its rows of x once a block, from L2.
template <class Layout, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    experts_few_kernel(const __grid_constant__ ExpertsLaunch p, const ExpertStage stage) {
  extern __shared__ __align__(16) std::byte shared[];
  __shared__ __align__(16) float sums[kLinearSegments][2][128];
  __shared__ int pairs[kLinearSegments][kFewTaskRows];  // A copy a warp, as of the rows of x.
  __shared__ const __nv_bfloat16* rows[kLinearSegments][kFewTaskRows];
  constexpr int kAhead = kChunksAhead<Layout, kBlocks> / 2;
  const bool is_gated = stage == ExpertStage::kGateUp, is_down = stage == ExpertStage::kDown;
  const ExpertProduct& product = product_of(p, stage);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Segment segment = segment_of_warp(product);
  const int operand_bytes = expert_operand_bytes(p.task_rows);
  std::byte* x = shared + segment.begin * 2 * operand_bytes;
  // A row of x has pairs of its own, whatever its experts are.
  const bool brings_x_early = !is_down && p.x_is_early && are_pairs(p);
  if (brings_x_early) {
    stage_segment_x(x, operand_bytes, 1, segment, product.in,
                    [&](int) { return x_of_pair(p, stage, blockIdx.y); });
  }
  if (!is_down) {  // The experts' numbers come from the previous kernel.
    wait_for_previous_kernel();
    launch_dependents();
  }
  const ExpertTask task = task_at(p, blockIdx.y);
  if (task.count == 0) {
    if (is_down) wait_for_previous_kernel();
    return;
  }
  if (lane < task.count) {
    const int pair = pair_at(p, task, lane);
    pairs[warp][lane] = pair;
    rows[warp][lane] = x_of_pair(p, stage, pair);
  }

  // Two streams: gate and up, or two tiles, of which the last block's second may be its first again.
  const int first_tile = is_gated ? blockIdx.x : 2 * blockIdx.x;
  const int tiles[2] = {first_tile, is_gated ? first_tile : min(first_tile + 1, product.tiles - 1)};
  const std::byte* first_matrix = matrix_of(matrices_of(p, stage), task.expert);
  const SegmentChunks<Layout> chunks[2] = {
      {first_matrix, tiles[0], product.chunks, warp},
      {is_gated ? matrix_of(p.up, task.expert) : first_matrix, tiles[1], product.chunks, warp}};
  Chunk<Layout> ring[kAhead][2];
  const auto chunks_of = [&](int t) -> const SegmentChunks<Layout>& { return chunks[t]; };
  load_ring(ring, chunks_of, segment.length, lane);
  if (are_pairs(p) && p.variants.prefetch_down && stage != ExpertStage::kGate) prefetch_down(p, task.expert);
  if (is_down) {
    launch_dependents();
    wait_for_previous_kernel();
  }

  __syncwarp();
  if (!brings_x_early) {
    stage_segment_x(x, operand_bytes, task.count, segment, product.in,
                    [&](int row) { return rows[warp][row]; });
  }

  // Lanes of rows that do not exist read the last row: their columns of the product are not stored.
  const uint32_t b_address = shared_address(x) + min(lane / 4, task.count - 1) * 64 + lane % 4 * 16;
  TileSum<Layout> tile_sums[2];
  multiply_ring(ring, chunks_of, segment.length, lane, b_address, operand_bytes, tile_sums);
  store_sums(sums[warp], tile_sums, lane);
  __syncthreads();

  // A thread an output, of gate and up both. Lane l's float i: row 2 * (l % 4) + i % 2, output
  // l / 4 + 8 * (i / 2).
  const int stream = threadIdx.x / 128, place = threadIdx.x % 128;
  const int row = place / 4 % 4 * 2 + place % 2,
            column = (stream == 0 ? tiles[0] : tiles[1]) * kLinearTileRows + place / 16 + place % 4 / 2 * 8;
  if (row >= task.count || column >= product.out) return;
  if (stream == 1 && tiles[1] == tiles[0]) return;
  const float sum = add_segments<Layout>(&sums[0][stream][place], 256);
  const float up_sum = is_gated ? add_segments<Layout>(&sums[0][1][place], 256) : 0.0f;
  finish_output(p, stage, task.expert, pairs[warp][row], column, sum, up_sum);
}

/// kDown where it has few columns. Grid: x groups of eight tiles, a warp each with all segments, y tasks.
/// Traffic: the task's weights once, its rows of products once a block, from L2.
template <class Layout>
__global__ void __launch_bounds__(kThreads, 2)
    experts_narrow_down_kernel(const __grid_constant__ ExpertsLaunch p) {
  extern __shared__ __align__(16) std::byte shared[];
  __shared__ int pairs[kLinearSegments][kFewTaskRows];
  __shared__ const __nv_bfloat16* rows[kLinearSegments][kFewTaskRows];
  constexpr int kAhead = kChunksAhead<Layout>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, chunks = p.out_of.chunks;
  const ExpertTask task = task_at(p, blockIdx.y);
  if (task.count == 0) {
    wait_for_previous_kernel();
    return;
  }
  // A tile beyond the last one is computed as the last one, and not stored.
  const int tile = blockIdx.x * kLinearSegments + warp, real_tile = min(tile, p.out_of.tiles - 1);
  TileChunks<Layout> weights(matrix_of(p.down, task.expert), real_tile, chunks);
  Chunk<Layout> ring[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (i < chunks) load_next_chunk(ring[i], weights, lane);
  }
  if (lane < task.count) {
    const int pair = pair_at(p, task, lane);
    pairs[warp][lane] = pair;
    rows[warp][lane] = x_of_pair(p, ExpertStage::kDown, pair);
  }
  launch_dependents();
  wait_for_previous_kernel();

  const int operand_bytes = expert_operand_bytes(p.task_rows);
  const Segment brought = segment_of_warp(p.out_of);
  __syncwarp();
  stage_segment_x(shared + brought.begin * 2 * operand_bytes, operand_bytes, task.count, brought, p.out_of.in,
                  [&](int row) { return rows[warp][row]; });
  __syncthreads();

  // The tree of arithmetic.md: `half` becomes s0..s3, `pair` s4 + s5.
  float held[4] = {}, pair[4] = {}, half[4] = {};
  TileSum<Layout> sum;
  int segment = 0, left = p.out_of.chunks_per_segment;
  const auto end_segment = [&] {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float of_two = __fadd_rn(held[i], sum.acc[i]);
      if (segment % 2 == 0) held[i] = sum.acc[i];
      if (segment == 1) half[i] = of_two;
      if (segment == 3) half[i] = __fadd_rn(half[i], of_two);
      if (segment == 5) pair[i] = of_two;
      if (segment == 7) half[i] = __fadd_rn(half[i], __fadd_rn(pair[i], of_two));
    }
    sum = TileSum<Layout>();
    left = p.out_of.chunks_per_segment;
    ++segment;
  };
  // Lanes of rows that do not exist read the last row: their columns of the product are not stored.
  uint32_t b_address = shared_address(shared) + min(lane / 4, task.count - 1) * 64 + lane % 4 * 16;
  for (int chunk = 0; chunk < chunks; chunk += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (chunk + i < chunks) {
        const uint4 b[2] = {load_shared_16(b_address), load_shared_16(b_address + operand_bytes)};
        b_address += 2 * operand_bytes;
        multiply_held_chunk<Layout>(ring[i], chunk + i, b, sum);
        if (chunk + i + kAhead < chunks) load_next_chunk(ring[i], weights, lane);
        if (--left == 0) end_segment();
      }
    }
  }
  while (segment < kLinearSegments) end_segment();

    // Lane l's float i: row 2 * (l % 4) + i % 2, output l / 4 + 8 * (i / 2).
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = lane % 4 * 2 + i % 2, column = tile * kLinearTileRows + lane / 4 + i / 2 * 8;
    if (row < task.count && column < p.out_of.out)
      finish_output(p, ExpertStage::kDown, task.expert, pairs[warp][row], column,
                    __fmul_rn(half[i], Layout::kResultScale), 0.0f);
  }
}

/// Down of one row's choices and of the shared expert, and their sum. Grid: x tiles of 16 outputs; a warp a
/// segment of all choices, one after the other. Traffic: the chosen experts' weights once, the row's products
/// once a block, from L2.
template <class Layout>
__global__ void __launch_bounds__(kThreads, 2)
    experts_one_row_down_kernel(const __grid_constant__ ExpertsLaunch p) {
  extern __shared__ __align__(16) std::byte shared[];
  __shared__ float sums[kLinearSegments][kMaxExpertChoices][kLinearTileRows];
  __shared__ float down[kMaxExpertChoices][kLinearTileRows];
  __shared__ int experts[kMaxExpertChoices];
  __shared__ float weights[kMaxExpertChoices];
  constexpr int kAhead = kChunksAhead<Layout>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, choices = outputs_of_row(p);
  const Segment segment = segment_of_warp(p.out_of);
  const int expert_of_lane = lane < p.num_choices ? load_written(p.expert_ids + lane) : kSharedExpertId;

  int next_choice = 0, next_chunk = 0;  // Of the next load.
  const auto load_next = [&](Chunk<Layout>& slot) {
    if (next_choice == choices) return;
    const int expert = __shfl_sync(0xffffffffu, expert_of_lane, next_choice);
    load_chunk(slot, SegmentChunks<Layout>(matrix_of(p.down, expert), blockIdx.x, p.out_of.chunks, warp),
               next_chunk, lane);
    if (++next_chunk == segment.length) next_chunk = 0, ++next_choice;
  };
  Chunk<Layout> ring[kAhead];
  if (segment.length > 0) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) load_next(ring[i]);
  }
  // What the end needs, on its way now: written by kernels that the previous one has waited for.
  const int column = blockIdx.x * kLinearTileRows + threadIdx.x;
  const bool has_output = threadIdx.x < kLinearTileRows && column < p.out_of.out;
  const float before =
      has_output && p.accumulate ? load_written(static_cast<const float*>(p.out) + column) : 0.0f;
  const float shared_gate = has_output && p.shared_gate != nullptr ? load_written(p.shared_gate) : 0.0f;
  if (threadIdx.x < p.num_choices) {
    experts[lane] = expert_of_lane;
    weights[lane] = load_written(p.expert_weights + lane);
  }
  launch_dependents();
  wait_for_previous_kernel();

  const int operand_bytes = expert_operand_bytes(choices);
  std::byte* x = shared + segment.begin * 2 * operand_bytes;
  stage_segment_x(x, operand_bytes, choices, segment, p.out_of.in,
                  [&](int choice) { return x_of_pair(p, ExpertStage::kDown, choice); });
  // All columns of the product are the same: a choice's row is every lane's.
  uint32_t b_address = shared_address(x) + lane % 4 * 16;
  const uint32_t segment_bytes = segment.length * 2 * operand_bytes;
  const auto keep = [&](int choice, const TileSum<Layout>& sum) {
    if (lane % 4 == 0)
      sums[warp][choice][lane / 4] = sum.acc[0], sums[warp][choice][lane / 4 + 8] = sum.acc[2];
  };
  TileSum<Layout> sum;
  int choice = 0, chunk = 0;
  for (int left = choices * segment.length; left > 0; left -= kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (i < left) {
        const uint4 b[2] = {load_shared_16(b_address), load_shared_16(b_address + operand_bytes)};
        b_address += 2 * operand_bytes;
        multiply_held_chunk<Layout>(ring[i], chunk, b, sum);
        load_next(ring[i]);
        if (++chunk == segment.length) {
          keep(choice, sum);
          sum = TileSum<Layout>();
          b_address += 64 - segment_bytes;
          chunk = 0, ++choice;
        }
      }
    }
  }
  for (; choice < choices; ++choice) keep(choice, sum);  // A segment without columns.
  __syncthreads();

  for (int i = threadIdx.x; i < choices * kLinearTileRows; i += kThreads) {
    const int j = i / kLinearTileRows, output = i % kLinearTileRows;
    const int its_column = blockIdx.x * kLinearTileRows + output;
    if (its_column >= p.out_of.out) continue;
    const float of_choice = add_segments<Layout>(&sums[0][j][output], kMaxExpertChoices * kLinearTileRows);
    down[j][output] = j < p.num_choices ? with_bias(p.down, experts[j], its_column, of_choice) : of_choice;
  }
  __syncthreads();
  if (!has_output) return;
  float y = 0.0f;
  for (int j = 0; j < p.num_choices; ++j) y = __fmaf_rn(weights[j], down[j][threadIdx.x], y);
  store_row_output(
      p, column, y, before, [&] { return down[p.num_choices][threadIdx.x]; }, shared_gate);
}

/// One row's experts in one launch; false: stage by stage.
template <class Layout>
bool launch_row(CUstream_st* stream, const ExpertsLaunch& p) {
  return p.kind == ExpertTasks::kOneRow && p.variants.streams != ExpertStreams::kNever &&
         experts_stream::launch_row<Layout>(stream, p);
}

/// One stage of a block of rows; one row's kDown with the weighted sum.
template <class Layout>
void launch_stage(CUstream_st* stream, const ExpertsLaunch& p, ExpertStage stage) {
  const ExpertProduct& product = product_of(p, stage);
  if (stage == ExpertStage::kDown && p.kind == ExpertTasks::kOneRow) {
    auto* kernel = experts_one_row_down_kernel<Layout>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxFewBytes);
    const auto shared_bytes = static_cast<size_t>(expert_operand_bytes(product, outputs_of_row(p)));
    return launch_kernel(kernel, dim3(product.tiles), dim3(kThreads), shared_bytes, stream, p);
  }
  const int num_tasks = p.kind == ExpertTasks::kOneRow ? outputs_of_row(p)
                                                       : max_expert_tasks(int64_t{p.num_rows} * p.num_choices,
                                                                          p.num_experts, p.task_rows);
  const auto shared_bytes = static_cast<size_t>(expert_operand_bytes(product, p.task_rows));
  if (stage == ExpertStage::kDown && p.variants.narrow_down && product.chunks <= kNarrowChunks) {
    auto* kernel = experts_narrow_down_kernel<Layout>;
    const dim3 grid((product.tiles + kLinearSegments - 1) / kLinearSegments, num_tasks);
    return launch_kernel(kernel, grid, dim3(kThreads), shared_bytes, stream, p);
  }
  const int blocks = stage == ExpertStage::kGateUp ? product.tiles : (product.tiles + 1) / 2;
  auto* kernel = experts_few_kernel<Layout, 2>;
  if constexpr (kHasDenseBlocks<Layout>) {
    // Where two blocks an SM would leave a few over that three take at once.
    const int all = blocks * num_tasks, multiprocessors = num_multiprocessors();
    const bool needs_three = all > 2 * multiprocessors && all <= 3 * multiprocessors;
    if (p.variants.dense_blocks || needs_three || Layout::kFormat == LinearFormat::kMxfp4)
      kernel = experts_few_kernel<Layout, 3>;
  }
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxFewBytes);
  launch_kernel(kernel, dim3(blocks, num_tasks), dim3(kThreads), shared_bytes, stream, p, stage);
}

/// For affine layouts with scales of one type: each in a file of its own, since they take long to compile.
void launch_affine_bf16(CUstream_st* stream, const ExpertsLaunch& p, ExpertStage stage);
void launch_affine_f16(CUstream_st* stream, const ExpertsLaunch& p, ExpertStage stage);
void launch_affine_f32(CUstream_st* stream, const ExpertsLaunch& p, ExpertStage stage);
/// launch_row() where scales are bf16.
bool launch_row_affine_bf16(CUstream_st* stream, const ExpertsLaunch& p);

}  // namespace experts_few
}  // namespace tensorfold::cuda
