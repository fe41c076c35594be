// The functions between the matrices of an MLP, by their formulas in ops.h (Ops::mlp_activation).
#pragma once

#include "ops/contract_math.h"

namespace tensorfold::cuda {

TF_CONTRACT_FUNCTION float silu_mul(float gate, float up) { return silu_f32(gate) * up; }

TF_CONTRACT_FUNCTION float gelu_tanh_mul(float gate, float up) { return gelu_tanh_f32(gate) * up; }

TF_CONTRACT_FUNCTION float clamped_silu_mul(float gate, float up, float alpha, float limit) {
  const float g = gate > limit ? limit : gate;
  const float raised = up < -limit ? -limit : up;
  const float u = raised > limit ? limit : raised;
  return (u + 1.0f) * (g * sigmoid_f32(alpha * g));
}

TF_CONTRACT_FUNCTION float relu_squared(float up) {
  const float r = up < 0.0f ? 0.0f : up;
  return r * r;
}

}  // namespace tensorfold::cuda
