// What linear()'s wide kernel is fed with: its sizes, which tile a block has, the order of its chunks, and
// the warps that bring weights and x to a ring in shared memory and sum x. How they are multiplied:
// ops/cuda/linear_wide.cuh.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "ops/cuda/device/linear_operand.cuh"
#include "ops/cuda/device/wgmma.cuh"
#include "ops/cuda/linear_params.h"

namespace tensorfold::cuda {
namespace {  // Each file that includes this compiles its own kernels.

constexpr int kTileM = 128;  ///< Outputs.
constexpr int kBlockTiles = kTileM / kLinearTileRows;
/// Threads of the two multiplying warpgroups; the producer adds one more.
constexpr int kConsumers = 256;
constexpr int kThreads = kConsumers + 128;
constexpr int kPairs = kLinearSegments / 2;
constexpr int kSummers = 2;  ///< Warps that sum x.
constexpr int kMaxStages = 6;
constexpr int kWideSharedBytes = 227 * 1024;

/// Whether a thread's registers hold the sums of 128 rows: not where integers are kept or f32 has three
/// parts.
template <class Layout>
constexpr bool kHasWideTiles = !Layout::kKeepsIntegers && Layout::kParts <= 2;
/// Rows of x of a tile where there are many; and where one tile is all, or a few.
template <class Layout>
constexpr int kManyTileRows = kHasWideTiles<Layout> ? 128 : 64;
constexpr int kFewTileRows = 32;
/// Tiles of few rows are better up to so many rows, though each reads the weights again, from L2.
constexpr int kMaxFewRows = 64;

/// A kernel: layout, rows of x of a tile, and what depends on them. "Stage": what the ring is filled with at
/// a time, one chunk or two that follow one another (ChunkCursor).
template <class Layout_, int kTileN_>
struct Wide {
  using Layout = Layout_;
  static constexpr int kTileN = kTileN_;
  static constexpr bool kIsFew = kTileN == kFewTileRows;
  static constexpr bool kIsLean = Layout::kParts == 1 && !Layout::kKeepsIntegers;
  static constexpr int kBlocks = kIsFew ? 2 : 1;  ///< An SM has: few rows leave much to wait for.
  static constexpr int kAccumulators = 64 * kTileN / 128;
  static constexpr int kParkedBytes = 2 * kConsumers * kAccumulators * 4;
  static constexpr int kStageChunks = kIsFew && Layout::kUnitBytes < 1024 ? 2 : 1;
  /// Units of a tile in a stage, whole ones or, of units of two chunks, a chunk and the scales.
  static constexpr int kStageUnits = kStageChunks > Layout::kUnitChunks ? 2 : 1;
  static constexpr int kXChunkBytes = kTileN * kLinearChunkColumns * 2;
  static constexpr int kXBytes = kStageChunks * kXChunkBytes,
                       kWeightBytes = kBlockTiles * kStageUnits * Layout::kUnitBytes;
  /// Of x, where integers are kept: [2 groups][kTileN] a stage.
  static constexpr int kXSumBytes = Layout::kKeepsIntegers ? 2 * kTileN * 4 : 0;
  static constexpr int kFixedBytes = kParkedBytes + kMaxStages * (kXSumBytes + 3 * 8) + 1024;
  static constexpr int kBlockBytes = kBlocks == 1 ? kWideSharedBytes : kWideSharedBytes / kBlocks - 1024;
  static constexpr int kStages = std::min(kMaxStages, (kBlockBytes - kFixedBytes) / (kXBytes + kWeightBytes));
  static constexpr int kSharedBytes = kStages * (kXBytes + kWeightBytes) + kFixedBytes;
  /// Chunks whose products are in flight, and with them the registers of their operands.
  static constexpr int kInFlight = kIsLean ? 2 : 1;
  /// Of the block's registers (64 K, or its half), what the producer's warps and those that multiply take:
  /// the sums of x need more than 40.
  static constexpr int kProducerRegisters = Layout::kKeepsIntegers ? 56 : 40;
  static constexpr int kConsumerRegisters = kIsFew ? 96 : Layout::kKeepsIntegers ? 224 : 232;
  /// Warps that read a stage.
  static constexpr int kReaders = kConsumers / 32 + (Layout::kKeepsIntegers ? kSummers : 0);
  static_assert(kStages > kInFlight, "the ring must hold what is in flight and what is loaded");
  static_assert(!kIsFew || kIsLean, "few rows: no sums of x");
};
/// Tiles of rows taken together before the next outputs: 12 x 128 rows by 11 x 128 outputs fill 132 SMs, near
/// square, so that a wave's x and weights are each read from memory about once and meet in L2.
constexpr int kRasterRows = 12;

/// Addresses of 32 bits, but for `parked`: they keep the loops short.
template <class Sizes>
struct Shared {
  uint32_t x;                    ///< [kStages][kXBytes]
  float* parked;                 ///< [2 slots][accumulators][kConsumers]: consecutive threads,
                                 ///< consecutive words.
  uint32_t weights;              ///< [kStages][kBlockTiles][kStageUnits][kUnitBytes]
  uint32_t x_sums;               ///< [kStages][kXSumBytes]
  uint32_t full, empty, summed;  ///< Barriers, 8 bytes a stage.

