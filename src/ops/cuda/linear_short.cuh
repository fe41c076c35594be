// linear() on CUDA for up to 8 rows where a matrix is small. Layout and arithmetic: ops/cuda/linear.h.
//
// Such a product is over before a long stream has begun, so what counts is what happens after the previous
// kernel has ended. Here all weights are in registers, or on their way there, before: blocks are small enough
// to be resident beside those of other kernels, and a block has but one or two tiles, a warp a segment. After
// the wait each warp brings its own columns of x to shared memory, multiplies, and the block meets once.
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
  constexpr int kAhead = kChunksAhead<Layout> / kTiles;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  launch_dependents();
  const Segment segment = segment_of_warp(p.chunks, p.chunks_per_segment);
  const auto tile_at = [&](int i) { return min(kTiles * static_cast<int>(blockIdx.x) + i, p.num_tiles - 1); };
  const auto chunks_at = [&](int i) {
    const LinearDeviceCall& call = call_of_tile(p, tile_at(i));
    return SegmentChunks<Layout>(call.weights, tile_at(i) - call.first_tile, p.chunks, warp);
  };
  const SegmentChunks<Layout> chunks[2] = {chunks_at(0), chunks_at(kTiles - 1)};
  Chunk<Layout> ring[kAhead][kTiles];
  const auto chunks_of = [&](int t) -> const SegmentChunks<Layout>& { return chunks[t]; };
  load_ring(ring, chunks_of, segment.length, lane);
  // A thread's output at the end: lane l's float i of a tile is row 2 * (l % 4) + i % 2, output l / 4 + 8 *
  // (i / 2).
  const int tile_of_thread = threadIdx.x / 128, place = threadIdx.x % 128;
  const int tile = tile_at(min(tile_of_thread, kTiles - 1));
  const LinearDeviceCall& call = call_of_tile(p, tile);
  const int row = place / 4 % 4 * 2 + place % 2;
  const int column = (tile - call.first_tile) * kLinearTileRows + place / 16 + place % 4 / 2 * 8;
  const bool is_again = tile_of_thread >= kTiles || (tile_of_thread > 0 && tile == tile_at(0));
  const bool has_output = !is_again && row < p.num_rows && column < call.out_size;
  wait_for_previous_kernel();

  const float before = has_output && call.accumulate
                           ? static_cast<const float*>(call.out)[row * call.out_stride + column]
                           : 0.0f;
  std::byte* x = shared + segment.begin * 2 * operand_bytes;
  stage_segment_x(x, operand_bytes, p.num_rows, segment, p.in,
                  [&](int r) { return reinterpret_cast<const __nv_bfloat16*>(p.x) + r * p.x_stride; });
  // Lanes of rows that do not exist read the last row: their columns of the product are not stored.
  const uint32_t b_address = shared_address(x) + min(lane / 4, p.num_rows - 1) * 64 + lane % 4 * 16;
  TileSum<Layout> tile_sums[kTiles];
  multiply_ring(ring, chunks_of, segment.length, lane, b_address, operand_bytes, tile_sums);
  store_sums(sums[warp], tile_sums, lane);
  __syncthreads();
  if (has_output)
    store_output(call, row, column, add_segments<Layout>(&sums[0][tile_of_thread][place], kTiles * 128),
                 before);
}

template <class Layout>
void launch_short(CUstream_st* stream, const LinearLaunch& p) {
  const int operand_bytes = x_pair_bytes(p.num_rows);
  const auto launch = [&](auto* kernel, int tiles) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxShortOperandBytes);
    launch_kernel(kernel, dim3((p.num_tiles + tiles - 1) / tiles), dim3(kThreads),
                  static_cast<size_t>(p.chunks) * 2 * operand_bytes, stream, p, operand_bytes);
  };
  if (short_block_tiles(p.num_tiles) == 1) return launch(linear_short_kernel<Layout, 1>, 1);
  launch(linear_short_kernel<Layout, 2>, 2);
}

}  // namespace
}  // namespace tensorfold::cuda
