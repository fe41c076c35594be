// The products of experts() for many rows an expert: tasks of 64 pairs. Layout and arithmetic:
// ops/cuda/linear.h; tasks: experts_params.h.
//
// A warp has 16 outputs of all of a task's rows, so that weights are turned into operands once for 8 n-tiles;
// the eight warps of a block share the columns of x, which come through a ring in shared memory. Warps 0..3
// have gate's outputs and 4..7 up's, so that the activation is applied here; or all eight have tiles of one
// matrix.
//
// A warp takes its eight segments one after the other. The tree needs four tiles of sums at once: the running
// segment and one held partial are in registers, s0+s1 -> (s0..s3) and s4+s5 in shared memory, where each
// thread rereads its own words. Shared memory: ring 3 x 8 KB, parked 2 x 32 KB: two blocks an SM.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "ops/cuda/device/async.cuh"
#include "ops/cuda/device/experts.cuh"
#include "ops/cuda/device/launch.cuh"
#include "ops/cuda/device/linear_operand.cuh"
#include "ops/cuda/device/mma.cuh"
#include "ops/cuda/experts_params.h"

namespace tensorfold::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kRowTiles = kManyTaskRows / 8;
constexpr int kAccumulators = kRowTiles * 4;
constexpr int kStages = 3;
constexpr int kRowBytes = kLinearChunkColumns * 2;
constexpr int kStageBytes = kManyTaskRows * kRowBytes;
constexpr int kParkedBytes = 2 * kAccumulators * kThreads * 4;
constexpr int kSharedBytes = kStages * kStageBytes + kParkedBytes;

/// Copies 16 bytes to shared memory, or zeros where `bytes` is 0, without waiting.
__device__ __forceinline__ void copy_async(uint32_t shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until all but the last kStages - 2 groups of copies are there.
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
}

/// The task's rows of x, 64 columns at a time. In a stage row r's 16-byte piece q lies at r * 128 + (q ^ r %
/// 8) * 16: the eight rows that one load of a matrix reads are in different banks. A thread moves two pieces
/// of a chunk.
struct RowStream {
  const __nv_bfloat16* rows[2];  ///< Null where the task has no such row.
  uint32_t to[2];                ///< In stage 0.
  int column;                    ///< Of the pieces, in a chunk.
  int in;

  __device__ __forceinline__ void open(const ExpertsLaunch& p, ExpertStage stage, const ExpertTask& task,
                                       uint32_t ring) {
    in = product_of(p, stage).in;
    const int piece = threadIdx.x % 8;
    column = piece * 8;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = threadIdx.x / 8 + i * (kThreads / 8);
      rows[i] = row < task.count ? x_of_pair(p, stage, pair_at(p, task, row)) : nullptr;
      to[i] = ring + row * kRowBytes + (piece ^ row % 8) * 16;
    }
  }
  __device__ __forceinline__ void load(int chunk, int stage, const void* readable) const {
    const int at = chunk * kLinearChunkColumns + column;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool is_there = rows[i] != nullptr && at < in;
      copy_async(to[i] + stage * kStageBytes, is_there ? rows[i] + at : readable, is_there ? 16 : 0);
    }
  }
};

/// The tree of arithmetic.md, fed one finished segment after the other. After the last one `held` is the
/// total.
struct SegmentTree {
  float held[kAccumulators];
  float* parked;  ///< [2][kAccumulators][kThreads], this thread's.

  __device__ __forceinline__ float& slot(int which, int i) {
    return parked[(which * kAccumulators + i) * kThreads];
  }
  template <class Layout>
  __device__ __forceinline__ void add(int segment, const TileSum<Layout> (&sums)[kRowTiles]) {
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) {
      const float sum = sums[i / 4].acc[i % 4];
      if (segment % 2 == 0) {
        held[i] = sum;
        continue;
      }
      float pair = __fadd_rn(held[i], sum);
      if (segment == 5) slot(1, i) = pair;
      if (segment == 7) pair = __fadd_rn(slot(1, i), pair);
      if (segment == 3 || segment == 7) pair = __fadd_rn(slot(0, i), pair);
      if (segment <= 3) slot(0, i) = pair;
      held[i] = pair;
    }
  }
};

/// sums += chunk `index` of the weights times the `row_tiles` n-tiles of the stage at shared address `stage`.
template <class Layout>
__device__ __forceinline__ void multiply_chunk(const Chunk<Layout>& weights, int index, uint32_t stage,
                                               int row_tiles, TileSum<Layout> (&sums)[kRowTiles]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    uint32_t a[2][Layout::kParts][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int part = 0; part < Layout::kParts; ++part) weights.operand(2 * pair + i, part, a[i][part]);
    }
    // Lane l names row l % 8 of the pieces 4 * pair + l / 8: low and high columns of two steps.
    const uint32_t at = stage + lane % 8 * kRowBytes + ((4 * pair + lane / 8) ^ lane % 8) * 16;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      if (r < row_tiles) {
        uint32_t b[4];
        load_matrices(b, at + r * 8 * kRowBytes);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          sums[r].add(a[i], b[2 * i], b[2 * i + 1]);
          if (Layout::ends_group(index, 2 * pair + i))
            sums[r].end_group(weights, Layout::group_of_step(2 * pair + i));
        }
      }
    }
  }
}

