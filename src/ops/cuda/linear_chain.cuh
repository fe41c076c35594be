// linear_chain(): products that depend on one another as one persistent kernel. Layout and arithmetic:
// ops/cuda/linear.h.
//
// A launch of linear()'s decode kernel costs several microseconds beside its stream of weights. Here the
// rings stream on over the border of two products: weights depend on nothing, so while blocks wait for the
// last outputs and stage the next x, the rings fill with the next product's weights, and what is computed
// then comes from there.
//
// Between steps: outputs stored, a barrier of the grid, the next x staged. A norm before a product is
// computed by each block as it stages x; an activation behind one where its second argument's sums are
// finished, by the warp that finished the first one's just before. (Every block computing all of it as it
// stages x would repeat it 132 times: 17,408 columns of silu are 3 us a row.)
#pragma once

#include "ops/cuda/device/activation.cuh"
#include "ops/cuda/device/grid_barrier.cuh"
#include "ops/cuda/device/linear_stream.cuh"
#include "ops/cuda/device/short_sum.cuh"
#include "ops/cuda/device/values.cuh"
#include "ops/cuda/linear_chain_params.h"
#include "ops/cuda/resident_clusters.cuh"

namespace tensorfold::cuda {
namespace {  // Each file that includes this compiles its own kernels.

/// The tiles of a slot (a warp of each segment) of the grid.
struct Dealer {
  const LinearChain& chain;
  const ChainPlan& plan;
  int slot, slots;

  __device__ __forceinline__ int first_tile(int step) const {
    return first_tile_of_slot(chain.steps[step], plan.first_slot[step], slot, slots);
  }
  __device__ __forceinline__ int next_tile(int step, int tile) const {
    return next_tile_of_slot(chain.steps[step], tile, slots);
  }
};

/// Tile `tile` of step `step`: its matrix, and which of the matrix's tiles it is.
__device__ __forceinline__ TilePlace place_in_chain(const LinearChain& chain, int step, int tile) {
  const ChainStep& s = chain.steps[step];
  // One index at the end: the compiler then sees that it reads a kernel parameter.
  int i = s.first_call, in_call = tile;
  if (s.deal == 2) {
    i += tile & 1, in_call >>= 1;
  } else {
    while (i + 1 < s.first_call + s.num_calls && tile >= chain.calls[i + 1].first_tile) ++i;
    in_call -= chain.calls[i].first_tile;
  }
  return {chain.calls[i], in_call};
}

/// The tiles of a step, for Finisher.
struct ChainProduct {
  static constexpr bool kActivates = true;
  const LinearChain& chain;
  int step = 0;

  __device__ __forceinline__ int num_rows() const { return chain.num_rows; }
  __device__ __forceinline__ TilePlace place(int tile) const { return place_in_chain(chain, step, tile); }
  __device__ __forceinline__ Before before(int tile, const LinearDeviceCall& call) const {
    const ChainStep& s = chain.steps[step];
    if (s.deal == 1 || tile % 2 == 0) return accumulated(call);
    // This lane stored the gate just before.
    const LinearDeviceCall& gate = chain.calls[s.first_call];
    return {static_cast<const float*>(gate.out), gate.out_stride};
  }
  /// visit(activate) if the tile's outputs are `up` of an activation; activate(row, column, gate, up) stores
  /// one.
  template <class Visit>
  __device__ __forceinline__ void activate(int tile, const Visit& visit) const {
    const ChainStep& s = chain.steps[step];
    const ChainActivation& a = s.activation;
    if (a.out == nullptr || (tile & (s.deal - 1)) != s.deal - 1) return;
    const auto store = [&](int row, int column, float y) {
      a.out[row * a.out_stride + column] = float_to_bf16(y);
    };
    switch (a.kind) {
      case Activation::kSilu:
        return visit(
            [&](int row, int column, float gate, float up) { store(row, column, silu_mul(gate, up)); });
      case Activation::kGeluTanh:
        return visit(
            [&](int row, int column, float gate, float up) { store(row, column, gelu_tanh_mul(gate, up)); });
      case Activation::kClampedSilu:
        return visit([&](int row, int column, float gate, float up) {
          store(row, column, clamped_silu_mul(gate, up, a.alpha, a.limit));
        });
      case Activation::kRelu2:
        return visit([&](int row, int column, float, float up) { store(row, column, relu_squared(up)); });
    }
  }
};

/// A warp's weights on their way: the units of its segment of each of its tiles, of one step after the other.
template <class Layout>
struct ChainStream {
  const LinearChain& chain;
  const ChainPlan& plan;
  Dealer dealer;
  int segment;  ///< Of 8.
  int step, tile;
  SegmentLoad<Layout> load = {};

