// linear() on CUDA for many rows: tiles of 128 outputs by 128 rows of x (64 where a sum needs more
// registers; 32 where there are few rows), wgmma with the weights in registers.
//
// A block is one producing warp, which lets the copy engine fill a ring of x and packed weights, 64 or
// 128 columns a stage, and two warpgroups of 64 outputs each, which turn their weights into A operands and
// multiply. A step is the same 16 columns as in the decode kernel, the segments and their tree are the same,
// so the bits are too.
//
// Weights come through the ring because they come from memory, not from L2: the twelve blocks that share them
// run abreast, and two chunks ahead in registers are too few for that latency.
//
// Segments go in pairs, each with an accumulator of its own (64 fp32 a thread for 128 rows), so that the
// second's products follow the first's at once and the tree is touched four times, not eight. s0+s1 ->
// (s0..s3) and s4+s5 are parked in shared memory, where each thread rereads its own words: 2 slots x 64 KB
// for 128 rows. Where there
// are few rows, a pair's chunks are multiplied in turn, as they lie in memory (UnitOrder), and a stage of the
// ring takes one of both: copies of less than 1 KB take the copy engine longer than their bytes do.
//
// Two blocks of a cluster may share x: each brings half of its rows to both (WideGrid::share). So a stage
// costs L2 8 KB less of the 20 (4-bit) that a block reads in the 512 cycles that its products take.
//
// Where there are few tiles, the blocks of a cluster share one: 2 or 4 blocks with 2 pairs or 1 each. They
// leave their sums in shared memory, and each adds and stores its part of the outputs.
//
// Where integers are kept, a group's sum of x*q is one more tile: hence 64 rows. Its sum of x, a product with
// ones, is the same for all outputs: two warps beside the producer compute it once a block, 16 equal rows at
// a time, and leave it in shared memory.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "ops/cuda/device/linear_wide_stream.cuh"
#include "ops/cuda/multiprocessors.h"

namespace tensorfold::cuda {
namespace {  // Each file that includes this compiles its own kernels.

/// Where a chunk's sums of x will be, once its barrier says so.
struct XSums {
  uint32_t at, barrier, parity;
};

/// d (+)= a b for a tile of 128, 64 or 32 rows of x.
__device__ __forceinline__ void multiply(float (&d)[64], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  wgmma_m64n128k16(d, a, b, accumulate);
}
__device__ __forceinline__ void multiply(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  wgmma_m64n64k16(d, a, b, accumulate);
}
__device__ __forceinline__ void multiply(float (&d)[16], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  wgmma_m64n32k16(d, a, b, accumulate);
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
__device__ __forceinline__ uint64_t step_descriptor(uint32_t x_tile, int step) {
  return swizzled_descriptor(x_tile) + 2 * step;
}

/// Keeps the compiler from reading a tile before the products that were waited for have written it: it does
/// not see that they write later than where they stand.
template <int kSize>
__device__ __forceinline__ void read_after_wait(float (&tile)[kSize]) {
#pragma unroll
  for (float& v : tile) asm volatile("" : "+f"(v)::"memory");
}

/// How a warpgroup adds a chunk's products to a segment's sum, and leaves them in flight where
/// Wide::kInFlight says.
template <class Sizes>
struct WideSum {
  using Layout = typename Sizes::Layout;
  static constexpr int kAccumulators = Sizes::kAccumulators;

  /// Products start from +0 by themselves.
  static constexpr bool kStartsFromZero = true;
  __device__ __forceinline__ void add(float (&acc)[kAccumulators], const Chunk<Layout>& weights, int,
                                      bool starts_segment, Operands<Layout>& operands, uint32_t x_tile,
                                      const XSums&) {
    operands.make(weights);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int part = 0; part < Layout::kParts; ++part)
        multiply(acc, operands.a[step][part], step_descriptor(x_tile, step),
                 !(starts_segment && step == 0 && part == 0));
    }
    wgmma_commit();
  }
};

template <class Sizes>
requires Sizes::Layout::kKeepsIntegers struct WideSum<Sizes> {
  using Layout = typename Sizes::Layout;
  static constexpr int kAccumulators = Sizes::kAccumulators;
  float d[kAccumulators];
  bool starts_group = true;

  static constexpr bool kStartsFromZero = false;
  __device__ __forceinline__ void add(float (&acc)[kAccumulators], const Chunk<Layout>& weights, int chunk,
                                      bool, Operands<Layout>& operands, uint32_t x_tile,
                                      const XSums& x_sums) {
    constexpr int kSteps = 4 / Layout::kChunkGroups;
    operands.make(weights);
#pragma unroll
    for (int group = 0; group < Layout::kChunkGroups; ++group) {
      wgmma_fence();
#pragma unroll
      for (int step = group * kSteps; step < (group + 1) * kSteps; ++step)
        multiply(d, operands.a[step][0], step_descriptor(x_tile, step),
                 !(starts_group && step == group * kSteps));
      wgmma_commit();
      if (group == 0) mbarrier_wait(x_sums.barrier, x_sums.parity);
      wgmma_wait<0>();
      read_after_wait(d);
      operands.hold();
      starts_group = Layout::ends_group(chunk, 3);
      if (starts_group) end_group(acc, weights.scales[group], x_sums.at + group * (Sizes::kTileN * 4));
    }
  }

 private:
  __device__ __forceinline__ void end_group(float (&acc)[kAccumulators],
                                            const GroupScales<Layout::kScaleType>& group, uint32_t x_sums) {
    const uint32_t mine = x_sums + threadIdx.x % 4 * 8;
#pragma unroll
    for (int i = 0; i < kAccumulators; i += 4) {  // The four of rows i / 4 * 8 + {0, 1} of this thread.
      const uint2 xs = load_shared_8(mine + i * 8);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = j / 2;
        const float x_sum = __uint_as_float(j % 2 == 0 ? xs.x : xs.y);
        acc[i + j] = __fmaf_rn(__fmul_rn(group.scale(row), kRaisedBy), d[i + j],
                               __fmaf_rn(group.bias(row), x_sum, acc[i + j]));
      }
    }
  }
};

