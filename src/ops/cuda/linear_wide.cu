// linear() on CUDA for many rows: tiles of 128 outputs by 128 rows of x, wgmma with the weights in registers.
//
// A block is one producing warp, which lets the tensor copy engine fill a ring of x tiles, and two warpgroups of 64
// outputs each, which read their packed weights straight from memory (each byte once per 128 rows), turn them into A
// operands and multiply. A step is the same 16 columns as in the decode kernel, the segments and their tree are the
// same, so the bits are too.
//
// The tree needs more tiles than registers hold (64 fp32 a thread each): the running segment and one held partial are
// in registers, s0+s1 -> (s0..s3) and s4+s5 are parked in shared memory, where each thread rereads its own words.
// Shared memory: ring 4 x 16 KB, parked 2 warpgroups x 2 x 32 KB = 192 KB of 227.
#include <cuda.h>
#include <cuda_runtime.h>

#include "ops/cuda/device/linear_operand.cuh"
#include "ops/cuda/device/wgmma.cuh"
#include "ops/cuda/linear_params.h"

namespace tensorfold::cuda {
namespace {

constexpr int kTileN = 128;            ///< Rows of x.
constexpr int kTileM = 128;            ///< Outputs.
constexpr int kStages = 4;
constexpr int kStageBytes = kTileN * kLinearChunkColumns * 2;
constexpr int kConsumers = 256;        ///< Threads of the two multiplying warpgroups; the producer adds one more.
constexpr int kThreads = kConsumers + 128;
constexpr int kAccumulators = 64 * kTileN / 128;
constexpr int kParkedBytes = 2 * kConsumers * kAccumulators * 4;
constexpr int kSharedBytes = kStages * kStageBytes + kParkedBytes + 2 * kStages * 8 + 1024;
/// Tiles of rows taken together before the next outputs: 12 x 128 rows by 11 x 128 outputs fill 132 SMs, near square,
/// so that a wave's x and weights are each read from memory about once and meet in L2.
constexpr int kRasterRows = 12;

struct Shared {
  std::byte* ring;
  float* parked;  ///< [2 slots][kAccumulators][kConsumers]: consecutive threads, consecutive words.
  uint64_t* full;
  uint64_t* empty;

  __device__ explicit Shared(std::byte* base) {
    ring = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(base) + 1023) & ~uintptr_t{1023});
    parked = reinterpret_cast<float*>(ring + kStages * kStageBytes);
    full = reinterpret_cast<uint64_t*>(ring + kStages * kStageBytes + kParkedBytes);
    empty = full + kStages;
  }
};

/// blockIdx.x to (tile of outputs, tile of rows): bands of kRasterRows row tiles, inside a band outputs run slowest.
__device__ __forceinline__ int2 tile_of_block(int tiles_m, int tiles_n) {
  const int band = blockIdx.x / (kRasterRows * tiles_m);
  const int rows_in_band = min(kRasterRows, tiles_n - band * kRasterRows);
  const int in_band = blockIdx.x - band * kRasterRows * tiles_m;
  return {in_band / rows_in_band, band * kRasterRows + in_band % rows_in_band};
}

__device__ __forceinline__ void produce(const Shared& shared, const CUtensorMap* x_map, int chunks, int first_row) {
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int stage = chunk % kStages, round = chunk / kStages;
    if (round > 0) mbarrier_wait(&shared.empty[stage], (round - 1) & 1);
    mbarrier_expect_bytes(&shared.full[stage], kStageBytes);
    copy_tile(shared.ring + stage * kStageBytes, x_map, &shared.full[stage], chunk * kLinearChunkColumns, first_row);
  }
}

/// Adds a finished segment into the tree. On return after the last one, `held` is the total.
struct SegmentTree {
  float held[kAccumulators];
  float* parked;