  /// Asks for the next units, if there are any left.
  __device__ __forceinline__ void load_next(uint32_t stage, uint32_t full) {
    if (step == chain.num_steps) return;
    if (load.left == 0 && !start_tile()) return;
    load.ask(stage, full, plan.stage_units[step]);
    if (load.left == 0) tile = dealer.next_tile(step, tile);
  }

 private:
  /// From `tile` on, the next one with weights for this warp; false, and step == num_steps, at the chain's
  /// end.
  __device__ __forceinline__ bool start_tile() {
    for (;;) {
      const ChainStep& s = chain.steps[step];
      const ChunkRange chunks = segment_chunks(s.chunks, s.chunks_per_segment, segment);
      if (tile < s.num_tiles && chunks.count > 0) {
        const TilePlace at = place_in_chain(chain, step, tile);
        load.start(at.call.weights, at.tile, s.chunks, chunks);
        return true;
      }
      if (++step == chain.num_steps) return false;
      tile = dealer.first_tile(step);
    }
  }
};

/// The weights of a norm that a thread of a block needs, of columns thread + kThreads * i.
template <int kThreads>
struct NormWeights {
  static constexpr int kPieces = kMaxChainNormColumns / kThreads;
  static_assert(kMaxChainNormColumns % kThreads == 0 && kThreads % kShortSumPartials == 0);
  float value[kPieces];

  __device__ __forceinline__ void load(const ChainStep& step) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int column = static_cast<int>(threadIdx.x) + kThreads * i;
      value[i] = column < step.in ? step.norm.weight[column] : 0.0f;
    }
  }
};

/// 1 / sqrt(mean + eps) of each row, in the steps of rms_norm_kernel (norms.cu): teams of 256 threads take a
/// row each. `partials`: 2 * 256 floats for each team.
__device__ __forceinline__ void find_inverse_norms(const ChainStep& step, int rows, float* inverse_norms,
                                                   float* partials) {
  constexpr int kPieces = kMaxChainNormColumns / kShortSumPartials;
  const ChainNorm& norm = step.norm;
  const int thread = threadIdx.x % kShortSumPartials, team = threadIdx.x / kShortSumPartials;
  const int teams = blockDim.x / kShortSumPartials;
  partials += team * 2 * kShortSumPartials;
  int turn = 0;  // Partials in turn: one barrier a row is enough.
  for (int row = team; row < rows; row += teams, turn ^= 1) {
    const float* from = norm.x + row * norm.x_stride + thread;
    float x[kPieces], partial = 0.0f;
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      x[i] = thread + kShortSumPartials * i < step.in ? from[kShortSumPartials * i] : 0.0f;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) partial = __fmaf_rn(x[i], x[i], partial);
    const float squares = halve_partials_of_team(partial, partials + turn * kShortSumPartials);
    if (thread == 0) inverse_norms[row] = inverse_norm(squares, norm.reciprocal, norm.eps);
  }
}

