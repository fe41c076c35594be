// The blocks that families are built of: attention, SwiGLU MLP, sparse mixture of experts, and the embedding
// and head at the two ends. A block holds the handles of its weights and its shape; its forward reads like
// the paper's formula. The families bind the weights (names and shapes differ) and decide what follows what.
#pragma once

#include <cstdint>

#include "base/arena.h"
#include "base/view.h"
#include "memory/weights.h"
#include "models/model.h"
#include "models/rope.h"
#include "ops/ops.h"

namespace tensorfold {

/// What the blocks of one pass work on. Views are scratch of the pass, on the device.
struct BlockPass {
  Ops& ops;
  RowBatch rows;
  View h;    ///< [T, E] f32: the residual stream, which a block adds to.
  View x;    ///< [T, E] activation dtype: the block's input, normalized.
  View cos;  ///< [T, R/2] f32: rotary angles of the rows.
  View sin;  ///< [T, R/2] f32.
};

/// The heads of the attention layers of a model.
struct AttentionShape {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
};

struct AttentionScratch {
  View q, k;                  ///< [T, H*D], [T, K*D] f32: as projected.
  View q_rotated, k_rotated;  ///< The same in the activation dtype, after norm and rope.
  View v;                     ///< [T, K*D] activation dtype.
  View mixed;                 ///< [T, H*D] activation dtype: the heads' outputs.

  AttentionScratch(Arena& arena, const AttentionShape& shape, DType activation_dtype, int64_t num_rows);
};

/// Grouped-query attention with rotary positions (Vaswani et al. 2017; Su et al. 2021; Ainslie et al. 2023).
struct SelfAttention {
  LinearId q_proj, k_proj, v_proj, o_proj;
  VectorId q_norm, k_norm;  ///< Per head, before the rotation; none in Llama and Qwen2.
  AttentionShape shape;
  float norm_eps = 0;
  int64_t window = 0;  ///< Keys a row sees, itself included; 0: all.

  /// Appends the rows' keys and values to `pages` and adds the attention's output to pass.h.
  void forward(const BlockPass& pass, const Lease& weights, const KvPages& pages,
               const AttentionScratch& s) const;
};

struct MlpScratch {
  View gate, up;  ///< [T, I] f32.
  View product;   ///< [T, I] activation dtype.

  MlpScratch(Arena& arena, int64_t intermediate_size, DType activation_dtype, int64_t num_rows);
};

/// down_proj(silu(gate_proj x) * up_proj x) (Shazeer 2020, arXiv:2002.05202).
struct SwiGlu {
  LinearId gate_proj, up_proj, down_proj;

  void forward(const BlockPass& pass, const Lease& weights, const MlpScratch& s) const;
};

struct MoeScratch {
  View router_logits;   ///< [T, X] f32.
  View expert_ids;      ///< [T, k] i32.
  View expert_weights;  ///< [T, k] f32.

  MoeScratch(Arena& arena, int64_t num_experts, int64_t num_experts_per_tok, int64_t num_rows);
};

/// The experts that a softmax router finds best, weighted and summed (Shazeer et al. 2017, arXiv:1701.06538).
struct SparseMoe {
  LinearId gate;  ///< The router [X, E].
  ExpertsId experts;
  bool normalize = false;  ///< norm_topk_prob.

  void forward(const BlockPass& pass, const Lease& weights, const MoeScratch& s) const;
};

/// Embedding, final norm and head. Outside the layers.
struct TokenEnds {
  LinearId token_embedding;
  VectorId final_norm;
  LinearId lm_head;  ///< The embedding itself when tied.
  float norm_eps = 0;
  float embedding_scale = 1;

  void embed(const BlockPass& pass, const Lease& weights, std::span<const int32_t> tokens) const;

  /// Final norm and head: the outputs that are wanted. `last` [T, E] f32 is scratch; pass.x is overwritten.
  void logits(const BlockPass& pass, const Lease& weights, std::span<const int32_t> logit_rows, View last,
              const Outputs& outputs) const;
};

}  // namespace tensorfold
