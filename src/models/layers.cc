// See layers.h.
#include "models/layers.h"

#include <cmath>

namespace tensorfold {

AttentionScratch::AttentionScratch(Arena& arena, const AttentionShape& shape, DType activation_dtype,
                                   int64_t num_rows) {
  const int64_t q_size = shape.q_size(), kv_size = shape.kv_size();
  q = arena.array(DType::kF32, {num_rows, shape.has_output_gate ? 2 * q_size : q_size});
  k = arena.array(DType::kF32, {num_rows, kv_size});
  q_rotated = arena.array(activation_dtype, {num_rows, q_size});
  k_rotated = arena.array(activation_dtype, {num_rows, kv_size});
  v = arena.array(activation_dtype, {num_rows, kv_size});
  mixed = arena.array(activation_dtype, {num_rows, q_size});
}

/// Everything before o_proj: s.mixed.
void SelfAttention::mix(const BlockPass& pass, const Lease& weights, const KvPages& pages,
                        const AttentionScratch& s) const {
  const int64_t D = shape.head_dim;
  const LinearCall qkv[] = {{.out = s.q, .weight = weights[q_proj]},
                            {.out = s.k, .weight = weights[k_proj]},
                            {.out = s.v, .weight = weights[v_proj]}};
  pass.ops.linear(pass.x, qkv);
  pass.ops.qk_norm_rope({.q_out = s.q_rotated,
                         .k_out = s.k_rotated,
                         .q = s.q,
                         .k = s.k,
                         .q_norm = q_norm ? weights[q_norm] : View(),
                         .k_norm = k_norm ? weights[k_norm] : View(),
                         .norm_eps = norm_eps,
                         .cos = pass.cos,
                         .sin = pass.sin,
                         .head_dim = D,
                         .q_head_stride = shape.has_output_gate ? 2 * D : D});
  pass.ops.append_kv(pages, s.k_rotated, s.v, pass.rows);
  const float usual_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(D)));
  pass.ops.attention({.out = s.mixed,
                      .q = s.q_rotated,
                      .pages = &pages,
                      .rows = pass.rows,
                      .num_heads = shape.num_heads,
                      .scale = scale != 0 ? scale : usual_scale,
                      .window = window,
                      .sinks = sinks ? weights[sinks].row<const float>(0) : nullptr,
                      .sees_later_rows = sees_later_rows});
  if (shape.has_output_gate) pass.ops.sigmoid_mul(s.mixed, s.mixed, s.q.columns(D, s.q.dim(1) - D), D, 2 * D);
}

void SelfAttention::forward(const BlockPass& pass, const Lease& weights, const KvPages& pages,
                            const AttentionScratch& s) const {
  mix(pass, weights, pages, s);
  const LinearCall o[] = {{.out = pass.h, .weight = weights[o_proj], .accumulate = true}};
  pass.ops.linear(s.mixed, o);
}

void SelfAttention::forward_to(View out, const BlockPass& pass, const Lease& weights, const KvPages& pages,
                               const AttentionScratch& s) const {
  mix(pass, weights, pages, s);
  const LinearCall o[] = {{.out = out, .weight = weights[o_proj]}};
  pass.ops.linear(s.mixed, o);
}

SelfAttention declare_attention(WeightTable& table, int layer, const AttentionDeclaration& d) {
  const int64_t E = d.hidden_size, q_size = d.shape.q_size(), kv_size = d.shape.kv_size();
  const std::string module = d.module + ".";
  SelfAttention attention;
  attention.q_proj = table.linear(
      layer, {module + "q_proj", d.shape.has_output_gate ? 2 * q_size : q_size, E, d.has_qkv_bias});
  attention.k_proj = table.linear(layer, {module + "k_proj", kv_size, E, d.has_qkv_bias});
  attention.v_proj = table.linear(layer, {module + "v_proj", kv_size, E, d.has_qkv_bias});
  attention.o_proj = table.linear(layer, {module + "o_proj", E, q_size, d.has_o_bias});
  if (d.has_qk_norm) {
    attention.q_norm = table.vector(layer, module + "q_norm.weight", d.shape.head_dim, d.norm_offset);
    attention.k_norm = table.vector(layer, module + "k_norm.weight", d.shape.head_dim, d.norm_offset);
  }
  attention.shape = d.shape;
  attention.norm_eps = d.norm_eps;
  return attention;
}