/// stage_x() of rows that are normed here. Every block reads all of each row, since its sum needs every
/// column, and stages its own columns; one block of the grid writes the row to norm.out as well. The rows'
/// second reading comes from L1 (20 KB of a row of 5,120, where few rows are).
template <int kThreads>
__device__ __forceinline__ void stage_normed_x(const ChainStep& step, const DecodePlan& plan, int rows,
                                               int first_chunk, int num_chunks,
                                               const NormWeights<kThreads>& weights, std::byte* to,
                                               float* inverse_norms, float* partials) {
  const ChainNorm& norm = step.norm;
  find_inverse_norms(step, rows, inverse_norms, partials);
  __syncthreads();
  const int lane = threadIdx.x % 32, pair_bytes = x_pair_bytes(plan.rows);
  // A thread's columns have its lane's place in their 32: see stage_x().
  to += lane / 8 * 4 + lane % 8 / 2 * 16 + lane % 2 * 2;
  for (int row = 0; row < rows; ++row) {
    const float inverse = inverse_norms[row];
    const bool writes_out = static_cast<int>(blockIdx.x) == row % static_cast<int>(gridDim.x);
    const float* from = norm.x + row * norm.x_stride;
    float x[NormWeights<kThreads>::kPieces];
#pragma unroll
    for (int i = 0; i < NormWeights<kThreads>::kPieces; ++i) {
      const int column = static_cast<int>(threadIdx.x) + kThreads * i;
      x[i] = column < step.in ? from[column] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < NormWeights<kThreads>::kPieces; ++i) {
      const int column = static_cast<int>(threadIdx.x) + kThreads * i, in_block = column - first_chunk * 64;
      const uint16_t y = column < step.in
                             ? float_to_bf16(__fmul_rn(__fmul_rn(x[i], inverse), weights.value[i]))
                             : uint16_t{0};
      if (in_block >= 0 && in_block < num_chunks * 64)
        *reinterpret_cast<uint16_t*>(to + in_block / 32 * pair_bytes + row * 64) = y;
      if (writes_out && column < step.in) norm.out[row * norm.out_stride + column] = y;
    }
  }
}

/// Grid: clusters of plan.block.cluster blocks, all resident at once. Every step: blocks stage x (traffic: x
/// once a block, from L2), then a slot's warps multiply its tiles, a warp each (tile, segment), and the
/// slot's first warp stores the outputs. Traffic: every weight once.
template <class Layout, int kRowTiles, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, 1)
    linear_chain_kernel(const __grid_constant__ LinearChain chain,
                        const __grid_constant__ ChainPlan chain_plan) {
  extern __shared__ __align__(128) std::byte shared[];
  const DecodePlan& plan = chain_plan.block;
  const WarpPlace at = warp_place<kWarps>(plan);
  const Dealer dealer{chain, chain_plan, at.slot * at.clusters + at.cluster, at.slots * at.clusters};
  const int segment_index = at.rank * plan.segments + at.segment;

  Ring ring(plan, shared_address(shared) + at.warp * plan.stages * plan.stage_bytes,
            shared_address(shared + plan.barriers_offset) + at.warp * plan.stages * 8);
  ChainStream<Layout> stream{.chain = chain,
                             .plan = chain_plan,
                             .dealer = dealer,
                             .segment = segment_index,
                             .step = 0,
                             .tile = dealer.first_tile(0)};
  auto finisher = make_finisher<Layout, kRowTiles, kWarps>(ChainProduct{chain}, plan, at, shared, 0);
  init_barriers(plan, at, ring.first_full, finisher);
  for (int i = 0; i < plan.stages; ++i)
    stream.load_next(ring.first_stage + i * plan.stage_bytes, ring.first_full + i * 8);
  if (plan.cluster > 1) cluster_arrive();
  launch_dependents();

  GridBarrier barrier{chain.barrier};
  const int pair_bytes = x_pair_bytes(plan.rows);
  for (int step = 0; step < chain.num_steps; ++step) {
    const ChainStep& s = chain.steps[step];
    // Arrival, then what depends on nothing, then the wait: the norm's weights may come from far.
    if (step > 0) barrier.arrive();
    NormWeights<32 * kWarps> norm_weights;
    if (s.norm.x != nullptr) norm_weights.load(s);
    if (step > 0) {
      barrier.wait();
    } else {
      wait_for_previous_kernel();
    }
    const ChunkRange block =
        segment_chunks(s.chunks, s.chunks_per_segment, at.rank * plan.segments, plan.segments);
    if (s.norm.x != nullptr) {  // The sums' place is free: all tiles of the step before are finished.
      stage_normed_x(s, plan, chain.num_rows, block.begin, block.count, norm_weights, shared + plan.x_offset,
                     reinterpret_cast<float*>(shared + plan.extra_offset),
                     reinterpret_cast<float*>(shared + plan.sums_offset));
    } else {
      stage_x({s.x, s.x_stride, s.in}, plan, chain.num_rows, block.begin, block.count,
              shared + plan.x_offset);
    }
    __syncthreads();
    if (step == 0 && plan.cluster > 1) cluster_wait();

    const ChunkRange segment = segment_chunks(s.chunks, s.chunks_per_segment, segment_index);
    const int length = segment.count / Layout::kUnitChunks, stage_units = chain_plan.stage_units[step];
    uint32_t x[kRowTiles];
    operand_addresses(x, shared_address(shared) + plan.x_offset, segment.begin - block.begin, chain.num_rows,
                      pair_bytes, at.lane);
    finisher.product.step = step;
    finisher.forget();
    for (int tile = dealer.first_tile(step); tile < s.num_tiles; tile = dealer.next_tile(step, tile)) {
      TileSum<Layout> sum[kRowTiles];
      multiply_segment<Layout, kRowTiles>(ring, stream, plan, stage_units, length, x, pair_bytes, at.lane,
                                          sum);
      finisher.add(tile, sum);
    }
    finisher.finish_pending();
  }
  if (plan.cluster > 1) {  // A block's shared memory must outlive the others' arrivals in it.
    cluster_arrive();
    cluster_wait();
  }
}

