// What the kernels of experts() share: which task a block has, the rows of x it reads, and what becomes of a
// finished output. Words: ops/cuda/experts_params.h.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/device/activation.cuh"
#include "ops/cuda/device/async.cuh"
#include "ops/cuda/device/launch.cuh"
#include "ops/cuda/device/linear_operand.cuh"
#include "ops/cuda/experts_params.h"

namespace tensorfold::cuda {

/// The products of one launch: a parameter, not a template's, so that there is one kernel a layout.
enum class ExpertStage : int {
  kGateUp,  ///< Both, and the activation.
  kGate,    ///< Alone, its outputs kept for kUp.
  kUp,      ///< And the activation, of kGate's outputs too where there are any.
  kDown,
};

__host__ __device__ __forceinline__ const ExpertProduct& product_of(const ExpertsLaunch& p,
                                                                    ExpertStage stage) {
  return stage == ExpertStage::kDown ? p.out_of : stage == ExpertStage::kGate ? p.into_gate : p.into;
}
/// The only or the first projection of a stage; kGateUp has up as well.
__device__ __forceinline__ const ExpertMatrices& matrices_of(const ExpertsLaunch& p, ExpertStage stage) {
  return stage == ExpertStage::kDown ? p.down : stage == ExpertStage::kUp ? p.up : p.gate;
}

/// Whether tasks are pairs, task i number i.
__device__ __forceinline__ bool are_pairs(const ExpertsLaunch& p) {
  return p.kind == ExpertTasks::kOneRow || p.kind == ExpertTasks::kPairs;
}

/// Task `index`, of no pairs where there are fewer.
__device__ __forceinline__ ExpertTask task_at(const ExpertsLaunch& p, int index) {
  if (has_shared(p) && index == p.num_choices) return {kSharedExpertId, index, 1};
  if (are_pairs(p)) {
    const int row = p.kind == ExpertTasks::kOneRow ? 0 : index / p.num_choices;
    return {load_written(p.expert_ids + row * p.ids_stride + index - row * p.num_choices), index, 1};
  }
  const int32_t* at =
      &p.tasks[index].expert;  // There is room for as many as there are blocks: no need to wait.
  const ExpertTask task = {load_written(at), load_written(at + 1), load_written(at + 2)};
  return index < load_written(p.num_tasks) ? task : ExpertTask{0, 0, 0};
}

/// The number of a task's pair.
__device__ __forceinline__ int pair_at(const ExpertsLaunch& p, const ExpertTask& task, int i) {
  return are_pairs(p) ? task.first + i : load_written(p.pairs + task.first + i);
}

/// The bf16 that a pair's product is of.
__device__ __forceinline__ const __nv_bfloat16* x_of_pair(const ExpertsLaunch& p, ExpertStage stage,
                                                          int pair) {
  if (stage == ExpertStage::kDown)
    return reinterpret_cast<const __nv_bfloat16*>(p.product) + pair * p.product_stride;
  const int row = p.kind == ExpertTasks::kOneRow ? 0 : pair / p.num_choices;
  return reinterpret_cast<const __nv_bfloat16*>(p.x) + row * p.x_stride;
}

__device__ __forceinline__ const std::byte* matrix_of(const ExpertMatrices& matrices, int expert) {
  return expert == kSharedExpertId ? matrices.shared : matrices.data + expert * matrices.stride_bytes;
}

/// The bias of an expert's output; 0 where there is none (not to be added: -0 + 0 is +0).
__device__ __forceinline__ float bias_of(const ExpertMatrices& matrices, int expert, int column) {
  if (matrices.bias == nullptr) return 0.0f;
  const auto* bias = reinterpret_cast<const float*>(reinterpret_cast<const std::byte*>(matrices.bias) +
                                                    expert * matrices.stride_bytes);
  return __ldg(bias + column);
}
/// A product's output and its bias, which bias_of() gave.
__device__ __forceinline__ float with_bias(const ExpertMatrices& matrices, float bias, float sum) {
  return matrices.bias == nullptr ? sum : __fadd_rn(sum, bias);
}
__device__ __forceinline__ float with_bias(const ExpertMatrices& matrices, int expert, int column,
                                           float sum) {
  return with_bias(matrices, bias_of(matrices, expert, column), sum);
}

/// Ops::mlp_activation() of one element.
__device__ __forceinline__ float activate(const ExpertsLaunch& p, float gate, float up) {
  switch (p.activation) {
    case ExpertActivation::kSilu:
      return silu_mul(gate, up);
    case ExpertActivation::kGeluTanh:
      return gelu_tanh_mul(gate, up);
    case ExpertActivation::kClampedSilu:
      return clamped_silu_mul(gate, up, p.activation_alpha, p.activation_limit);
    case ExpertActivation::kRelu2:
      return relu_squared(up);
  }
  return 0.0f;
}

/// Stores output `column` of a pair: `sum` of the stage's matrix (`up_sum` beside gate's), without its bias.
/// kUp finds gate's output where a thread of the previous kernel stored it.
__device__ __forceinline__ void finish_output(const ExpertsLaunch& p, ExpertStage stage, int expert, int pair,
                                              int column, float sum, float up_sum) {
  sum = with_bias(matrices_of(p, stage), expert, column, sum);
  if (stage == ExpertStage::kDown) {
    p.down_sums[pair * p.down_stride + column] = sum;
    return;
  }
  const int64_t at = pair * p.product_stride + column;
  if (stage == ExpertStage::kGate) {
    p.gate_sums[at] = sum;
    return;
  }
  float gate = sum, up = sum;
  if (stage == ExpertStage::kGateUp) up = with_bias(p.up, expert, column, up_sum);
  if (stage == ExpertStage::kUp && p.gate_sums != nullptr) gate = load_written(p.gate_sums + at);
  reinterpret_cast<__nv_bfloat16*>(p.product)[at] = __float2bfloat16_rn(activate(p, gate, up));
}

/// Stores column `column` of one row: y, its choices' weighted outputs, onto `before` where it accumulates,
/// and the shared expert's output of_shared() (where there is one), scaled by the sigmoid of `shared_gate`
/// (where that is).
template <class OfShared>
__device__ __forceinline__ void store_row_output(const ExpertsLaunch& p, int column, float y, float before,
                                                 const OfShared& of_shared, float shared_gate) {
  if (p.out_is_bf16) {
    static_cast<__nv_bfloat16*>(p.out)[column] = __float2bfloat16_rn(y);
    return;
  }
  if (p.accumulate) y = __fadd_rn(before, y);
  // As add_gated(), or as linear() where there is no gate.
  if (has_shared(p)) {
    const float shared = of_shared();
    y = p.shared_gate != nullptr ? __fmaf_rn(sigmoid_f32(shared_gate), shared, y) : __fadd_rn(y, shared);
  }
  static_cast<float*>(p.out)[column] = y;
}

}  // namespace tensorfold::cuda
