// linear() on CUDA for up to 8 rows where a matrix is small. Layout and arithmetic: ops/cuda/linear.h.
//
// Such a product is over before a long stream has begun, so what counts is what happens after the previous
// kernel has ended. Here all weights are in registers, or on their way there, before: blocks are small enough
// to be resident beside those of other kernels, and a block has but one to three tiles, a warp a segment.
// After the wait each warp brings its own columns of x to shared memory, multiplies, and the block meets
// once.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "ops/cuda/device/async.cuh"
#include "ops/cuda/device/launch.cuh"
#include "ops/cuda/device/linear_operand.cuh"
#include "ops/cuda/device/register_stream.cuh"
#include "ops/cuda/linear_params.h"

namespace tensorfold::cuda {
namespace {  // Each file that includes this compiles its own kernels.

using namespace register_stream;

/// Grid: x groups of kTiles tiles. Traffic: every weight once, x once a block, from L2.
template <class Layout, int kTiles>
__global__ void __launch_bounds__(kThreads, 2)
    linear_short_kernel(const __grid_constant__ LinearLaunch p, const int operand_bytes) {
  extern __shared__ __align__(16) std::byte shared[];
  __shared__ __align__(16) float sums[kLinearSegments][kTiles][128];
  constexpr int kAhead = short_chunks_ahead(Layout::kLayout, kTiles);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  launch_dependents();
  const Segment segment = segment_of_warp(p.chunks, p.chunks_per_segment);
  const auto tile_at = [&](int i) { return min(kTiles * static_cast<int>(blockIdx.x) + i, p.num_tiles - 1); };
  const auto chunks_at = [&](int i) {
    const LinearDeviceCall& call = call_of_tile(p, tile_at(i));
    return SegmentChunks<Layout>(call.weights, tile_at(i) - call.first_tile, p.chunks, warp);
  };
  SegmentChunks<Layout> chunks[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) chunks[t] = chunks_at(t);
  Chunk<Layout> ring[kAhead][kTiles];
  const auto chunks_of = [&](int t) -> const SegmentChunks<Layout>& { return chunks[t]; };
  load_ring(ring, chunks_of, segment.length, lane);
  // A thread's outputs at the end, one of every other tile: lane l's float i of a tile is row 2 * (l % 4) + i
  // % 2, output l / 4 + 8 * (i / 2).
  constexpr int kOutputs = (kTiles + 1) / 2;
  const int first_tile_of_thread = threadIdx.x / 128, place = threadIdx.x % 128;
  const int row = place / 4 % 4 * 2 + place % 2;
  // visit(i, t, call, column) for output i, of the block's tile t.
  const auto for_each_output = [&](const auto& visit) {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
      const int t = first_tile_of_thread + 2 * i, tile = kTiles * static_cast<int>(blockIdx.x) + t;
      if (t >= kTiles || tile >= p.num_tiles || row >= p.num_rows) continue;
      const LinearDeviceCall& call = call_of_tile(p, tile);
      const int column = (tile - call.first_tile) * kLinearTileRows + place / 16 + place % 4 / 2 * 8;
      if (column < call.out_size) visit(i, t, call, column);
    }
  };
  float bias[kOutputs], before[kOutputs] = {};
  for_each_output(
      [&](int i, int, const LinearDeviceCall& call, int column) { bias[i] = bias_of(call, column); });
  wait_for_previous_kernel();

  for_each_output([&](int i, int, const LinearDeviceCall& call, int column) {
    if (call.accumulate) before[i] = static_cast<const float*>(call.out)[row * call.out_stride + column];
  });
  std::byte* x = shared + segment.begin * 2 * operand_bytes;
  stage_segment_x(x, operand_bytes, p.num_rows, segment, p.in,
                  [&](int r) { return reinterpret_cast<const __nv_bfloat16*>(p.x) + r * p.x_stride; });
  // Lanes of rows that do not exist read the last row: their columns of the product are not stored.
  const uint32_t b_address = shared_address(x) + min(lane / 4, p.num_rows - 1) * 64 + lane % 4 * 16;
  TileSum<Layout> tile_sums[kTiles];
  multiply_ring(ring, chunks_of, segment.length, lane, b_address, operand_bytes, tile_sums);
  store_sums(sums[warp], tile_sums, lane);
  __syncthreads();
  for_each_output([&](int i, int t, const LinearDeviceCall& call, int column) {
    store_output(call, row, column, add_segments<Layout>(&sums[0][t][place], kTiles * 128), bias[i],
                 before[i]);
  });
}

template <class Layout>
void launch_short(CUstream_st* stream, const LinearLaunch& p) {
  const int operand_bytes = x_pair_bytes(p.num_rows);
  const auto launch = [&](auto* kernel, int tiles) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxShortOperandBytes);
    launch_kernel(kernel, dim3((p.num_tiles + tiles - 1) / tiles), dim3(kThreads),
                  static_cast<size_t>(p.chunks) * 2 * operand_bytes, stream, p, operand_bytes);
  };
  switch (short_block_tiles(p.num_tiles)) {
    case 1:
      return launch(linear_short_kernel<Layout, 1>, 1);
    case 2:
      return launch(linear_short_kernel<Layout, 2>, 2);
    default:
      return launch(linear_short_kernel<Layout, 3>, 3);
  }
}

}  // namespace
}  // namespace tensorfold::cuda
