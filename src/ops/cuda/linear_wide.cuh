// linear() on CUDA for many rows: tiles of 128 outputs by 128 rows of x (64 where a sum needs more
// registers), wgmma with the weights in registers.
//
// A block is one producing warp, which lets the tensor copy engine fill a ring of x tiles, and two warpgroups
// of 64 outputs each, which read their packed weights straight from memory (each byte once per tile of rows),
// turn them into A operands and multiply. A step is the same 16 columns as in the decode kernel, the segments
// and their tree are the same, so the bits are too.
//
// The tree needs more tiles than registers hold (64 fp32 a thread each): the running segment and one held
// partial are in registers, s0+s1 -> (s0..s3) and s4+s5 are parked in shared memory, where each thread
// rereads its own words. Shared memory: ring 4 x 16 KB, parked 2 warpgroups x 2 x 32 KB = 192 KB of 227.
//
// Where integers are kept, a group's sums of x*q and of x are two more tiles: hence 64 rows. The sum of x is
// a product with ones, which doubles the tensor cores' work.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "ops/cuda/device/linear_operand.cuh"
#include "ops/cuda/device/wgmma.cuh"
#include "ops/cuda/linear_params.h"

namespace tensorfold::cuda {
namespace {  // Each file that includes this compiles its own kernels.

constexpr int kTileM = 128;  ///< Outputs.
constexpr int kStages = 4;
constexpr int kConsumers = 256;  ///< Threads of the two multiplying warpgroups; the producer adds one more.
constexpr int kThreads = kConsumers + 128;

/// The sizes that depend on the layout.
template <class Layout>
struct Wide {
  static constexpr bool kIsLean = Layout::kParts == 1 && !Layout::kKeepsIntegers;
  static constexpr int kTileN = kIsLean ? 128 : 64;  ///< Rows of x.
  static constexpr int kStageBytes = kTileN * kLinearChunkColumns * 2;
  static constexpr int kAccumulators = 64 * kTileN / 128;
  static constexpr int kParkedBytes = 2 * kConsumers * kAccumulators * 4;
  static constexpr int kSharedBytes = kStages * kStageBytes + kParkedBytes + 2 * kStages * 8 + 1024;
  /// Chunks whose products are in flight, and with them the registers of their operands.
  static constexpr int kInFlight = kIsLean ? 2 : 1;
  /// The operands are the registers that were loaded: a slot of the ring is free only when its products are done.
  static constexpr bool kReloadsLate = kInFlight > 1 && Layout::kFormat == LinearFormat::kBf16;
};
/// Tiles of rows taken together before the next outputs: 12 x 128 rows by 11 x 128 outputs fill 132 SMs, near
/// square, so that a wave's x and weights are each read from memory about once and meet in L2.
constexpr int kRasterRows = 12;

template <class Layout>
struct Shared {
  std::byte* ring;
  float* parked;  ///< [2 slots][accumulators][kConsumers]: consecutive threads, consecutive words.
  uint64_t* full;
  uint64_t* empty;

  __device__ explicit Shared(std::byte* base) {
    ring = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(base) + 1023) & ~uintptr_t{1023});
    parked = reinterpret_cast<float*>(ring + kStages * Wide<Layout>::kStageBytes);
    full = reinterpret_cast<uint64_t*>(reinterpret_cast<std::byte*>(parked) + Wide<Layout>::kParkedBytes);
    empty = full + kStages;
  }
};

/// blockIdx.x to (tile of outputs, tile of rows): bands of kRasterRows row tiles, inside a band outputs run
/// slowest.
__device__ __forceinline__ int2 tile_of_block(int tiles_m, int tiles_n) {
  const int band = blockIdx.x / (kRasterRows * tiles_m);
  const int rows_in_band = min(kRasterRows, tiles_n - band * kRasterRows);
  const int in_band = blockIdx.x - band * kRasterRows * tiles_m;
  return {in_band / rows_in_band, band * kRasterRows + in_band % rows_in_band};
}