  __device__ explicit Shared(std::byte* base) {
    const uint32_t start = shared_address(base);
    x = (start + 1023) & ~1023u;
    parked = reinterpret_cast<float*>(base + (x - start) + Sizes::kStages * Sizes::kXBytes);
    weights = x + Sizes::kStages * Sizes::kXBytes + Sizes::kParkedBytes;
    x_sums = weights + Sizes::kStages * Sizes::kWeightBytes;
    full = x_sums + Sizes::kStages * Sizes::kXSumBytes;
    empty = full + 8 * kMaxStages;
    summed = empty + 8 * kMaxStages;
  }
};

__device__ __forceinline__ void store_shared_8(uint32_t at, float low, float high) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(low), "f"(high) : "memory");
}

/// How tiles of 128 outputs by kTileN rows are given to clusters.
struct WideGrid {
  int tiles_m, tiles_n;  ///< tiles_m: tiles of outputs, `share` taken as one.
  int split;             ///< 1, 2 or 4 blocks to a tile, each with its pairs of segments.
  int share;             ///< 1, or where split is 1, 2: blocks of neighbouring outputs that
                         ///< share their x.
  __host__ __device__ int cluster() const { return split * share; }
};

/// What a block computes: 128 outputs of one matrix by a tile of rows, pairs [first_pair, last_pair) of
/// segments.
struct BlockWork {
  const LinearDeviceCall* call;
  int64_t tile;   ///< First tile of 16 outputs, of the matrix.
  int num_tiles;  ///< Of the matrix.
  int first_row;
  int first_pair, last_pair;

  /// The block's tiles; a matrix's last block may have fewer than 8: the others repeat the last one and store
  /// nothing.
  __device__ __forceinline__ int64_t tile_of(int i) const {
    return min(tile + i, static_cast<int64_t>(num_tiles - 1));
  }
};

/// The order in which a block multiplies chunks, pair by pair of segments: one segment after the other, or
/// where there are few rows a unit of the one, then a unit of the other, while both have any.
template <class Sizes>
struct ChunkCursor {
  using Layout = typename Sizes::Layout;
  UnitOrder order;
  int pair, last_pair;
  int even, odd;                       ///< Units of the pair's segments.
  int which = 0, unit = 0, chunk = 0;  ///< Segment of the pair, its unit, that unit's chunk.
  int offset, column;                  ///< The unit's bytes from the tile's start, the chunk's first column.

  __device__ __forceinline__ ChunkCursor(const LinearLaunch& p, const BlockWork& work)
      : order(p.chunks / Layout::kUnitChunks), pair(work.first_pair), last_pair(work.last_pair) {
    open_segment();
  }
  __device__ __forceinline__ bool is_at_end() const { return pair == last_pair; }
  /// Chunks from here to the end of a stage that begins here.
  __device__ __forceinline__ int chunks_of_stage() const {
    return Sizes::kStageUnits == 2 && unit >= odd ? 1 : Sizes::kStageChunks;
  }
  __device__ __forceinline__ void next() {
    column += kLinearChunkColumns;
    if (++chunk < Layout::kUnitChunks) return;
    chunk = 0;
    if constexpr (Sizes::kIsFew) {
      const int segment_columns = order.per_segment * Layout::kUnitChunks * kLinearChunkColumns;
      offset += Layout::kUnitBytes;
      if (which == 0 && unit < odd) {
        which = 1, column += segment_columns - Layout::kUnitChunks * kLinearChunkColumns;
        return;
      }
      if (which == 1) which = 0, column -= segment_columns;
      if (++unit < even) return;
    } else {
      offset += unit < odd ? 2 * Layout::kUnitBytes : Layout::kUnitBytes;  // Past the other segment's.
      if (++unit < (which == 0 ? even : odd)) return;
      which = which == 0 && odd > 0 ? 1 : 0;
    }
    unit = 0;
    if (which == 0) ++pair;
    open_segment();
  }