/// A multiplying warp's way through the ring.
template <class Sizes>
struct Consumer {
  using Layout = typename Sizes::Layout;
  static constexpr int kAccumulators = Sizes::kAccumulators, kInFlight = Sizes::kInFlight;

  const Shared<Sizes>& shared;
  const int lane, share;
  const uint32_t my_weights;
  WideSum<Sizes> sum;
  Operands<Layout> operands[kInFlight];
  RingPlace<Sizes::kStages> at;
  int used = -1;  ///< The stage whose last products are in flight, or none.

  __device__ __forceinline__ Consumer(const Shared<Sizes>& block, int blocks_sharing_x)
      : shared(block),
        lane(threadIdx.x % 32),
        share(blocks_sharing_x),
        my_weights(block.weights + threadIdx.x / 32 * Sizes::kStageUnits * Layout::kUnitBytes) {}

  /// Adds the chunk `place` of the stage: chunk `chunk` of its unit. `kWhich`:
  /// of the operands. All products but the newest kInFlight - 1 are done when
  /// this returns, and with them their operands and their stage.
  template <int kWhich>
  __device__ __forceinline__ void add(float (&acc)[kAccumulators], int chunk, int place, bool starts_segment,
                                      bool ends_stage) {
    if (place == 0) mbarrier_wait(shared.full + 8 * at.stage, at.parity);
    Chunk<Layout> weights;
    constexpr int kPlaceBytes = Sizes::kStageUnits > 1 ? Layout::kUnitBytes : 0;
    weights.load_from(SharedUnit{my_weights + at.stage * Sizes::kWeightBytes + place * kPlaceBytes}, chunk,
                      lane);
    sum.add(acc, weights, chunk, starts_segment, operands[kWhich % kInFlight],
            shared.x + at.stage * Sizes::kXBytes + place * Sizes::kXChunkBytes,
            {shared.x_sums + at.stage * Sizes::kXSumBytes, shared.summed + 8 * at.stage, at.parity});
    wgmma_wait<kInFlight - 1>();
    operands[(kWhich + 1) % kInFlight].hold();
    if (kInFlight > 1) release();
    if (!ends_stage) return;
    used = at.stage;
    if (kInFlight == 1) release();
    at.advance();
  }
  /// Adds all `chunks` of a segment. Its last products may stay in flight.
  __device__ __forceinline__ void add_segment(float (&acc)[kAccumulators], int chunks) {
    for (int base = 0; base < chunks; base += kInFlight) {
      add<0>(acc, base % Layout::kUnitChunks, 0, base == 0, true);
      if constexpr (kInFlight > 1) {
        if (base + 1 == chunks) {  // The next segment starts with the operands that these products read.
          wgmma_wait<0>();
          operands[0].hold();
          return;
        }
        add<1>(acc, (base + 1) % Layout::kUnitChunks, 0, false, true);
      }
    }
  }
  /// Waits for all products.
  __device__ __forceinline__ void finish() {
    wgmma_wait<0>();
    release();
#pragma unroll
    for (Operands<Layout>& o : operands) o.hold();
  }

