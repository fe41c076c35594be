// route() on CUDA: the k best experts of each row and their weights. Formulas: Ops::route().
//
// A block has a row, a thread an expert. Each warp takes its best ones after each other, by two reductions
// over the lanes: the largest score, and the lowest index among those that have it. Then one warp merges
// these lists in the same way. A pass of few rows waits for this kernel alone, mostly for its instructions:
// loops that stay loops make it short.
#include <cuda_runtime.h>

#include "ops/contract_math.h"
#include "ops/cuda/device/async.cuh"
#include "ops/cuda/device/launch.cuh"
#include "ops/cuda/device/short_sum.cuh"
#include "ops/cuda/route_params.h"

namespace tensorfold::cuda {
namespace {

constexpr uint32_t kWholeWarp = 0xffffffffu;
constexpr int kMaxWarps = kMaxRoutedExperts / 32;

/// Keys below those of all numbers: of what may not be chosen (any more), and of NaN.
constexpr uint32_t kNotAllowed = 0, kKeyOfNan = 1;

/// An integer in the order of the scores. Adding 0 makes one of both zeros and of what a comparison takes for
/// zero.
__device__ __forceinline__ uint32_t ordered_key(float score) {
  if (score != score) return kKeyOfNan;
  const uint32_t bits = __float_as_uint(__fadd_rn(score, 0.0f));
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float max_of_warp(float x) {
#pragma unroll
  for (int bit = 16; bit >= 1; bit /= 2) x = fmaxf(x, __shfl_xor_sync(kWholeWarp, x, bit));
  return x;
}

/// What the warps of a block tell each other.
struct Exchange {
  float maxima[kMaxWarps];
  float exponentials[kMaxRoutedExperts];  ///< Zeros beyond the experts.
  float scores[kMaxRoutedExperts], chosen_by[kMaxRoutedExperts];
  // The best experts of each warp, best first.
  uint32_t keys[kMaxWarps][kMaxRoutedChoices], experts[kMaxWarps][kMaxRoutedChoices];
};

/// The softmax of a row's scores (minus infinity beyond its end), zeros beyond the end. By the whole block.
__device__ __forceinline__ float softmax(float score, int num_experts, Exchange& exchange) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const float of_warp = max_of_warp(score);
  if (lane == 0) exchange.maxima[thread / 32] = of_warp;
  __syncthreads();
  const int num_warps = static_cast<int>(blockDim.x) / 32;
  const float max = max_of_warp(exchange.maxima[lane < num_warps ? lane : 0]);
  const float exponential = thread < num_experts ? exp_f32(__fsub_rn(score, max)) : 0.0f;
  exchange.exponentials[thread] = exponential;
  for (int i = thread + static_cast<int>(blockDim.x); i < kMaxRoutedExperts;
       i += static_cast<int>(blockDim.x))
    exchange.exponentials[i] = 0.0f;
  __syncthreads();
  static_assert(kMaxRoutedExperts == 2 * kShortSumPartials);
  float partials[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float* of_partial = exchange.exponentials + lane + 32 * i;
    partials[i] = __fadd_rn(of_partial[0], of_partial[kShortSumPartials]);
  }
  return __fdiv_rn(exponential, halve_partials(partials));
}

/// An expert that nobody may take, or that there is not.
constexpr uint32_t kNoExpert = 0xffffffffu;

/// The best of the experts that the lanes have: the one of the largest key, of equal ones that of the lowest
/// number.
struct Best {
  uint32_t key, expert;
  __device__ __forceinline__ Best(uint32_t key_of_lane, uint32_t expert_of_lane)
      : key(__reduce_max_sync(kWholeWarp, expert_of_lane == kNoExpert ? kNotAllowed : key_of_lane)),
        expert(__reduce_min_sync(kWholeWarp, key_of_lane == key ? expert_of_lane : kNoExpert)) {}
};

/// The groups whose experts may be chosen, a bit each. Lane g adds up the two best scores of group g.
__device__ __forceinline__ uint32_t best_groups(const RouteLaunch& p, const float* scores, int lane) {
  const int size = p.num_experts / p.num_groups;
  uint32_t key = kNotAllowed;
  if (lane < p.num_groups) {
    float best = -INFINITY, second = -INFINITY;
    for (int i = 0; i < size; ++i) {
      const float score =
          scores[lane * size + (i + lane) % size];  // from lane on: other banks than the others'
      if (score > best) {
        second = best, best = score;
      } else if (score > second) {
        second = score;
      }
    }
    key = ordered_key(size > 1 ? __fadd_rn(best, second) : best);
  }
  uint32_t groups = 0;
  for (int j = 0; j < p.groups_kept; ++j) {
    const uint32_t best = __reduce_max_sync(kWholeWarp, key);
    const uint32_t group = __reduce_min_sync(kWholeWarp, key == best ? static_cast<uint32_t>(lane) : 32u);
    groups |= 1u << group;
    if (static_cast<uint32_t>(lane) == group) key = kNotAllowed;
  }
  return groups;
}

/// The sum of what the lanes hold, one number a choice and zeros beyond: of 256 partials only these are not
/// zero.
__device__ __forceinline__ float sum_of_choices(float x) {
  const float partials[8] = {x};
  return halve_partials(partials);
}

/// The weight of this lane's choice from its score.
__device__ __forceinline__ float weight_of(const RouteLaunch& p, float score, bool is_choice) {
  float weight = is_choice ? score : 0.0f;
  const bool of_chosen = p.scoring == RouteScoring::kSoftmaxOfChosen;
  if (of_chosen) {
    const float max = max_of_warp(is_choice ? score : -INFINITY);
    weight = is_choice ? exp_f32(__fsub_rn(score, max)) : 0.0f;
  }
  float total = sum_of_choices(weight);
  if (p.scoring == RouteScoring::kSigmoid) total = __fadd_rn(total, 1e-20f);
  if (of_chosen || p.normalize) weight = __fdiv_rn(weight, total);
  return __fmul_rn(weight, p.scale);
}

/// Grid: a block a row, a thread an expert. Traffic: a row's logits once.
__global__ void __launch_bounds__(kMaxRoutedExperts) route_kernel(const __grid_constant__ RouteLaunch p) {
  __shared__ Exchange exchange;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int num_warps = static_cast<int>(blockDim.x) / 32;
  const int64_t row = blockIdx.x;
  const float* logits = p.logits + row * p.logits_stride;
  // Of few rows the first turn is a rehearsal: see device/launch.cuh.
#pragma unroll 1
  for (int turn = p.num_rows <= kMaxRehearsedRows ? 0 : 1; turn < 2; ++turn) {
    if (turn == 1) {
      wait_for_previous_kernel();
      launch_dependents();
    }
    float score = thread < p.num_experts ? load_written(logits + thread) : -INFINITY;
    if (p.scoring == RouteScoring::kSoftmax) score = softmax(score, p.num_experts, exchange);
    if (p.scoring == RouteScoring::kSigmoid) score = sigmoid_f32(score);

    // What experts are chosen by, as keys; their weights are made of the scores.
    uint32_t key = kNotAllowed, expert = kNoExpert;
    bool is_nan = false;
    const bool in_groups = p.groups_kept < p.num_groups;
    if (thread < p.num_experts) {
      const float chosen_by = p.correction != nullptr ? __fadd_rn(score, p.correction[thread]) : score;
      is_nan = chosen_by != chosen_by;
      key = ordered_key(chosen_by), expert = static_cast<uint32_t>(thread);
      exchange.scores[thread] = score;
      if (in_groups) exchange.chosen_by[thread] = chosen_by;
    }
    const bool has_nan = __syncthreads_or(is_nan);
    if (in_groups) {
      const uint32_t groups = best_groups(p, exchange.chosen_by, lane);
      if (((groups >> (thread / (p.num_experts / p.num_groups) % 32)) & 1) == 0) key = kNotAllowed;
    }

    uint32_t id = 0;  // Of choice number `lane`.
#pragma unroll 1
    for (int j = 0; j < p.num_choices; ++j) {
      const Best best(key, expert);
      if (lane == j) id = best.expert, exchange.keys[warp][j] = best.key, exchange.experts[warp][j] = id;
      if (expert == best.expert) expert = kNoExpert;
    }
    __syncthreads();
    if (warp == 0 && num_warps > 1) {
      int next = 0;
      const auto take = [&] {
        const bool has_more = lane < num_warps && next < p.num_choices;
        key = has_more ? exchange.keys[lane][next] : kNotAllowed;
        expert = has_more ? exchange.experts[lane][next] : kNoExpert;
        ++next;
      };
      take();
#pragma unroll 1
      for (int j = 0; j < p.num_choices; ++j) {
        const Best best(key, expert);
        if (lane == j) id = best.expert;
        if (expert == best.expert) take();
      }
    }
    if (warp == 0) {
      const float score_of_choice = lane < p.num_choices ? exchange.scores[id] : 0.0f;
      const float weight = weight_of(p, score_of_choice, lane < p.num_choices);
      if (turn == 1 && lane < p.num_choices) {
        p.expert_ids[row * p.ids_stride + lane] = static_cast<int32_t>(id);
        p.expert_weights[row * p.weights_stride + lane] = has_nan ? __uint_as_float(0x7fc00000u) : weight;
      }
    }
    __syncthreads();  // Before the next turn writes what this one still reads.
  }
}

}  // namespace

void launch_route(CUstream_st* stream, const RouteLaunch& p) {
  if (p.num_rows == 0) return;
  const int threads = (p.num_experts + 31) / 32 * 32;
  launch_kernel(route_kernel, dim3(p.num_rows), dim3(threads), 0, stream, p);
}

}  // namespace tensorfold::cuda
