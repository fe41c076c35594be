// linear() on CUDA: the decode kernel (a warp per segment). Layout and arithmetic: ops/cuda/linear.h.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "ops/cuda/device/linear_operand.cuh"
#include "ops/cuda/device/mma.cuh"
#include "ops/cuda/linear_params.h"

namespace tensorfold::cuda {
namespace {

/// 64-column chunks that a warp keeps in flight: 4 x 512 bytes; 16 warps an SM then cover about 32 KB, the product of
/// an H200's bandwidth per SM (36 GB/s) and its memory latency (0.8 us).
constexpr int kChunksInFlight = 4;

/// Grid: one block per tile of 16 outputs of all calls, blockIdx.y per kRowTiles * 8 rows. Warp s sums segment s; the
/// eight sums meet in shared memory and are added as the tree. Traffic: every weight once per blockIdx.y, x from L2.
template <class Chunk, int kRowTiles>
__global__ void __launch_bounds__(256) linear_decode_kernel(const __grid_constant__ LinearLaunch p) {
  __shared__ float sums[kLinearSegments][kRowTiles * 8][kLinearTileRows + 1];
  const int lane = threadIdx.x % 32, segment = threadIdx.x / 32;
  const LinearDeviceCall& call = call_of_tile(p, blockIdx.x);
  const int64_t tile = blockIdx.x - call.first_tile;
  const int first_row = blockIdx.y * kRowTiles * 8;

  const int begin = min(segment * p.chunks_per_segment, p.chunks);
  const int end = min(begin + p.chunks_per_segment, p.chunks);

  // B operand: lane l holds row l/4 of x, columns 2*(l%4) + {0, 1} and {8, 9} of the step.
  const uint32_t* x[kRowTiles];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    const int row = first_row + r * 8 + lane / 4;
    x[r] = row < p.num_rows ? reinterpret_cast<const uint32_t*>(p.x + row * p.x_stride * 2) + lane % 4 : nullptr;
  }

  Chunk chunk[kChunksInFlight];
#pragma unroll
  for (int i = 0; i < kChunksInFlight; ++i) {
    if (begin + i < end) chunk[i].load(call, tile, begin + i, p.chunks, lane);
  }
  float acc[kRowTiles][4] = {};
  for (int base = begin; base < end; base += kChunksInFlight) {
#pragma unroll
    for (int i = 0; i < kChunksInFlight; ++i) {
      if (base + i >= end) break;
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        uint32_t a[4];
        chunk[i].operand(step, a);
        const int word = (base + i) * 32 + step * 8;
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          const uint32_t b0 = x[r] != nullptr ? __ldg(x[r] + word) : 0u;
          const uint32_t b1 = x[r] != nullptr ? __ldg(x[r] + word + 4) : 0u;
          mma_m16n8k16(acc[r], a, b0, b1);
        }
      }
      if (base + i + kChunksInFlight < end) chunk[i].load(call, tile, base + i + kChunksInFlight, p.chunks, lane);
    }
  }
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[segment][r * 8 + 2 * (lane % 4) + i % 2][lane / 4 + i / 2 * 8] = acc[r][i];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kRowTiles * 8 * kLinearTileRows; i += 256) {
    const int n = i / kLinearTileRows, m = i % kLinearTileRows;
    const int row = first_row + n, column = static_cast<int>(tile) * kLinearTileRows + m;
    if (row >= p.num_rows || column >= call.out_size) continue;
    const float low = __fadd_rn(__fadd_rn(sums[0][n][m], sums[1][n][m]), __fadd_rn(sums[2][n][m], sums[3][n][m]));
    const float high = __fadd_rn(__fadd_rn(sums[4][n][m], sums[5][n][m]), __fadd_rn(sums[6][n][m], sums[7][n][m]));
    store_output(call, row, column, __fadd_rn(low, high));
  }
}

template <class Chunk>
void launch(CUstream_st* stream, const LinearLaunch& p) {
  if (p.num_rows <= 8) {
    linear_decode_kernel<Chunk, 1><<<dim3(p.num_tiles, 1), 256, 0, stream>>>(p);
  } else {
    linear_decode_kernel<Chunk, 2><<<dim3(p.num_tiles, (p.num_rows + 15) / 16), 256, 0, stream>>>(p);
  }
}

}  // namespace

void launch_linear_decode(CUstream_st* stream, LinearLayout layout, const LinearLaunch& p) {
  switch (layout) {
    case LinearLayout::kBf16: return launch<Bf16Chunk>(stream, p);
    case LinearLayout::kAffine4G32: return launch<Affine4Chunk<32>>(stream, p);
    case LinearLayout::kAffine4G64: return launch<Affine4Chunk<64>>(stream, p);
    case LinearLayout::kAffine4G128: return launch<Affine4Chunk<128>>(stream, p);
  }
}

}  // namespace tensorfold::cuda