template <class Layout>
__device__ __forceinline__ void produce(const Shared<Layout>& shared, const CUtensorMap* x_map, int chunks,
                                        int first_row) {
  constexpr int kStageBytes = Wide<Layout>::kStageBytes;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int stage = chunk % kStages, round = chunk / kStages;
    if (round > 0) mbarrier_wait(&shared.empty[stage], (round - 1) & 1);
    mbarrier_expect_bytes(&shared.full[stage], kStageBytes);
    copy_tile(shared.ring + stage * kStageBytes, x_map, &shared.full[stage], chunk * kLinearChunkColumns,
              first_row);
  }
}

/// Adds a finished segment into the tree. On return after the last one, `held` is the total.
template <int kAccumulators>
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

/// d (+)= a b for a tile of 128 or 64 rows of x.
__device__ __forceinline__ void multiply(float (&d)[64], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  wgmma_m64n128k16(d, a, b, accumulate);
}
__device__ __forceinline__ void multiply(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  wgmma_m64n64k16(d, a, b, accumulate);
}

/// A chunk's A operands.
template <class Layout>
struct Operands {
  uint32_t a[4][Layout::kParts][4] = {};

  __device__ __forceinline__ void make(const Chunk<Layout>& weights) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int part = 0; part < Layout::kParts; ++part) weights.operand(step, part, a[step][part]);
    }
  }
  /// The products read their A registers until they are waited for, which the compiler does not see: this use
  /// after the wait keeps it from giving the registers to something else before.
  __device__ __forceinline__ void hold() {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int part = 0; part < Layout::kParts; ++part) {
        uint32_t(&r)[4] = a[step][part];
        asm volatile("" : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3]));
      }
    }
  }
};

/// The descriptor of a step's columns: 16 columns are 32 bytes further in every 128-byte row, 2 in its
/// 16-byte units.
__device__ __forceinline__ uint64_t step_descriptor(const std::byte* x_tile, int step) {
  return swizzled_descriptor(x_tile) + 2 * step;
}

/// Keeps the compiler from reading a tile before the products that were waited for have written it: it does not see that
/// they write later than where they stand.
template <int kSize>
__device__ __forceinline__ void read_after_wait(float (&tile)[kSize]) {
#pragma unroll
  for (float& v : tile) asm volatile("" : "+f"(v)::"memory");
}

/// The running sum of a segment for a warpgroup's tile. add() leaves the products of a chunk in flight or
/// not, as Wide::kInFlight says; finish() waits for all.
template <class Layout>
struct WideSum {
  float acc[Wide<Layout>::kAccumulators];
  bool is_empty = true;

  __device__ __forceinline__ void start() { is_empty = true; }
  __device__ __forceinline__ void add(const Chunk<Layout>& weights, int, Operands<Layout>& operands,
                                      const std::byte* x_tile) {
    operands.make(weights);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int part = 0; part < Layout::kParts; ++part)
        multiply(acc, operands.a[step][part], step_descriptor(x_tile, step),
                 !(is_empty && step == 0 && part == 0));
    }
    wgmma_commit();
    is_empty = false;
  }
  __device__ __forceinline__ void finish() {
    wgmma_wait<0>();
    read_after_wait(acc);
    if (!is_empty) return;
#pragma unroll
    for (float& v : acc) v = 0.0f;  // An empty segment is +0.
  }
};

