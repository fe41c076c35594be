// Products whose weights go from memory to registers: a block has up to three tiles, a warp of it a segment,
// with many chunks on their way at once. What linear_short.cuh and device/experts_few.cuh share.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "ops/cuda/device/launch.cuh"
#include "ops/cuda/device/linear_operand.cuh"
#include "ops/cuda/device/mma.cuh"
#include "ops/cuda/linear_params.h"

namespace tensorfold::cuda {
namespace register_stream {

constexpr int kThreads = 32 * kLinearSegments;  ///< A warp a segment.

/// Chunks that a warp has on their way, of kBlocks blocks an SM.
template <class Layout, int kBlocks = 2>
constexpr int kChunksAhead = [] {
  static_assert(sizeof(Chunk<Layout>) == held_chunk_bytes(Layout::kLayout));
  return held_chunks(Layout::kLayout, kBlocks);
}();

/// A warp's segment of a product, in chunks.
struct Segment {
  int begin;
  int length;
};
__device__ __forceinline__ Segment segment_of_warp(int chunks, int chunks_per_segment) {
  const int begin = min(static_cast<int>(threadIdx.x / 32) * chunks_per_segment, chunks);
  return {begin, min(begin + chunks_per_segment, chunks) - begin};
}

/// Brings a segment's columns of `rows` rows to shared memory in operand order: per 32 columns [row][4
/// lanes][two steps x (low pair, high pair)], zeros from column `in` on. A lane moves pieces of 8 columns of
/// a row, half a step, a few loads before their stores. Every lane of the warp calls it.
template <class RowOf>
__device__ __forceinline__ void stage_segment_x(std::byte* to, int operand_bytes, int rows,
                                                const Segment& segment, int in, const RowOf& row_of) {
  constexpr int kBatch = 4;
  const int pieces = segment.length * 8, total = rows * pieces;
  if (total == 0) return;
  // i / pieces is the upper half of i times this, for i * pieces below 2^32.
  const uint32_t reciprocal = 0xffffffffu / static_cast<uint32_t>(pieces) + 1;
  for (int first = threadIdx.x % 32; first < total; first += 32 * kBatch) {
    uint4 v[kBatch];
    std::byte* at[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = min(first + 32 * j, total - 1);  // The last piece again, where there are no more.
      const int row = static_cast<int>(__umulhi(static_cast<uint32_t>(i), reciprocal)),
                piece = i - row * pieces;
      const int column = segment.begin * kLinearChunkColumns + piece * 8;
      v[j] = load_written(reinterpret_cast<const uint4*>(row_of(row) + (column < in ? column : 0)));
      if (column >= in) v[j] = {0, 0, 0, 0};
      at[j] = to + piece / 4 * operand_bytes + row * 64 + piece % 4 * 4;
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      auto* words = reinterpret_cast<uint32_t*>(at[j]);
      words[0] = v[j].x, words[4] = v[j].y, words[8] = v[j].z, words[12] = v[j].w;
    }
  }
  __syncwarp();
}

/// sum += chunk `index` of a segment's weights times its 64 columns of x, in operand order.
template <class Layout>
__device__ __forceinline__ void multiply_held_chunk(const Chunk<Layout>& weights, int index,
                                                    const uint4 (&b)[2], TileSum<Layout>& sum) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    uint32_t a[Layout::kParts][4];
#pragma unroll
    for (int part = 0; part < Layout::kParts; ++part) weights.operand(step, part, a[part]);
    const uint4& columns = b[step / 2];
    sum.add(a, step % 2 == 0 ? columns.x : columns.z, step % 2 == 0 ? columns.y : columns.w);
    if (Layout::ends_group(index, step)) sum.end_group(weights, Layout::group_of_step(step));
  }
}

/// Asks for the first kAhead chunks of a segment, of each of kTiles tiles; chunks_of(t): tile t's.
template <class Layout, int kAhead, int kTiles, class ChunksOf>
__device__ __forceinline__ void load_ring(Chunk<Layout> (&ring)[kAhead][kTiles], const ChunksOf& chunks_of,
                                          int length, int lane) {
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (i < length) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) load_chunk(ring[i][t], chunks_of(t), i, lane);
    }
  }
}

/// sums += the segment's weights times x, which lies at b_address for this lane; the ring is refilled as long
/// as there are chunks.
template <class Layout, int kAhead, int kTiles, class ChunksOf>
__device__ __forceinline__ void multiply_ring(Chunk<Layout> (&ring)[kAhead][kTiles],
                                              const ChunksOf& chunks_of, int length, int lane,
                                              uint32_t b_address, int operand_bytes,
                                              TileSum<Layout> (&sums)[kTiles]) {
  for (int chunk = 0; chunk < length; chunk += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (chunk + i < length) {
        const uint4 b[2] = {load_shared_16(b_address), load_shared_16(b_address + operand_bytes)};
        b_address += 2 * operand_bytes;
#pragma unroll
        for (int t = 0; t < kTiles; ++t) multiply_held_chunk<Layout>(ring[i][t], chunk + i, b, sums[t]);
        const int next = chunk + i + kAhead;
        if (next < length) {
#pragma unroll
          for (int t = 0; t < kTiles; ++t) load_chunk(ring[i][t], chunks_of(t), next, lane);
        }
      }
    }
  }
}

/// A warp's sums to shared memory: a lane's four floats side by side.
template <class Layout, int kTiles>
__device__ __forceinline__ void store_sums(float (&to)[kTiles][128], const TileSum<Layout> (&sums)[kTiles],
                                           int lane) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const float(&acc)[4] = sums[t].acc;
    *reinterpret_cast<float4*>(&to[t][lane * 4]) = {acc[0], acc[1], acc[2], acc[3]};
  }
}

/// The tree of arithmetic.md over eight floats that are `distance` apart.
template <class Layout>
__device__ __forceinline__ float add_segments(const float* sums, int distance) {
  float pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = __fadd_rn(sums[2 * i * distance], sums[(2 * i + 1) * distance]);
  const float sum = __fadd_rn(__fadd_rn(pairs[0], pairs[1]), __fadd_rn(pairs[2], pairs[3]));
  return __fmul_rn(sum, Layout::kResultScale);
}

}  // namespace register_stream
}  // namespace tensorfold::cuda
