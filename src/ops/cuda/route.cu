// route() on CUDA: the k best experts of each row and their weights. Formulas: Ops::route().
//
// A warp keeps a row's scores in registers, expert e in lane e % 32. Each lane sorts its own, best first;
// then the best ones of all are taken after each other by two reductions over the lanes' first: the largest
// score, and the lowest index among those that have it.
#include <cuda_runtime.h>

#include "ops/contract_math.h"
#include "ops/cuda/device/async.cuh"
#include "ops/cuda/device/launch.cuh"
#include "ops/cuda/device/short_sum.cuh"
#include "ops/cuda/route_params.h"

namespace tensorfold::cuda {
namespace {

constexpr uint32_t kWholeWarp = 0xffffffffu;

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

/// scores of a row (minus infinity beyond its end) to their softmax, zeros beyond the end.
template <int kPerLane>
__device__ __forceinline__ void softmax(float (&scores)[kPerLane], int num_experts, int lane) {
  float max = -INFINITY;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) max = fmaxf(max, scores[i]);  // the number, where one of both is NaN
  max = max_of_warp(max);
  float partials[8] = {};
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    scores[i] = lane + 32 * i < num_experts ? exp_f32(__fsub_rn(scores[i], max)) : 0.0f;
    partials[i % 8] = __fadd_rn(partials[i % 8], scores[i]);
  }
  const float total = halve_partials(partials);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) scores[i] = __fdiv_rn(scores[i], total);
}

/// Sorts a lane's experts: the largest key first, of equal ones the lowest index. Odd-even merging (Batcher
/// 1968): places i and i + kStep are compared where both lie in one of the pairs of runs that become one.
template <int kRun = 1, int kStep = 1, int kPerLane>
__device__ __forceinline__ void sort_lane(uint32_t (&keys)[kPerLane], uint32_t (&experts)[kPerLane]) {
#pragma unroll
  for (int i = 0; i + kStep < kPerLane; ++i) {
    const int after = i - kStep % kRun, j = i + kStep;
    if (after < 0 || after / kStep % 2 != 0 || i / (2 * kRun) != j / (2 * kRun)) continue;
    const bool in_order = keys[i] > keys[j] || (keys[i] == keys[j] && experts[i] < experts[j]);
    const uint32_t key = keys[i], expert = experts[i];
    keys[i] = in_order ? key : keys[j];
    experts[i] = in_order ? expert : experts[j];
    keys[j] = in_order ? keys[j] : key;
    experts[j] = in_order ? experts[j] : expert;
  }
  if constexpr (kStep > 1) {
    sort_lane<kRun, kStep / 2>(keys, experts);
  } else if constexpr (2 * kRun < kPerLane) {
    sort_lane<2 * kRun, 2 * kRun>(keys, experts);
  }
}

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

/// Grid: a block of one warp a row. kPerLane: experts a lane holds, at least X / 32.
template <int kPerLane>
__global__ void __launch_bounds__(32) route_kernel(const __grid_constant__ RouteLaunch p) {
  __shared__ float shared_scores[kMaxRoutedExperts], shared_chosen_by[kMaxRoutedExperts];
  const int lane = threadIdx.x;
  const int64_t row = blockIdx.x;
  const float* logits = p.logits + row * p.logits_stride;
  // The first turn is a rehearsal, of whatever lies there before the previous kernel has ended, and stores
  // nothing. One warp that runs through all this once waits mostly for its own instructions.
#pragma unroll 1
  for (int turn = 0; turn < 2; ++turn) {
    if (turn == 1) {
      wait_for_previous_kernel();
      launch_dependents();
    }
    float scores[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      scores[i] = lane + 32 * i < p.num_experts ? load_written(logits + lane + 32 * i) : -INFINITY;
    if (p.scoring == RouteScoring::kSoftmax) softmax<kPerLane>(scores, p.num_experts, lane);

    // What experts are chosen by, as keys; their weights are made of the scores.
    uint32_t keys[kPerLane];
    bool has_nan = false;
    const bool in_groups = p.groups_kept < p.num_groups;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int expert = lane + 32 * i;
      keys[i] = kNotAllowed;
      if (expert < p.num_experts) {
        if (p.scoring == RouteScoring::kSigmoid) scores[i] = sigmoid_f32(scores[i]);
        const float chosen_by =
            p.correction != nullptr ? __fadd_rn(scores[i], p.correction[expert]) : scores[i];
        has_nan |= chosen_by != chosen_by;
        keys[i] = ordered_key(chosen_by);
        shared_scores[expert] = scores[i];
        if (in_groups) shared_chosen_by[expert] = chosen_by;
      }
    }
    has_nan = __any_sync(kWholeWarp, has_nan);
    __syncwarp();
    if (in_groups) {
      const uint32_t groups = best_groups(p, shared_chosen_by, lane);
      const int size = p.num_experts / p.num_groups;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        if (((groups >> ((lane + 32 * i) / size % 32)) & 1) == 0) keys[i] = kNotAllowed;
      }
    }

    uint32_t experts[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) experts[i] = lane + 32 * i;
    sort_lane(keys, experts);
    uint32_t id = 0;  // Of choice number `lane`.
    for (int j = 0; j < p.num_choices; ++j) {
      const uint32_t best = __reduce_max_sync(kWholeWarp, keys[0]);
      const uint32_t chosen = __reduce_min_sync(kWholeWarp, keys[0] == best ? experts[0] : kWholeWarp);
      if (lane == j) id = chosen;
      if (experts[0] == chosen) {
#pragma unroll
        for (int i = 0; i + 1 < kPerLane; ++i) keys[i] = keys[i + 1], experts[i] = experts[i + 1];
        keys[kPerLane - 1] = kNotAllowed;
      }
    }
    const float score = lane < p.num_choices ? shared_scores[id] : 0.0f;
    const float weight = weight_of(p, score, lane < p.num_choices);
    if (turn == 0 || lane >= p.num_choices) continue;
    p.expert_ids[row * p.ids_stride + lane] = static_cast<int32_t>(id);
    p.expert_weights[row * p.weights_stride + lane] = has_nan ? __uint_as_float(0x7fc00000u) : weight;
  }
}

}  // namespace

void launch_route(CUstream_st* stream, const RouteLaunch& p) {
  if (p.num_rows == 0) return;
  auto* kernel = p.num_experts <= 128   ? route_kernel<4>
                 : p.num_experts <= 256 ? route_kernel<8>
                                        : route_kernel<16>;
  launch_kernel(kernel, dim3(p.num_rows), dim3(32), 0, stream, p);
}

}  // namespace tensorfold::cuda