 private:
  __device__ __forceinline__ void open_segment() {
    even = order.length(2 * pair), odd = order.length(2 * pair + 1);
    if (even == 0) pair = last_pair;  // Nor have those behind it any.
    offset = order.first(2 * pair + which) * Layout::kUnitBytes;
    column = (2 * pair + which) * order.per_segment * Layout::kUnitChunks * kLinearChunkColumns;
  }
};

/// The number of a block's cluster to its work: bands of kRasterRows row tiles, inside a band outputs run
/// slowest. Block tiles of 128 outputs never span two matrices: each matrix starts its own. (The second of
/// the last blocks that share x may be one beyond: it stores nothing.)
template <class Sizes>
__device__ __forceinline__ BlockWork block_work(const LinearLaunch& p, const WideGrid& grid) {
  const int at = blockIdx.x / grid.cluster(), rank = blockIdx.x % grid.cluster();
  const int band = at / (kRasterRows * grid.tiles_m);
  const int rows_in_band = min(kRasterRows, grid.tiles_n - band * kRasterRows);
  const int in_band = at - band * kRasterRows * grid.tiles_m;
  int m = in_band / rows_in_band * grid.share + rank / grid.split, call = 0;
  for (; call + 1 < p.num_calls; ++call) {
    const int blocks = (p.calls[call].out_size + kTileM - 1) / kTileM;
    if (m < blocks) break;
    m -= blocks;
  }
  const int part = rank % grid.split;
  return {.call = &p.calls[call],
          .tile = int64_t{m} * kBlockTiles,
          .num_tiles = (p.calls[call].out_size + kLinearTileRows - 1) / kLinearTileRows,
          .first_row = (band * kRasterRows + in_band % rows_in_band) * Sizes::kTileN,
          .first_pair = part * kPairs / grid.split,
          .last_pair = (part + 1) * kPairs / grid.split};
}

/// A place in the ring, and the parity of its turn.
template <int kStages>
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

/// By one warp: lane i < 8 asks for the weights of tile i, lane 0 for x, or for its part of the x that the
/// cluster's blocks share, and both their barriers count it. The first stages' weights are asked for before
/// the previous kernel has ended.
template <class Sizes>
__device__ __forceinline__ void produce(const LinearLaunch& p, const Shared<Sizes>& shared,
                                        const CUtensorMap* x_map, const BlockWork& work, int share) {
  using Layout = typename Sizes::Layout;
  constexpr int kScaleBytes = Layout::kUnitBytes - Layout::kUnitWeightBytes;
  constexpr bool kTakesUnits = Sizes::kStageChunks >= Layout::kUnitChunks;
  const int lane = threadIdx.x % 32;
  const std::byte* tile = work.call->weights + work.tile_of(lane % kBlockTiles) *
                                                   (p.chunks / Layout::kUnitChunks) * Layout::kUnitBytes;
  const int part = share > 1 ? static_cast<int>(cluster_rank()) : 0;
  const uint32_t x_part = shared.x + part * (Sizes::kXChunkBytes / share);
  const int first_row = work.first_row + part * (Sizes::kTileN / share);

  const auto ask_for_weights = [&](const ChunkCursor<Sizes>& at, int stage) {
    const uint32_t full = shared.full + 8 * stage;
    const int chunks = at.chunks_of_stage();
    const int bytes =
        kTakesUnits ? chunks / Layout::kUnitChunks * Layout::kUnitBytes : Layout::kChunkBytes + kScaleBytes;
    if (lane == 0) mbarrier_expect_bytes(full, chunks * Sizes::kXChunkBytes + kBlockTiles * bytes);
    __syncwarp();
    if (lane >= kBlockTiles) return;
    const std::byte* unit = tile + at.offset;
    const uint32_t to =
        shared.weights + stage * Sizes::kWeightBytes + lane * Sizes::kStageUnits * Layout::kUnitBytes;
    if constexpr (kTakesUnits) {
      bulk_copy(to, unit, bytes, full);
    } else {
      const int offset = at.chunk * Layout::kChunkBytes;
      bulk_copy(to + offset, unit + offset, Layout::kChunkBytes, full);
      bulk_copy(to + Layout::kUnitWeightBytes, unit + Layout::kUnitWeightBytes, kScaleBytes, full);
    }
  };
  // And goes on to the next stage.
  const auto ask_for_x = [&](ChunkCursor<Sizes>& at, int stage) {
    const uint32_t full = shared.full + 8 * stage, to = x_part + stage * Sizes::kXBytes;
    const int chunks = at.chunks_of_stage();
#pragma unroll
    for (int i = 0; i < Sizes::kStageChunks; ++i) {
      if (i == chunks) break;
      if (lane == 0 && share == 1) {
        copy_tile(to + i * Sizes::kXChunkBytes, x_map, full, at.column, first_row);
      } else if (lane == 0) {
        copy_tile_to_cluster(to + i * Sizes::kXChunkBytes, x_map, full, at.column, first_row,
                             (1u << share) - 1);
      }
      at.next();
    }
  };
  ChunkCursor<Sizes> at(p, work), ahead = at;
  for (int stage = 0; stage < Sizes::kStages && !ahead.is_at_end(); ++stage) {
    ask_for_weights(ahead, stage);
    for (int chunks = ahead.chunks_of_stage(); chunks > 0; --chunks) ahead.next();
  }
  wait_for_previous_kernel();
  for (int stage = 0; stage < Sizes::kStages && !at.is_at_end(); ++stage) ask_for_x(at, stage);
  RingPlace<Sizes::kStages> place;
  for (; !at.is_at_end(); place.advance()) {
    mbarrier_wait(shared.empty + 8 * place.stage, place.parity);
    ask_for_weights(at, place.stage);
    ask_for_x(at, place.stage);
  }
}