/// Grid: x outputs (4 tiles of gate and of up, else 8 tiles), y tasks; a warp a tile. Traffic: the task's
/// weights once, its rows of x once a block, from L2. Where integers are kept, sums take three times the
/// registers.
template <class Layout>
__global__ void __launch_bounds__(kThreads, Layout::kKeepsIntegers ? 1 : 2)
    experts_many_kernel(const __grid_constant__ ExpertsLaunch p, const ExpertStage stage) {
  extern __shared__ __align__(128) std::byte shared[];
  const bool is_gated = stage == ExpertStage::kGateUp;
  const ExpertProduct& product = product_of(p, stage);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  wait_for_previous_kernel();
  launch_dependents();
  const ExpertTask task = task_at(p, blockIdx.y);
  if (task.count == 0) return;

  __shared__ int pairs[kManyTaskRows];  // Read behind the barriers below.
  if (threadIdx.x < task.count) pairs[threadIdx.x] = pair_at(p, task, threadIdx.x);
  const uint32_t ring = shared_address(shared);
  RowStream rows;
  rows.open(p, stage, task, ring);
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < product.chunks) rows.load(i, i, p.x);
    commit_copies();
  }

  // A tile beyond the last one is computed as the last one, and not stored.
  const int tile = is_gated ? blockIdx.x * 4 + warp % 4 : blockIdx.x * 8 + warp;
  const int real_tile = min(tile, product.tiles - 1);
  const std::byte* matrix = matrix_of(is_gated && warp >= 4 ? p.up : matrices_of(p, stage), task.expert);
  TileChunks<Layout> chunks(matrix, real_tile, product.chunks);
  constexpr int kAhead = 2;
  Chunk<Layout> weights[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (i < product.chunks) load_next_chunk(weights[i], chunks, lane);
  }

  SegmentTree tree;
  tree.parked = reinterpret_cast<float*>(shared + kStages * kStageBytes) + threadIdx.x;
  TileSum<Layout> sums[kRowTiles];
  const int row_tiles = (task.count + 7) / 8;
  int segment = 0, left = product.chunks_per_segment, place = 0;
  const auto end_segment = [&] {
    tree.add(segment++, sums);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) sums[r] = TileSum<Layout>();
    left = product.chunks_per_segment;
  };
  for (int first = 0; first < product.chunks; first += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int chunk = first + i;
      if (chunk < product.chunks) {
        wait_for_copies();
        __syncthreads();  // The chunk is there for all, and all have read the one before it.
        const int next = chunk + kStages - 1;
        if (next < product.chunks) rows.load(next, (place + kStages - 1) % kStages, p.x);
        commit_copies();
        multiply_chunk<Layout>(weights[i], chunk, ring + place * kStageBytes, row_tiles, sums);
        if (chunk + kAhead < product.chunks) load_next_chunk(weights[i], chunks, lane);
        if (++place == kStages) place = 0;
        if (--left == 0) end_segment();
      }
    }
  }
  while (segment < kLinearSegments) end_segment();

  // Lane l's float j of n-tile r: row 8 r + 2 (l % 4) + j % 2, output l / 4 + 8 (j / 2).
  const auto finish = [&](int i, float sum, float up_sum) {
    const int row = i / 4 * 8 + lane % 4 * 2 + i % 2;
    const int column = tile * kLinearTileRows + lane / 4 + i % 4 / 2 * 8;
    if (row < task.count && column < product.out) {
      finish_output(p, stage, task.expert, pairs[row], column, __fmul_rn(sum, Layout::kResultScale),
                    __fmul_rn(up_sum, Layout::kResultScale));
    }
  };
#pragma unroll
  for (int i = 0; i < kAccumulators; ++i) tree.slot(0, i) = tree.held[i];
  if (!is_gated) {
    for (int i = 0; i < kAccumulators; ++i) finish(i, tree.slot(0, i), 0.0f);
    return;
  }
  // Gate's warp w and up's warp w + 4 have the same outputs: each finishes half of them.
  __syncthreads();
  const int of_gate = warp < 4 ? 0 : -kThreads / 2, of_up = of_gate + kThreads / 2;
  const int begin = warp < 4 ? 0 : kAccumulators / 2;
  for (int i = begin; i < begin + kAccumulators / 2; ++i)
    finish(i, (&tree.slot(0, i))[of_gate], (&tree.slot(0, i))[of_up]);
}

template <class Layout>
void launch_stage(CUstream_st* stream, const ExpertsLaunch& p, ExpertStage stage) {
  const int num_tasks = max_expert_tasks(int64_t{p.num_rows} * p.num_choices, p.num_experts, p.task_rows);
  const ExpertProduct& product = product_of(p, stage);
  const int tiles = stage == ExpertStage::kGateUp ? 4 : 8;  // Of a block.
  auto* kernel = experts_many_kernel<Layout>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  launch_kernel(kernel, dim3((product.tiles + tiles - 1) / tiles, num_tasks), dim3(kThreads), kSharedBytes,
                stream, p, stage);
}

/// The layouts of has_experts_many().
void launch_stage_of_any(CUstream_st* stream, const ExpertsLaunch& p, ExpertStage stage) {
  const LinearLayout& layout = product_of(p, stage).layout;
  const auto launch = [&](auto l) { launch_stage<decltype(l)>(stream, p, stage); };
  if (layout.format != LinearFormat::kAffine) return with_other_layout(layout, launch);
  with_affine_layout<ScaleType::kBf16>(layout, launch);
}

}  // namespace

void launch_experts_many(CUstream_st* stream, const ExpertsLaunch& p) {
  if (has_gate_alone(p)) launch_stage_of_any(stream, p, ExpertStage::kGate);
  launch_stage_of_any(stream, p, has_fused_gate(p) ? ExpertStage::kGateUp : ExpertStage::kUp);
  launch_stage_of_any(stream, p, ExpertStage::kDown);
}

}  // namespace tensorfold::cuda
