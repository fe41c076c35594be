// The experts of each row in the router's order, one row at a time.
#include <vector>

#include "base/bf16.h"
#include "base/check.h"
#include "base/fp_env.h"
#include "ops/contract_math.h"
#include "ops/reference/reference_math.h"
#include "ops/reference/reference_ops.h"

namespace tensorfold {
namespace {

/// Space of one row: gate and up [I] f32, their product [I] in the activation dtype (f32 is the larger), down
/// [E] f32.
struct RowBuffers {
  std::vector<float> gate, up, product, down, sum;
};

void add_expert(ReferenceOps& ops, const ExpertsCall& call, size_t expert, float router_weight, View x,
                RowBuffers& buffers) {
  const LinearWeight &up = call.weights.up_proj[expert], &down = call.weights.down_proj[expert];
  const View gate_out(buffers.gate.data(), DType::kF32, {1, up.spec.out});
  const View up_out(buffers.up.data(), DType::kF32, {1, up.spec.out});
  const View product(buffers.product.data(), x.dtype, {1, up.spec.out});
  const View down_out(buffers.down.data(), DType::kF32, {1, down.spec.out});
  const LinearCall up_call[] = {{.out = up_out, .weight = up}};
  const LinearCall down_call[] = {{.out = down_out, .weight = down}};
  if (call.activation.has_gate()) {
    const LinearCall gate_call[] = {{.out = gate_out, .weight = call.weights.gate_proj[expert]}};
    ops.linear(x, gate_call);
  }
  ops.linear(x, up_call);
  ops.mlp_activation(product, gate_out, up_out, call.activation);
  ops.linear(product, down_call);
  for (size_t e = 0; e < buffers.sum.size(); ++e) {
    buffers.sum[e] = contract::fused(router_weight, buffers.down[e], buffers.sum[e]);
  }
}

}  // namespace

void ReferenceOps::experts(const ExpertsCall& call) {
  TF_DCHECK(call.shared.up_proj.data == nullptr);
  ScopedFlushDenormals flush;
  const auto intermediate = static_cast<size_t>(call.weights.up_proj[0].spec.out);
  const auto hidden = static_cast<size_t>(call.out.dim(1));
  RowBuffers buffers{std::vector<float>(intermediate), std::vector<float>(intermediate),
                     std::vector<float>(intermediate), std::vector<float>(hidden),
                     std::vector<float>(hidden)};
  for (int64_t t = 0; t < call.x.num_rows(); ++t) {
    buffers.sum.assign(hidden, 0.0f);
    for (int64_t j = 0; j < call.expert_ids.dim(1); ++j) {
      const auto expert = static_cast<size_t>(call.expert_ids.row<int32_t>(t)[j]);
      add_expert(*this, call, expert, call.expert_weights.row<float>(t)[j], call.x.rows(t, 1), buffers);
    }
    for (size_t e = 0; e < hidden; ++e) {
      const auto column = static_cast<int64_t>(e);
      const float before = call.accumulate ? reference::load(call.out, t, column) : 0.0f;
      reference::store(call.out, t, column, call.accumulate ? before + buffers.sum[e] : buffers.sum[e]);
    }
  }
}

}  // namespace tensorfold