 private:
  /// Says that the stage of products that are done may be filled again, to
  /// every block that fills it.
  __device__ __forceinline__ void release() {
    if (used < 0) return;
    __syncwarp();  // All lanes have read it.
    release_stage(shared.empty + 8 * used, lane, share);
    used = -1;
  }
};

/// Adds the sum of pair `pair` of segments into the tree of pairs [first_pair, last_pair), whose total is
/// left in `sum` after the last. `parked`: this thread's words of the two slots.
template <int kAccumulators>
__device__ __forceinline__ void add_pair(float (&sum)[kAccumulators], float* parked, int pair,
                                         const BlockWork& work) {
  float* own = parked + pair / 2 * kAccumulators * kConsumers;  // One slot for each half of the tree.
  if (pair % 2 == 1 && pair > work.first_pair) {
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) sum[i] = __fadd_rn(own[i * kConsumers], sum[i]);
    if (pair == 3 && work.first_pair == 0) {
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) sum[i] = __fadd_rn(parked[i * kConsumers], sum[i]);
    }
  }
  if (pair + 1 == work.last_pair) return;
#pragma unroll
  for (int i = 0; i < kAccumulators; ++i) own[i * kConsumers] = sum[i];
}

/// A thread's accumulator i is row 2 * (lane % 4) + i / 4 * 8 + i % 2 and column lane / 4 + i / 2 % 2 * 8 of
/// its warp.
__device__ __forceinline__ int first_row_of_thread(const BlockWork& work) {
  return work.first_row + 2 * static_cast<int>(threadIdx.x % 4);
}
__device__ __forceinline__ int first_column_of_thread(const BlockWork& work) {
  return static_cast<int>(work.tile + threadIdx.x / 32) * kLinearTileRows +
         static_cast<int>(threadIdx.x % 32 / 4);
}
__device__ __forceinline__ constexpr int row_of_accumulator(int i) { return i / 4 * 8 + i % 2; }
__device__ __forceinline__ constexpr int column_of_accumulator(int i) { return i / 2 % 2 * 8; }

/// Stores a thread's accumulators, as store_output() does: what does not depend on the output is asked once.
template <class Sizes>
__device__ __forceinline__ void store_tile(const LinearLaunch& p, const BlockWork& work,
                                           float (&sum)[Sizes::kAccumulators]) {
  constexpr int kAccumulators = Sizes::kAccumulators;
  const LinearDeviceCall& call = *work.call;
  const int row = first_row_of_thread(work), column = first_column_of_thread(work), rows = p.num_rows - row;
  const bool has[2] = {column < call.out_size, column + 8 < call.out_size};
  const int64_t at = row * call.out_stride + column;
#pragma unroll
  for (float& v : sum) v = __fmul_rn(v, Sizes::Layout::kResultScale);
  if (call.bias != nullptr) {
    const float bias[2] = {has[0] ? call.bias[column] : 0.0f, has[1] ? call.bias[column + 8] : 0.0f};
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) sum[i] = __fadd_rn(sum[i], bias[i / 2 % 2]);
  }
  const auto each = [&](auto* out, const auto& store) {
    out += at;
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) {
      auto* to = out + row_of_accumulator(i) * call.out_stride + column_of_accumulator(i);
      if (has[i / 2 % 2] && row_of_accumulator(i) < rows) store(to, sum[i]);
    }
  };
  if (call.out_is_bf16) {
    each(static_cast<__nv_bfloat16*>(call.out),
         [](__nv_bfloat16* to, float v) { *to = __float2bfloat16_rn(v); });
  } else if (call.accumulate) {
    each(static_cast<float*>(call.out), [](float* to, float v) { *to = __fadd_rn(*to, v); });
  } else {
    each(static_cast<float*>(call.out), [](float* to, float v) { *to = v; });
  }
}