template <class Layout, int kRowTiles, int kWarps>
void launch_chain(CUstream_st* stream, const LinearChain& chain) {
  ChainPlan plan = plan_linear_chain(chain);
  const int cluster = plan.block.cluster;
  auto* kernel = linear_chain_kernel<Layout, kRowTiles, kWarps>;
  static const cudaError_t once =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes);
  static_cast<void>(once);      // A fault shows at the launch.
  static int resident[5] = {};  // By the cluster's size.
  int& clusters = resident[cluster];
  if (clusters == 0) clusters = resident_clusters(kernel, cluster, 32 * kWarps);

  const int dealt = deal_steps(plan, chain, clusters, kWarps);
  cudaLaunchAttribute attributes[3] = {};
  cudaLaunchConfig_t config{};
  const auto add_attribute = [&]() -> cudaLaunchAttribute& { return attributes[config.numAttrs++]; };
  if (chain.tuning.start != ChainTuning::Start::kCooperative) {
    cudaLaunchAttribute& dependent = add_attribute();
    dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    dependent.val.programmaticStreamSerializationAllowed = 1;
  }
  if (chain.tuning.start != ChainTuning::Start::kDependent) {
    cudaLaunchAttribute& cooperative = add_attribute();
    cooperative.id = cudaLaunchAttributeCooperative;
    cooperative.val.cooperative = 1;
  }
  if (cluster > 1) {
    cudaLaunchAttribute& dimension = add_attribute();
    dimension.id = cudaLaunchAttributeClusterDimension;
    dimension.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
  config.blockDim = dim3(32 * kWarps);
  config.attrs = attributes;
  config.dynamicSmemBytes = plan.block.shared_bytes;
  config.stream = stream;
  config.gridDim = dim3(dealt * cluster);
  cudaLaunchKernelEx(&config, kernel, chain, plan);
}

template <class Layout>
void launch_chain_for_rows(CUstream_st* stream, const LinearChain& chain) {
  if (chain.num_rows > 8) {
    launch_chain<Layout, 2, kTwoRowTileWarps>(stream, chain);
  } else {
    launch_chain<Layout, 1, decode_warps(Layout::kUnitBytes)>(stream, chain);
  }
}

}  // namespace
}  // namespace tensorfold::cuda