MlpScratch::MlpScratch(Arena& arena, int64_t intermediate_size, DType activation_dtype, int64_t num_rows)
    : gate(arena.array(DType::kF32, {num_rows, intermediate_size})),
      up(arena.array(DType::kF32, {num_rows, intermediate_size})),
      product(arena.array(activation_dtype, {num_rows, intermediate_size})) {}

/// Everything before down_proj: s.product.
void Mlp::mix(const BlockPass& pass, const Lease& weights, const MlpScratch& s) const {
  if (activation.has_gate()) {
    const LinearCall gate_up[] = {{.out = s.gate, .weight = weights[gate_proj]},
                                  {.out = s.up, .weight = weights[up_proj]}};
    pass.ops.linear(pass.x, gate_up);
  } else {
    const LinearCall up[] = {{.out = s.up, .weight = weights[up_proj]}};
    pass.ops.linear(pass.x, up);
  }
  pass.ops.mlp_activation(s.product, s.gate, s.up, activation);
}

void Mlp::forward(const BlockPass& pass, const Lease& weights, const MlpScratch& s) const {
  mix(pass, weights, s);
  const LinearCall down[] = {{.out = pass.h, .weight = weights[down_proj], .accumulate = true}};
  pass.ops.linear(s.product, down);
}

void Mlp::forward_to(View out, const BlockPass& pass, const Lease& weights, const MlpScratch& s) const {
  mix(pass, weights, s);
  const LinearCall down[] = {{.out = out, .weight = weights[down_proj]}};
  pass.ops.linear(s.product, down);
}

Mlp declare_mlp(WeightTable& table, int layer, const MlpDeclaration& d) {
  const int64_t E = d.hidden_size, I = d.intermediate_size;
  Mlp mlp;
  if (d.activation.has_gate())
    mlp.gate_proj = table.linear(layer, {d.module + ".gate_proj", I, E, d.has_bias});
  mlp.up_proj = table.linear(layer, {d.module + ".up_proj", I, E, d.has_bias});
  mlp.down_proj = table.linear(layer, {d.module + ".down_proj", E, I, d.has_bias});
  mlp.activation = d.activation;
  return mlp;
}

MoeScratch::MoeScratch(Arena& arena, const MoeShape& shape, DType activation_dtype, int64_t num_rows)
    : router_logits(arena.array(DType::kF32, {num_rows, shape.num_experts})),
      expert_ids(arena.array(DType::kI32, {num_rows, shape.num_experts_per_tok})),
      expert_weights(arena.array(DType::kF32, {num_rows, shape.num_experts_per_tok})),
      shared_gate(arena.array(DType::kF32, {num_rows, 1})),
      shared_out(
          arena.array(DType::kF32, {num_rows, shape.shared_intermediate_size > 0 ? shape.hidden_size : 0})),
      latent(arena.array(activation_dtype, {num_rows, shape.latent_size})),
      latent_sum(arena.array(activation_dtype, {num_rows, shape.latent_size})),
      shared(arena, shape.shared_intermediate_size, activation_dtype, num_rows) {}