template <class Layout>
requires Layout::kKeepsIntegers struct WideSum<Layout> {
  static constexpr int kAccumulators = Wide<Layout>::kAccumulators;
  float acc[kAccumulators], d[kAccumulators], xs[kAccumulators];
  bool starts_group = true;

  __device__ __forceinline__ void start() {
#pragma unroll
    for (float& v : acc) v = 0.0f;
  }
  __device__ __forceinline__ void add(const Chunk<Layout>& weights, int chunk, Operands<Layout>& operands,
                                      const std::byte* x_tile) {
    constexpr uint32_t kOnes = 0x3f803f80u;
    constexpr int kSteps = 4 / Layout::kChunkGroups;
    uint32_t ones[4] = {kOnes, kOnes, kOnes, kOnes};
    operands.make(weights);
#pragma unroll
    for (int group = 0; group < Layout::kChunkGroups; ++group) {
      wgmma_fence();
#pragma unroll
      for (int step = group * kSteps; step < (group + 1) * kSteps; ++step) {
        const uint64_t b = step_descriptor(x_tile, step);
        const int accumulate = !(starts_group && step == group * kSteps);
        multiply(d, operands.a[step][0], b, accumulate);
        multiply(xs, ones, b, accumulate);
      }
      wgmma_commit();
      wgmma_wait<0>();
      read_after_wait(d);
      read_after_wait(xs);
      operands.hold();
      asm volatile("" : "+r"(ones[0]), "+r"(ones[1]), "+r"(ones[2]), "+r"(ones[3]));
      starts_group = Layout::ends_group(chunk, 3);
      if (starts_group) end_group(weights.scales[group]);
    }
  }
  __device__ __forceinline__ void finish() {}

 private:
  __device__ __forceinline__ void end_group(const GroupScales<Layout::kScaleType>& group) {
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) {
      const int row = i / 2 % 2;
      acc[i] =
          __fmaf_rn(__fmul_rn(group.scale(row), kRaisedBy), d[i], __fmaf_rn(group.bias(row), xs[i], acc[i]));
    }
  }
};

/// A warp's packed weights on their way: a ring of kAhead chunks, each segment padded to whole turns.
template <class Layout, int kAhead>
struct WeightStream {
  Chunk<Layout> ring[kAhead];
  const LinearLaunch& p;
  const LinearDeviceCall& call;
  int64_t tile;
  int lane, padded, segment = 0, at = 0;  ///< Of the next load: its segment, and its place in it.

  __device__ __forceinline__ WeightStream(const LinearLaunch& launch, const LinearDeviceCall& matrix,
                                          int64_t tile_idx, int lane_idx)
      : p(launch),
        call(matrix),
        tile(tile_idx),
        lane(lane_idx),
        padded((launch.chunks_per_segment + kAhead - 1) / kAhead * kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) load_next(ring[i]);
  }
  __device__ __forceinline__ void load_next(Chunk<Layout>& slot) {
    const int chunk = segment * p.chunks_per_segment + at;
    if (at < p.chunks_per_segment && chunk < p.chunks) slot.load(call.weights, tile, chunk, p.chunks, lane);
    if (++at == padded) at = 0, ++segment;
  }
};

/// kAhead: chunks of weights in flight per warp, an even number.
template <class Layout, int kAhead>
__device__ __forceinline__ void consume(const LinearLaunch& p, const Shared<Layout>& shared,
                                        const LinearDeviceCall& call, int64_t tile, int first_row) {
  using Sizes = Wide<Layout>;
  constexpr int kInFlight = Sizes::kInFlight;
  const int thread = threadIdx.x % kConsumers, lane = thread % 32;
  // A matrix's last block may have fewer than 8 tiles of 16; the surplus warps repeat the last one and store
  // nothing.
  const int tiles = (call.out_size + kLinearTileRows - 1) / kLinearTileRows;
  const int64_t my_tile = min(tile + thread / 32, static_cast<int64_t>(tiles - 1));
  const bool stores = tile + thread / 32 < tiles;

  WideSum<Layout> sum;
  Operands<Layout> operands[kInFlight];
  SegmentTree<Sizes::kAccumulators> tree;
  tree.parked = shared.parked + thread;
  WeightStream<Layout, kAhead> stream(p, call, my_tile, lane);
  // Each segment is padded to whole turns of the ring, which is indexed by constants; padding is skipped.
  int consumed = 0;
  for (int segment = 0; segment < kLinearSegments; ++segment) {
    const int begin = min(p.chunks, segment * p.chunks_per_segment);
    const int end = min(p.chunks, begin + p.chunks_per_segment);
    sum.start();
    for (int base = begin; base < end; base += kAhead) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (base + i < end) {
          const int stage = consumed % kStages;
          mbarrier_wait(&shared.full[stage], (consumed / kStages) & 1);
          sum.add(stream.ring[i], base + i, operands[i % kInFlight],
                  shared.ring + stage * Sizes::kStageBytes);
          // The products of all but the newest kInFlight - 1 chunks are done, and with them their operands
          // and x.
          wgmma_wait<kInFlight - 1>();
          operands[(i + 1) % kInFlight].hold();
          const int done = consumed - (kInFlight - 1);
          if (done >= 0 && lane == 0) mbarrier_arrive(&shared.empty[done % kStages]);
          ++consumed;
        } else if (Sizes::kReloadsLate) {
          wgmma_wait<0>();
        }
        if (!Sizes::kReloadsLate) {
          stream.load_next(stream.ring[i]);
        } else if (base + i > 0) {  // The very first place has none before it.
          stream.load_next(stream.ring[(i + kAhead - 1) % kAhead]);
        }
      }
    }
    sum.finish();