/// Blocks that share a tile: each adds all blocks' sums for its part of the accumulators.
template <class Sizes>
__device__ __forceinline__ void store_shared(const LinearLaunch& p, const Shared<Sizes>& shared,
                                             const BlockWork& work, const float (&sum)[Sizes::kAccumulators],
                                             int split) {
  constexpr int kAccumulators = Sizes::kAccumulators;
  const int thread = threadIdx.x;
#pragma unroll
  for (int i = 0; i < kAccumulators; ++i) shared.parked[i * kConsumers + thread] = sum[i];
  cluster_meet();
  const int part = kAccumulators / split, first = static_cast<int>(cluster_rank()) * part;
  uint32_t sums[kPairs];
#pragma unroll
  for (int rank = 0; rank < kPairs; ++rank)
    sums[rank] = cluster_address(shared.parked + thread, min(rank, split - 1));
#pragma unroll 4
  for (int i = first; i < first + part; ++i) {
    const uint32_t offset = i * kConsumers * 4;
    float total = __fadd_rn(load_remote(sums[0] + offset), load_remote(sums[1] + offset));
    if (split == kPairs)
      total = __fadd_rn(total, __fadd_rn(load_remote(sums[2] + offset), load_remote(sums[3] + offset)));
    const int row = first_row_of_thread(work) + row_of_accumulator(i);
    const int column = first_column_of_thread(work) + column_of_accumulator(i);
    if (row < p.num_rows && column < work.call->out_size)
      store_output(*work.call, row, column, __fmul_rn(total, Sizes::Layout::kResultScale));
  }
  cluster_meet();  // Shared memory must outlive its readers.
}

/// Adds a pair of segments, unit by unit.
template <class Sizes>
__device__ __forceinline__ void add_in_turn(Consumer<Sizes>& consumer, float (&even)[Sizes::kAccumulators],
                                            int even_units, float (&odd)[Sizes::kAccumulators],
                                            int odd_units) {
  constexpr int kPlace = Sizes::kStageChunks - 1;  // In its stage, of the second of two chunks.
  for (int unit = 0; unit < even_units; ++unit) {
    const bool is_alone = unit >= odd_units;
    if constexpr (Sizes::Layout::kUnitChunks == 1) {
      consumer.template add<0>(even, 0, 0, unit == 0, kPlace == 0 || is_alone);
      if (is_alone) {
        consumer.finish();  // The next chunk's operands are those that these products read.
      } else {
        consumer.template add<1>(odd, 0, kPlace, unit == 0, true);
      }
    } else {
      consumer.template add<0>(even, 0, 0, unit == 0, kPlace == 0);
      consumer.template add<1>(even, 1, kPlace, false, true);
      if (is_alone) continue;
      consumer.template add<0>(odd, 0, 0, unit == 0, kPlace == 0);
      consumer.template add<1>(odd, 1, kPlace, false, true);
    }
  }
}

template <class Sizes>
__device__ __forceinline__ void consume(const LinearLaunch& p, const Shared<Sizes>& shared,
                                        const BlockWork& work, const WideGrid& grid) {
  using Layout = typename Sizes::Layout;
  constexpr int kAccumulators = Sizes::kAccumulators;
  float even[kAccumulators], odd[kAccumulators];
  wait_for_previous_kernel();
  Consumer<Sizes> consumer(shared, grid.share);
  const UnitOrder order(p.chunks / Layout::kUnitChunks);
  for (int pair = work.first_pair; pair < work.last_pair; ++pair) {
    const int even_units = order.length(2 * pair), odd_units = order.length(2 * pair + 1);
    // Here, where no products are in flight: the compiler would wait for them before it wrote to
    // accumulators.
    if (!WideSum<Sizes>::kStartsFromZero || odd_units == 0) {  // An empty segment is +0.
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) even[i] = odd[i] = 0.0f;
    }
    if constexpr (Sizes::kIsFew) {
      add_in_turn(consumer, even, even_units, odd, odd_units);
    } else {
      consumer.add_segment(even, even_units * Layout::kUnitChunks);
      consumer.add_segment(odd, odd_units * Layout::kUnitChunks);
    }
    consumer.finish();
    read_after_wait(even);
    read_after_wait(odd);
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) even[i] = __fadd_rn(even[i], odd[i]);
    add_pair(even, shared.parked + threadIdx.x, pair, work);
  }
  __syncwarp();
  if (grid.split > 1) return store_shared(p, shared, work, even, grid.split);
  store_tile<Sizes>(p, work, even);
  if (grid.share > 1) cluster_meet();  // Nobody arrives at the barriers of a block that is gone.
}

