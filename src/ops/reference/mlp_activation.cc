// mlp_activation, sigmoid_mul and add_gated by their formulas in ops.h.
#include "base/fp_env.h"
#include "ops/reference/reference_math.h"
#include "ops/reference/reference_ops.h"

namespace tensorfold {
namespace {

float activate(const MlpActivation& activation, float gate, float up) {
  switch (activation.kind) {
    case MlpActivation::Kind::kSilu:
      return silu_f32(gate) * up;
    case MlpActivation::Kind::kGeluTanh:
      return gelu_tanh_f32(gate) * up;
    case MlpActivation::Kind::kClampedSilu: {
      const float g = gate > activation.limit ? activation.limit : gate;
      const float raised = up < -activation.limit ? -activation.limit : up;
      const float u = raised > activation.limit ? activation.limit : raised;
      return (u + 1.0f) * (g * sigmoid_f32(activation.alpha * g));
    }
    case MlpActivation::Kind::kRelu2: {
      const float r = up < 0.0f ? 0.0f : up;
      return r * r;
    }
  }
  return 0.0f;
}

}  // namespace

void ReferenceOps::mlp_activation(View out, View gate, View up, const MlpActivation& activation) {
  ScopedFlushDenormals flush;
  for (int64_t t = 0; t < out.dim(0); ++t) {
    for (int64_t i = 0; i < out.dim(1); ++i) {
      const float g = activation.has_gate() ? reference::load(gate, t, i) : 0.0f;
      reference::store(out, t, i, activate(activation, g, reference::load(up, t, i)));
    }
  }
}

void ReferenceOps::sigmoid_mul(View out, View x, View gate, int64_t head_dim, int64_t gate_head_stride) {
  ScopedFlushDenormals flush;
  for (int64_t t = 0; t < out.dim(0); ++t) {
    for (int64_t i = 0; i < out.dim(1); ++i) {
      const float g = gate.row<const float>(t)[i / head_dim * gate_head_stride + i % head_dim];
      reference::store(out, t, i, reference::load(x, t, i) * sigmoid_f32(g));
    }
  }
}

void ReferenceOps::add_gated(View out, View x, View gate) {
  ScopedFlushDenormals flush;
  for (int64_t t = 0; t < out.dim(0); ++t) {
    const float g = sigmoid_f32(gate.row<const float>(t)[0]);
    for (int64_t e = 0; e < out.dim(1); ++e) {
      float& sum = out.row<float>(t)[e];
      sum = contract::fused(g, x.row<const float>(t)[e], sum);
    }
  }
}

}  // namespace tensorfold