  __device__ __forceinline__ float& slot(int which, int i) {
    return parked[(which * kAccumulators + i) * kConsumers];
  }
  __device__ __forceinline__ void add(int segment, const float (&sum)[kAccumulators]) {
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) {
      if (segment % 2 == 0) {
        held[i] = sum[i];
        continue;
      }
      float pair = __fadd_rn(held[i], sum[i]);
      if (segment == 5) slot(1, i) = pair;
      if (segment == 7) pair = __fadd_rn(slot(1, i), pair);
      if (segment == 3 || segment == 7) pair = __fadd_rn(slot(0, i), pair);
      if (segment <= 3) slot(0, i) = pair;
      held[i] = pair;
    }
  }
};

/// One chunk: its four A operands, then four products in flight.
template <class Chunk>
__device__ __forceinline__ void multiply_chunk(const Chunk& weights, uint32_t magic, uint32_t (&a)[4][4], float (&acc)[kAccumulators],
                                               const std::byte* x_tile, bool starts_segment) {
#pragma unroll
  for (int step = 0; step < 4; ++step) weights.operand(step, magic, a[step]);
  const uint64_t b = swizzled_descriptor(x_tile);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    // 16 columns are 32 bytes further in every 128-byte row: 2 in the descriptor's 16-byte units.
    wgmma_m64n128k16(acc, a[step], b + 2 * step, !(starts_segment && step == 0));
  }
  wgmma_commit();
}

/// The products read their A registers until they are waited for, which the compiler does not see: this use after the
/// wait keeps it from giving the registers to something else before.
__device__ __forceinline__ void hold_registers(uint32_t (&a)[4][4]) {
#pragma unroll
  for (int step = 0; step < 4; ++step)
    asm volatile("" : "+r"(a[step][0]), "+r"(a[step][1]), "+r"(a[step][2]), "+r"(a[step][3]));
}

/// A warp's packed weights on their way: a ring of kAhead chunks, each segment padded to whole turns.
template <class Chunk, int kAhead>
struct WeightStream {
  Chunk ring[kAhead];
  const LinearLaunch& p;
  const LinearDeviceCall& call;
  int64_t tile;
  int lane, padded, segment = 0, at = 0;  ///< Of the next load: its segment, and its place in it.

  __device__ __forceinline__ WeightStream(const LinearLaunch& launch, const LinearDeviceCall& matrix, int64_t tile_idx,
                                          int lane_idx)
      : p(launch), call(matrix), tile(tile_idx), lane(lane_idx),
        padded((launch.chunks_per_segment + kAhead - 1) / kAhead * kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) load_next(ring[i]);
  }
  __device__ __forceinline__ void load_next(Chunk& slot) {
    const int chunk = segment * p.chunks_per_segment + at;
    if (at < p.chunks_per_segment && chunk < p.chunks) slot.load(call, tile, chunk, p.chunks, lane);
    if (++at == padded) at = 0, ++segment;
  }
};

/// kAhead: chunks of weights in flight per warp, an even number.
template <class Chunk, int kAhead>
__device__ __forceinline__ void consume(const LinearLaunch& p, const Shared& shared, const LinearDeviceCall& call,
                                        int64_t tile, int first_row) {
  const int thread = threadIdx.x % kConsumers, lane = thread % 32;
  // A matrix's last block may have fewer than 8 tiles of 16; the surplus warps repeat the last one and store nothing.
  const int tiles = (call.out_size + kLinearTileRows - 1) / kLinearTileRows;
  const int64_t my_tile = min(tile + thread / 32, static_cast<int64_t>(tiles - 1));
  const bool stores = tile + thread / 32 < tiles;

  float acc[kAccumulators];
  uint32_t a[2][4][4] = {};
  const uint32_t magic = opaque(kMagic128);
  SegmentTree tree;
  tree.parked = shared.parked + thread;
  WeightStream<Chunk, kAhead> stream(p, call, my_tile, lane);
  // Each segment is padded to whole turns of the ring, which is indexed by constants; padding is skipped.
  int consumed = 0;
  for (int segment = 0; segment < kLinearSegments; ++segment) {
    const int begin = min(p.chunks, segment * p.chunks_per_segment);
    const int end = min(p.chunks, begin + p.chunks_per_segment);
    if (begin == end) {  // An empty segment is +0.
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) acc[i] = 0.0f;
    }
    for (int base = begin; base < end; base += kAhead) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (base + i < end) {
          const int stage = consumed % kStages;
          mbarrier_wait(&shared.full[stage], (consumed / kStages) & 1);
          multiply_chunk(stream.ring[i], magic, a[i % 2], acc, shared.ring + stage * kStageBytes, base + i == begin);
          wgmma_wait<1>();
          hold_registers(a[(i + 1) % 2]);
          if (consumed > 0 && lane == 0) mbarrier_arrive(&shared.empty[(consumed - 1) % kStages]);
          ++consumed;
        }
        stream.load_next(stream.ring[i]);
      }
    }
    wgmma_wait<0>();
    hold_registers(a[0]);
    hold_registers(a[1]);
    tree.add(segment, acc);
  }
  if (!stores) return;
