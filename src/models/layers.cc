// See layers.h.
#include "models/layers.h"

#include <cmath>

namespace tensorfold {

AttentionScratch::AttentionScratch(Arena& arena, const AttentionShape& shape, DType activation_dtype,
                                   int64_t num_rows) {
  const int64_t q_size = shape.num_heads * shape.head_dim;
  const int64_t kv_size = shape.num_kv_heads * shape.head_dim;
  q = arena.array(DType::kF32, {num_rows, q_size});
  k = arena.array(DType::kF32, {num_rows, kv_size});
  q_rotated = arena.array(activation_dtype, {num_rows, q_size});
  k_rotated = arena.array(activation_dtype, {num_rows, kv_size});
  v = arena.array(activation_dtype, {num_rows, kv_size});
  mixed = arena.array(activation_dtype, {num_rows, q_size});
}

void SelfAttention::forward(const BlockPass& pass, const Lease& weights, const KvPages& pages,
                            const AttentionScratch& s) const {
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
                         .head_dim = shape.head_dim});
  pass.ops.append_kv(pages, s.k_rotated, s.v, pass.rows);
  pass.ops.attention({.out = s.mixed,
                      .q = s.q_rotated,
                      .pages = &pages,
                      .rows = pass.rows,
                      .num_heads = shape.num_heads,
                      .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim))),
                      .window = window});
  const LinearCall o[] = {{.out = pass.h, .weight = weights[o_proj], .accumulate = true}};
  pass.ops.linear(s.mixed, o);
}

MlpScratch::MlpScratch(Arena& arena, int64_t intermediate_size, DType activation_dtype, int64_t num_rows)
    : gate(arena.array(DType::kF32, {num_rows, intermediate_size})),
      up(arena.array(DType::kF32, {num_rows, intermediate_size})),
      product(arena.array(activation_dtype, {num_rows, intermediate_size})) {}

void SwiGlu::forward(const BlockPass& pass, const Lease& weights, const MlpScratch& s) const {
  const LinearCall gate_up[] = {{.out = s.gate, .weight = weights[gate_proj]},
                                {.out = s.up, .weight = weights[up_proj]}};
  pass.ops.linear(pass.x, gate_up);
  pass.ops.mlp_activation(s.product, s.gate, s.up, {});
  const LinearCall down[] = {{.out = pass.h, .weight = weights[down_proj], .accumulate = true}};
  pass.ops.linear(s.product, down);
}

MoeScratch::MoeScratch(Arena& arena, int64_t num_experts, int64_t num_experts_per_tok, int64_t num_rows)
    : router_logits(arena.array(DType::kF32, {num_rows, num_experts})),
      expert_ids(arena.array(DType::kI32, {num_rows, num_experts_per_tok})),
      expert_weights(arena.array(DType::kF32, {num_rows, num_experts_per_tok})) {}

void SparseMoe::forward(const BlockPass& pass, const Lease& weights, const MoeScratch& s) const {
  const LinearCall router[] = {{.out = s.router_logits, .weight = weights[gate]}};
  pass.ops.linear(pass.x, router);
  pass.ops.route({.expert_ids = s.expert_ids,
                  .expert_weights = s.expert_weights,
                  .router_logits = s.router_logits,
                  .normalize = normalize});
  pass.ops.experts({.out = pass.h,
                    .x = pass.x,
                    .expert_ids = s.expert_ids,
                    .expert_weights = s.expert_weights,
                    .weights = weights[experts]});
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

}  // namespace tensorfold
