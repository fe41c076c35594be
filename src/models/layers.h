// The blocks that families are built of: attention, MLP, sparse mixture of experts, and the embedding
// and head at the two ends. A block holds the handles of its weights and its shape; its forward reads like
// the paper's formula. The families bind the weights (names and shapes differ) and decide what follows what.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/arena.h"
#include "base/view.h"
#include "memory/weight_table.h"
#include "memory/weights.h"
#include "models/model.h"
#include "models/rope.h"
#include "ops/ops.h"

namespace tensorfold {

/// What the blocks of one pass work on. Views are scratch of the pass, on the device.
struct BlockPass {
  Ops& ops;
  RowBatch rows;
  View h;                                      ///< [T, E] f32: the residual stream, which a block adds to.
  View x;                                      ///< [T, E] activation dtype: the block's input, normalized.
  View cos;                                    ///< [T, R/2] f32: rotary angles of the rows.
  View sin;                                    ///< [T, R/2] f32.
  std::span<const int32_t> drafted_rows = {};  ///< As Pass.
};

/// What the commit of a recurrent block works on.
struct CommitPass {
  Ops& ops;
  RowBatch accepted;  ///< As Model::commit.
};

/// Copies inputs of the drafted rows to their place in states.drafted: `inputs` [T, n] f32 to columns
/// [first_column, first_column + n).
void keep_drafted(const BlockPass& pass, const RecurrentStates& states, int64_t first_column, View inputs);

/// The heads of an attention layer.
struct AttentionShape {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  bool has_output_gate = false;  ///< q_proj gives, head by head, the queries and then a gate.

  int64_t q_size() const { return num_heads * head_dim; }
  int64_t kv_size() const { return num_kv_heads * head_dim; }
};

struct AttentionScratch {
  View q, k;                  ///< [T, H*D] (twice that with gates), [T, K*D] f32: as projected.
  View q_rotated, k_rotated;  ///< [T, H*D], [T, K*D] activation dtype, after norm and rope.
  View v;                     ///< [T, K*D] activation dtype.
  View mixed;                 ///< [T, H*D] activation dtype: the heads' outputs.

  AttentionScratch(Arena& arena, const AttentionShape& shape, DType activation_dtype, int64_t num_rows);
};

/// Grouped-query attention with rotary positions (Vaswani et al. 2017; Su et al. 2021; Ainslie et al. 2023).
struct SelfAttention {
  LinearId q_proj, k_proj, v_proj, o_proj;
  VectorId q_norm, k_norm;  ///< Per head, before the rotation; none in Llama and Qwen2.
  VectorId sinks;           ///< A logit per head that takes part in the softmax; GPT-OSS.
  AttentionShape shape;
  float norm_eps = 0;
  float scale = 0;               ///< Of q.k; 0: 1/sqrt(head_dim).
  int64_t window = 0;            ///< Keys a row sees, itself included; 0: all.
  bool sees_later_rows = false;  ///< As AttentionCall.

  /// Appends the rows' keys and values to `pages` and adds the attention's output to pass.h.
  void forward(const BlockPass& pass, const Lease& weights, const KvPages& pages,
               const AttentionScratch& s) const;

  /// The same, into `out` [T, E] f32: for families that norm what a block gives.
  void forward_to(View out, const BlockPass& pass, const Lease& weights, const KvPages& pages,
                  const AttentionScratch& s) const;

 private:
  void mix(const BlockPass& pass, const Lease& weights, const KvPages& pages,
           const AttentionScratch& s) const;
};

struct AttentionDeclaration {
  std::string module;  ///< "layers.3.self_attn".
  int64_t hidden_size = 0;
  AttentionShape shape;
  bool has_qkv_bias = false;
  bool has_o_bias = false;
  bool has_qk_norm = false;
  float norm_offset = 0;  ///< Added to q_norm and k_norm: 1 where they are stored around zero.
  float norm_eps = 0;
};

/// Binds {q,k,v,o}_proj and q_norm, k_norm.
SelfAttention declare_attention(WeightTable& table, int layer, const AttentionDeclaration& declaration);

struct MlpScratch {
  View gate, up;  ///< [T, I] f32.
  View product;   ///< [T, I] activation dtype.