#pragma unroll
  for (int i = 0; i < kAccumulators; ++i) {
    const int row = first_row + i / 4 * 8 + 2 * (lane % 4) + i % 2;
    const int column = static_cast<int>(my_tile) * kLinearTileRows + lane / 4 + i / 2 % 2 * 8;
    if (row < p.num_rows && column < call.out_size) store_output(call, row, column, tree.held[i]);
  }
}

template <class Chunk, int kAhead>
__global__ void __launch_bounds__(kThreads, 1)
    linear_wide_kernel(const __grid_constant__ LinearLaunch p, const __grid_constant__ CUtensorMap x_map, int tiles_m,
                       int tiles_n) {
  extern __shared__ std::byte shared_bytes[];
  const Shared shared(shared_bytes);
  const int2 tile = tile_of_block(tiles_m, tiles_n);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(&shared.full[i], 1);
      mbarrier_init(&shared.empty[i], kConsumers / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == kConsumers) produce(shared, &x_map, p.chunks, tile.y * kTileN);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    // Block tiles of 128 outputs never span two matrices: each matrix starts its own.
    int call = 0, first = 0;
    for (; call + 1 < p.num_calls; ++call) {
      const int blocks = (p.calls[call].out_size + kTileM - 1) / kTileM;
      if (tile.x < first + blocks) break;
      first += blocks;
    }
    consume<Chunk, kAhead>(p, shared, p.calls[call], int64_t{tile.x - first} * (kTileM / kLinearTileRows), tile.y * kTileN);
  }
}

/// x as the copy engine sees it: boxes of 64 columns by 128 rows, swizzled; outside the matrix it reads zeros.
CUtensorMap make_x_map(const LinearLaunch& p) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  CUtensorMap map;
  const cuuint64_t dims[2] = {static_cast<cuuint64_t>(p.chunks) * kLinearChunkColumns,
                              static_cast<cuuint64_t>(p.num_rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(p.x_stride) * 2};
  const cuuint32_t box[2] = {kLinearChunkColumns, kTileN}, element_strides[2] = {1, 1};
  encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<std::byte*>(p.x), dims, strides, box, element_strides,
         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return map;
}

template <class Chunk, int kAhead>
void launch(CUstream_st* stream, const LinearLaunch& p) {
  int tiles_m = 0;
  for (int i = 0; i < p.num_calls; ++i) tiles_m += (p.calls[i].out_size + kTileM - 1) / kTileM;
  const int tiles_n = (p.num_rows + kTileN - 1) / kTileN;
  auto* kernel = linear_wide_kernel<Chunk, kAhead>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  kernel<<<tiles_m * tiles_n, kThreads, kSharedBytes, stream>>>(p, make_x_map(p), tiles_m, tiles_n);
}

}  // namespace

void launch_linear_wide(CUstream_st* stream, LinearLayout layout, const LinearLaunch& p) {
  switch (layout) {
    case LinearLayout::kBf16: return launch<Bf16Chunk, 2>(stream, p);
    case LinearLayout::kAffine4G32: return launch<Affine4Chunk<32>, 2>(stream, p);
    case LinearLayout::kAffine4G64: return launch<Affine4Chunk<64>, 2>(stream, p);
    case LinearLayout::kAffine4G128: return launch<Affine4Chunk<128>, 2>(stream, p);
  }
}

}  // namespace tensorfold::cuda