/// By one lane of each warp that reads a stage, and of as many lanes as blocks fill it: it may be filled
/// again.
__device__ __forceinline__ void release_stage(uint32_t empty, int lane, int share) {
  if (lane >= share) return;
  if (share == 1) {
    mbarrier_arrive(empty);
  } else {
    mbarrier_arrive_remote(cluster_address(empty, lane));
  }
}

/// By warp `summer` of kSummers: the groups' sums of its rows of x, in the steps and with the instruction
/// that the decode kernel has for them.
template <class Sizes>
__device__ __forceinline__ void sum_x(const LinearLaunch& p, const Shared<Sizes>& shared,
                                      const BlockWork& work, int share, int summer) {
  using Layout = typename Sizes::Layout;
  constexpr int kTiles = Sizes::kTileN / 8 / kSummers, kSteps = 4 / Layout::kChunkGroups;
  constexpr uint32_t kOnes[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
  const int lane = threadIdx.x % 32, row = lane / 4, first = summer * kTiles * 8;
  float sums[kTiles][4] = {};
  RingPlace<Sizes::kStages> at;
  for (ChunkCursor<Sizes> cursor(p, work); !cursor.is_at_end(); cursor.next(), at.advance()) {
    mbarrier_wait(shared.full + 8 * at.stage, at.parity);
    const uint32_t rows = shared.x + at.stage * Sizes::kXBytes + (first + row) * 128 + lane % 4 * 4;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        // The 16-byte units of a row lie at their number xor the row's: the copy engine's swizzle.
        const uint32_t b0 = SharedUnit{rows + tile * 1024 + ((2 * step) ^ row) * 16}.load_4(0);
        const uint32_t b1 = SharedUnit{rows + tile * 1024 + ((2 * step + 1) ^ row) * 16}.load_4(0);
        mma_m16n8k16(sums[tile], kOnes, b0, b1);
      }
      if (!Layout::ends_group(cursor.chunk, step)) continue;
      const uint32_t to = shared.x_sums + at.stage * Sizes::kXSumBytes + step / kSteps * (Sizes::kTileN * 4);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        if (lane < 4) store_shared_8(to + (first + tile * 8 + 2 * lane) * 4, sums[tile][0], sums[tile][1]);
#pragma unroll
        for (float& v : sums[tile]) v = 0.0f;
      }
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared.summed + 8 * at.stage);
    release_stage(shared.empty + 8 * at.stage, lane, share);
  }
}

}  // namespace
}  // namespace tensorfold::cuda