  MlpScratch(Arena& arena, int64_t intermediate_size, DType activation_dtype, int64_t num_rows);
};

/// down_proj(activation(gate_proj x, up_proj x)); with SiLU the SwiGLU of Shazeer 2020 (arXiv:2002.05202).
struct Mlp {
  LinearId gate_proj, up_proj, down_proj;  ///< No gate_proj where the activation has no gate.
  MlpActivation activation;

  /// Adds its output to pass.h.
  void forward(const BlockPass& pass, const Lease& weights, const MlpScratch& s) const;

  /// The same, into `out` [T, E] f32.
  void forward_to(View out, const BlockPass& pass, const Lease& weights, const MlpScratch& s) const;

 private:
  void mix(const BlockPass& pass, const Lease& weights, const MlpScratch& s) const;
};

struct MlpDeclaration {
  std::string module;  ///< "layers.3.mlp".
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  MlpActivation activation = {};
  bool has_bias = false;
};

/// Binds {gate,up,down}_proj.
Mlp declare_mlp(WeightTable& table, int layer, const MlpDeclaration& declaration);

/// What the scratch of a mixture depends on.
struct MoeShape {
  int64_t hidden_size = 0;
  int64_t num_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t shared_intermediate_size = 0;  ///< Of the shared expert; 0: none.
  int64_t latent_size = 0;               ///< Space in which the experts work; 0: that of the residual stream.
};

struct MoeScratch {
  View router_logits;   ///< [T, X] f32.
  View expert_ids;      ///< [T, k] i32.
  View expert_weights;  ///< [T, k] f32.
  View shared_gate;     ///< [T, 1] f32.
  View shared_out;      ///< [T, E] f32.
  View latent;          ///< [T, latent_size] activation dtype.
  View latent_sum;      ///< The same.
  MlpScratch shared;

  MoeScratch(Arena& arena, const MoeShape& shape, DType activation_dtype, int64_t num_rows);
};

/// The experts that a router finds best, weighted and summed (Shazeer et al. 2017, arXiv:1701.06538), and
/// where the family has it one more that every token goes through.
struct SparseMoe {
  LinearId gate;             ///< The router [X, E].
  VectorId correction_bias;  ///< [X], for choosing only.
  ExpertsId experts;
  MlpActivation activation;
  RouterScoring scoring = RouterScoring::kSoftmax;
  bool normalize = false;  ///< norm_topk_prob.
  float scale = 1;         ///< routed_scaling_factor.
  int64_t num_groups = 1;
  int64_t groups_kept = 1;
  Mlp shared;                      ///< The shared expert, if shared.up_proj.
  LinearId shared_gate;            ///< [1, E]: its output is scaled by the sigmoid of this.
  LinearId latent_in, latent_out;  ///< Into and out of the space of the experts.

  /// Adds its output to pass.h.
  void forward(const BlockPass& pass, const Lease& weights, const MoeScratch& s) const;
};

/// Embedding, final norm and head. Outside the layers.
struct TokenEnds {
  LinearId token_embedding;
  VectorId final_norm;
  LinearId lm_head;  ///< The embedding itself when tied.
  float norm_eps = 0;
  float embedding_scale = 1;

  /// pass.h = the tokens' embeddings.
  void embed(const BlockPass& pass, const Lease& weights, std::span<const int32_t> tokens) const;

  /// Final norm and head: the outputs that are wanted. `last` [T, E] f32 is scratch; pass.x is overwritten.
  void logits(const BlockPass& pass, const Lease& weights, std::span<const int32_t> logit_rows, View last,
              const Outputs& outputs) const;
};

struct EndsDeclaration {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  bool is_tied = false;
  float norm_eps = 0;
  float norm_offset = 0;
  float embedding_scale = 1;
  std::string embedding = "embed_tokens";
  std::string final_norm = "norm.weight";
};

/// Binds the embedding, the final norm and lm_head.
TokenEnds declare_ends(WeightTable& table, const EndsDeclaration& declaration);

}  // namespace tensorfold