template <class Sizes>
__global__ void __launch_bounds__(kThreads, Sizes::kBlocks)
    linear_wide_kernel(const __grid_constant__ LinearLaunch p, const __grid_constant__ CUtensorMap x_map,
                       const __grid_constant__ WideGrid grid) {
  extern __shared__ std::byte shared_bytes[];
  const Shared<Sizes> shared(shared_bytes);
  launch_dependents();
  if (threadIdx.x == 0) {
    for (int i = 0; i < Sizes::kStages; ++i) {
      mbarrier_init(shared.full + 8 * i, 1);
      mbarrier_init(shared.empty + 8 * i, Sizes::kReaders * grid.share);
      mbarrier_init(shared.summed + 8 * i, kSummers);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  if (grid.share > 1) {
    cluster_arrive();
    cluster_wait();
  }
  const BlockWork work = block_work<Sizes>(p, grid);
  if (threadIdx.x >= kConsumers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Sizes::kProducerRegisters));
    const int warp = static_cast<int>(threadIdx.x - kConsumers) / 32;
    if (warp == 0) produce(p, shared, &x_map, work, grid.share);
    if constexpr (Sizes::Layout::kKeepsIntegers) {
      if (warp >= 1 && warp <= kSummers) sum_x(p, shared, work, grid.share, warp - 1);
    }
    if (warp > 0) wait_for_previous_kernel();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Sizes::kConsumerRegisters));
    consume(p, shared, work, grid);
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

/// How many blocks share a tile: what takes least, where a tile takes 1 and part of a wave counts as one.
/// Sharing costs the exchange of sums, and clusters of four leave a few multiprocessors idle. `blocks`: that
/// a multiprocessor takes.
inline int wide_split(int tiles, int chunks, int blocks) {
  const int multiprocessors = num_multiprocessors();
  int best = 1;
  double best_time = 0;
  for (int split : {1, 2, 4}) {
    const int slots = std::max(1, (split == 4 ? multiprocessors - 4 : multiprocessors) * blocks / split);
    const int waves = (tiles + slots - 1) / slots;
    const double exchange = split == 1 ? 0.0 : 6.0;  // In chunks.
    const double time = waves * (static_cast<double>(chunks) / split + exchange);
    if (split == 1 || time < best_time) best = split, best_time = time;
  }
  return best;
}

template <class Sizes>
void launch_tiles(CUstream_st* stream, const LinearLaunch& p) {
  int tiles_m = 0;
  for (int i = 0; i < p.num_calls; ++i) tiles_m += (p.calls[i].out_size + kTileM - 1) / kTileM;
  const int tiles_n = (p.num_rows + Sizes::kTileN - 1) / Sizes::kTileN;
  WideGrid grid{.tiles_m = tiles_m, .tiles_n = tiles_n, .split = p.tuning.wide_split, .share = 1};
  if (grid.split == 0) grid.split = wide_split(tiles_m * tiles_n, p.chunks, Sizes::kBlocks);
  if (grid.split == 1 && p.tuning.wide_share == 2) grid.share = 2;
  grid.tiles_m = (tiles_m + grid.share - 1) / grid.share;
  auto* kernel = linear_wide_kernel<Sizes>;
  static const cudaError_t once =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Sizes::kSharedBytes);
  static_cast<void>(once);  // A fault shows at the launch.
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(grid.cluster());
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<unsigned>(grid.tiles_m * grid.tiles_n * grid.cluster());
  config.blockDim = kThreads;
  config.dynamicSmemBytes = Sizes::kSharedBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  cudaLaunchKernelEx(&config, kernel, p, make_x_map(p, Sizes::kTileN / grid.share), grid);
}

template <class Layout>
void launch_wide(CUstream_st* stream, const LinearLaunch& p) {
  if constexpr (has_few_row_tiles(Layout::kLayout)) {
    using Tile = LinearTuning::Tile;
    const Tile tile = p.tuning.wide_tile;
    if (tile == Tile::kFew || (tile == Tile::kAuto && p.num_rows <= kMaxFewRows))
      return launch_tiles<Wide<Layout, kFewTileRows>>(stream, p);
  }
  launch_tiles<Wide<Layout, kManyTileRows<Layout>>>(stream, p);
}

}  // namespace
}  // namespace tensorfold::cuda