#pragma unroll
    for (Operands<Layout>& o : operands) o.hold();
    tree.add(segment, sum.acc);
  }
  if (!stores) return;
#pragma unroll
  for (int i = 0; i < Sizes::kAccumulators; ++i) {
    const int row = first_row + i / 4 * 8 + 2 * (lane % 4) + i % 2;
    const int column = static_cast<int>(my_tile) * kLinearTileRows + lane / 4 + i / 2 % 2 * 8;
    if (row < p.num_rows && column < call.out_size)
      store_output(call, row, column, __fmul_rn(tree.held[i], Layout::kResultScale));
  }
}

template <class Layout, int kAhead>
__global__ void __launch_bounds__(kThreads, 1)
    linear_wide_kernel(const __grid_constant__ LinearLaunch p, const __grid_constant__ CUtensorMap x_map,
                       int tiles_m, int tiles_n) {
  extern __shared__ std::byte shared_bytes[];
  const Shared<Layout> shared(shared_bytes);
  const int2 tile = tile_of_block(tiles_m, tiles_n);
  const int first_row = tile.y * Wide<Layout>::kTileN;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(&shared.full[i], 1);
      mbarrier_init(&shared.empty[i], kConsumers / 32);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == kConsumers) produce(shared, &x_map, p.chunks, first_row);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    // Block tiles of 128 outputs never span two matrices: each matrix starts its own.
    int call = 0, first = 0;
    for (; call + 1 < p.num_calls; ++call) {
      const int blocks = (p.calls[call].out_size + kTileM - 1) / kTileM;
      if (tile.x < first + blocks) break;
      first += blocks;
    }
    consume<Layout, kAhead>(p, shared, p.calls[call], int64_t{tile.x - first} * (kTileM / kLinearTileRows),
                            first_row);
  }
}

/// x as the copy engine sees it: boxes of 64 columns by `box_rows` rows, swizzled; outside the matrix it
/// reads zeros.
CUtensorMap make_x_map(const LinearLaunch& p, int box_rows) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  CUtensorMap map;
  const cuuint64_t dims[2] = {static_cast<cuuint64_t>(p.in), static_cast<cuuint64_t>(p.num_rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(p.x_stride) * 2};
  const cuuint32_t box[2] = {kLinearChunkColumns, static_cast<cuuint32_t>(box_rows)},
                   element_strides[2] = {1, 1};
  encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<std::byte*>(p.x), dims, strides, box,
         element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return map;
}

template <class Layout, int kAhead>
void launch_wide(CUstream_st* stream, const LinearLaunch& p) {
  using Sizes = Wide<Layout>;
  int tiles_m = 0;
  for (int i = 0; i < p.num_calls; ++i) tiles_m += (p.calls[i].out_size + kTileM - 1) / kTileM;
  const int tiles_n = (p.num_rows + Sizes::kTileN - 1) / Sizes::kTileN;
  auto* kernel = linear_wide_kernel<Layout, kAhead>;
  static const cudaError_t once =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Sizes::kSharedBytes);
  static_cast<void>(once);  // A fault shows at the launch.
  kernel<<<tiles_m * tiles_n, kThreads, Sizes::kSharedBytes, stream>>>(p, make_x_map(p, Sizes::kTileN),
                                                                       tiles_m, tiles_n);
}

}  // namespace
}  // namespace tensorfold::cuda