void SparseMoe::forward(const BlockPass& pass, const Lease& weights, const MoeScratch& s) const {
  LinearCall gates[2] = {{.out = s.router_logits, .weight = weights[gate]}};
  if (shared_gate) gates[1] = {.out = s.shared_gate, .weight = weights[shared_gate]};
  pass.ops.linear(pass.x, std::span(gates, shared_gate ? 2 : 1));
  pass.ops.route({.expert_ids = s.expert_ids,
                  .expert_weights = s.expert_weights,
                  .router_logits = s.router_logits,
                  .scoring = scoring,
                  .normalize = normalize,
                  .scale = scale,
                  .correction_bias = correction_bias ? weights[correction_bias] : View(),
                  .num_groups = num_groups,
                  .groups_kept = groups_kept});
  if (latent_in) {
    const LinearCall into[] = {{.out = s.latent, .weight = weights[latent_in]}};
    pass.ops.linear(pass.x, into);
  }
  ExpertsCall call = {.out = latent_in ? s.latent_sum : pass.h,
                      .x = latent_in ? s.latent : pass.x,
                      .expert_ids = s.expert_ids,
                      .expert_weights = s.expert_weights,
                      .weights = weights[experts],
                      .activation = activation,
                      .accumulate = !latent_in};
  if (shared.up_proj && !latent_in && shared.activation == activation) {
    ExpertsCall with_shared = call;
    with_shared.shared = {.gate_proj = shared.gate_proj ? weights[shared.gate_proj] : LinearWeight(),
                          .up_proj = weights[shared.up_proj],
                          .down_proj = weights[shared.down_proj],
                          .gate = shared_gate ? s.shared_gate : View()};
    if (pass.ops.takes_shared_expert(with_shared)) return pass.ops.experts(with_shared);
  }
  pass.ops.experts(call);
  if (latent_out) {
    const LinearCall out_of[] = {{.out = pass.h, .weight = weights[latent_out], .accumulate = true}};
    pass.ops.linear(s.latent_sum, out_of);
  }
  if (!shared.up_proj) return;
  if (!shared_gate) return shared.forward(pass, weights, s.shared);
  shared.forward_to(s.shared_out, pass, weights, s.shared);
  pass.ops.add_gated(pass.h, s.shared_out, s.shared_gate);
}

void keep_drafted(const BlockPass& pass, const RecurrentStates& states, int64_t first_column, View inputs) {
  const int64_t num_drafted = std::ssize(pass.drafted_rows);
  if (num_drafted == 0) return;
  const View kept = states.drafted.rows(0, num_drafted).columns(first_column, inputs.dim(1));
  pass.ops.gather_rows(kept, inputs, pass.drafted_rows);
}

void TokenEnds::embed(const BlockPass& pass, const Lease& weights, std::span<const int32_t> tokens) const {
  pass.ops.embed(pass.h, weights[token_embedding], tokens, embedding_scale);
}

void TokenEnds::logits(const BlockPass& pass, const Lease& weights, std::span<const int32_t> logit_rows,
                       View last, const Outputs& outputs) const {
  if (outputs.hidden.data != nullptr)
    pass.ops.rms_norm(outputs.hidden, pass.h, weights[final_norm], {norm_eps});
  const auto num_rows = static_cast<int64_t>(logit_rows.size());
  if (num_rows == 0) return;
  const View h = last.rows(0, num_rows);
  const View x = pass.x.rows(0, num_rows);
  pass.ops.gather_rows(h, pass.h, logit_rows);
  pass.ops.rms_norm(x, h, weights[final_norm], {norm_eps});
  const LinearCall head[] = {{.out = outputs.logits, .weight = weights[lm_head]}};
  pass.ops.linear(x, head);
}

TokenEnds declare_ends(WeightTable& table, const EndsDeclaration& d) {
  TokenEnds ends;
  ends.token_embedding = table.linear(kOutsideLayers, {d.embedding, d.vocab_size, d.hidden_size});
  ends.final_norm = table.vector(kOutsideLayers, d.final_norm, d.hidden_size, d.norm_offset);
  ends.lm_head = d.is_tied ? ends.token_embedding
                           : table.linear(kOutsideLayers, {"lm_head", d.vocab_size, d.hidden_size});
  ends.norm_eps = d.norm_eps;
  ends.embedding_scale = d.embedding_scale;
  return ends;
}

}  // namespace tensorfold
