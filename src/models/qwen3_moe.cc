// Qwen3-MoE (Qwen3MoeForCausalLM): Qwen3 with a softmax router and experts in place of most MLPs
// (Qwen Team 2025, arXiv:2505.09388). Facts: specs/llama.md §5.
#include <fmt/format.h>

#include "models/config_rules.h"
#include "models/layers.h"
#include "models/registry.h"

namespace tensorfold {
namespace {

struct Qwen3MoeConfig {
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t moe_intermediate_size = 0;
  int64_t num_experts = 0;
  int64_t num_experts_per_tok = 0;
  bool norm_topk_prob = false;  ///< The chosen experts' weights are divided by their sum.
  std::vector<bool> is_sparse;  ///< Of each layer: experts, or an MLP of intermediate_size.
  int64_t vocab_size = 0;
  HeadCounts heads;
  float rms_norm_eps = 0;
  bool attention_bias = false;  ///< On q, k, v and o.
  bool is_tied = false;
  std::vector<int64_t> windows;  ///< Of each layer; 0: all keys.
  int64_t max_position_embeddings = 0;
  RopeConfig rope;
};

/// The expert keys. The count is `num_experts` in published files, `num_local_experts` in those of
/// Transformers 5.
void read_experts(ConfigReader& reader, Qwen3MoeConfig& c) {
  c.num_experts = reader.positive_int(reader.has("num_experts") ? "num_experts" : "num_local_experts");
  c.num_experts_per_tok = reader.positive_int("num_experts_per_tok");
  if (c.num_experts_per_tok > c.num_experts)
    reader.fail(StatusCode::kCorrupt, "num_experts_per_tok",
                fmt::format("expected at most {}", c.num_experts));
  c.moe_intermediate_size = reader.positive_int("moe_intermediate_size");
  c.norm_topk_prob = reader.boolean("norm_topk_prob", false);
  const int64_t step = reader.positive_int("decoder_sparse_step", 1);
  for (int64_t i = 0; i < c.num_layers; ++i) c.is_sparse.push_back((i + 1) % step == 0);
  for (int64_t dense : reader.int_list("mlp_only_layers"))
    if (dense < c.num_layers) c.is_sparse[dense] = false;
}

Result<Qwen3MoeConfig> read_config(const ModelSource& source) {
  ConfigReader reader = source.config.reader();
  Qwen3MoeConfig c;
  c.num_layers = read_num_layers(reader);
  c.hidden_size = reader.positive_int("hidden_size");
  c.intermediate_size = reader.positive_int("intermediate_size");
  read_experts(reader, c);
  c.vocab_size = reader.positive_int("vocab_size");
  c.heads = read_head_counts(reader, c.hidden_size);
  c.rms_norm_eps = read_rms_norm_eps(reader);
  c.attention_bias = reader.boolean("attention_bias", false);
  c.windows = read_windows(reader, c.num_layers, /*first_windowed=*/0);
  c.is_tied = read_tied(reader, source.table);
  c.max_position_embeddings = reader.positive_int("max_position_embeddings", 32768);
  c.rope = read_full_width_rope(reader);
  require_silu(reader);
  if (!reader.status().ok()) return reader.status();
  return c;
}

struct Qwen3MoeLayer {
  VectorId input_norm;
  SelfAttention attention;
  VectorId post_attention_norm;
  SparseMoe moe;  ///< Either this, or
  Mlp mlp;     ///< this.
};

Qwen3MoeLayer declare_layer(const Qwen3MoeConfig& c, int i, WeightTable& table) {
  const int64_t E = c.hidden_size, I = c.intermediate_size;
  const int64_t q_size = c.heads.num_heads * c.heads.head_dim;
  const int64_t kv_size = c.heads.num_kv_heads * c.heads.head_dim;
  const std::string layer = fmt::format("layers.{}.", i);
  const std::string attention = layer + "self_attn.", mlp = layer + "mlp.";
  Qwen3MoeLayer l;
  l.input_norm = table.vector(i, layer + "input_layernorm.weight", E);
  l.attention.q_proj = table.linear(i, {attention + "q_proj", q_size, E, c.attention_bias});
  l.attention.k_proj = table.linear(i, {attention + "k_proj", kv_size, E, c.attention_bias});
  l.attention.v_proj = table.linear(i, {attention + "v_proj", kv_size, E, c.attention_bias});
  l.attention.o_proj = table.linear(i, {attention + "o_proj", E, q_size, c.attention_bias});
  l.attention.q_norm = table.vector(i, attention + "q_norm.weight", c.heads.head_dim);
  l.attention.k_norm = table.vector(i, attention + "k_norm.weight", c.heads.head_dim);
  l.post_attention_norm = table.vector(i, layer + "post_attention_layernorm.weight", E);
  if (c.is_sparse[i]) {
    l.moe.gate = table.linear(i, {mlp + "gate", c.num_experts, E});
    l.moe.experts = table.experts(i, {.module = layer + "mlp",
                                      .num_experts = c.num_experts,
                                      .hidden_size = E,
                                      .intermediate_size = c.moe_intermediate_size,
                                      .num_experts_per_tok = c.num_experts_per_tok});
    l.moe.normalize = c.norm_topk_prob;
  } else {
    l.mlp.gate_proj = table.linear(i, {mlp + "gate_proj", I, E});
    l.mlp.up_proj = table.linear(i, {mlp + "up_proj", I, E});
    l.mlp.down_proj = table.linear(i, {mlp + "down_proj", E, I});
  }
  l.attention.shape = {c.heads.num_heads, c.heads.num_kv_heads, c.heads.head_dim};
  l.attention.norm_eps = c.rms_norm_eps;
  l.attention.window = c.windows[i];
  return l;
}

TokenEnds declare_ends(const Qwen3MoeConfig& c, WeightTable& table) {
  TokenEnds ends;
  ends.token_embedding = table.linear(kOutsideLayers, {"embed_tokens", c.vocab_size, c.hidden_size});
  ends.final_norm = table.vector(kOutsideLayers, "norm.weight", c.hidden_size);
  ends.lm_head = c.is_tied ? ends.token_embedding
                           : table.linear(kOutsideLayers, {"lm_head", c.vocab_size, c.hidden_size});
  ends.norm_eps = c.rms_norm_eps;
  return ends;
}

/// Scratch of one pass.
struct Scratch {
  View h;         ///< [T, E] f32: the residual stream.
  View x;         ///< [T, E] activation dtype: its normalized copy.
  View last;      ///< [T, E] f32: the rows whose logits are wanted.
  View cos, sin;  ///< [T, R/2] f32.
  AttentionScratch attention;
  MlpScratch mlp;
  MoeScratch moe;

  Scratch(Arena& arena, const Qwen3MoeConfig& c, const Rotary& rotary, DType dtype, int64_t T)
      : h(arena.array(DType::kF32, {T, c.hidden_size})),
        x(arena.array(dtype, {T, c.hidden_size})),
        last(arena.array(DType::kF32, {T, c.hidden_size})),
        cos(arena.array(DType::kF32, {T, rotary.num_pairs()})),
        sin(arena.array(DType::kF32, {T, rotary.num_pairs()})),
        attention(arena, {c.heads.num_heads, c.heads.num_kv_heads, c.heads.head_dim}, dtype, T),
        mlp(arena, c.intermediate_size, dtype, T),
        moe(arena, {c.hidden_size, c.num_experts, c.num_experts_per_tok}, dtype, T) {}
};

class Qwen3Moe final : public Model {
 public:
  Qwen3Moe(Qwen3MoeConfig config, Rotary rotary, ModelSpec spec, WeightTable& table)
      : config_(std::move(config)), rotary_(std::move(rotary)), spec_(std::move(spec)) {
    ends_ = declare_ends(config_, table);
    for (int i = 0; i < config_.num_layers; ++i) layers_.push_back(declare_layer(config_, i, table));
    table.expect_absent(fmt::format("layers.{}.input_layernorm.weight", config_.num_layers),
                        fmt::format("num_hidden_layers = {}", config_.num_layers));
  }

  const ModelSpec& spec() const override { return spec_; }
  const TokenEnds* token_ends() const override { return &ends_; }

  int64_t scratch_bytes(int64_t num_rows) const override {
    Arena measure(nullptr, 0);
    Scratch(measure, config_, rotary_, spec_.activation_dtype, num_rows);
    return measure.used_bytes();
  }

  void forward(const Pass& pass, Ops& ops, Weights& weights, const State& state, Arena& scratch,
               const Outputs& outputs) const override {
    const Scratch s(scratch, config_, rotary_, spec_.activation_dtype, pass.rows.num_rows());
    const BlockPass block{ops, pass.rows, s.h, s.x, s.cos, s.sin};
    const RmsNormOptions norm{config_.rms_norm_eps};

    ends_.embed(block, weights.outside_layers(), pass.tokens);
    ops.rope_table(s.cos, s.sin, pass.rows.positions, rotary_.inv_freq, rotary_.multiplier);
    for (size_t i = 0; i < layers_.size(); ++i) {
      const Qwen3MoeLayer& layer = layers_[i];
      const Lease w = weights.layer(static_cast<int>(i));
      ops.rms_norm(s.x, s.h, w[layer.input_norm], norm);
      layer.attention.forward(block, w, state.kv_layers[i], s.attention);
      ops.rms_norm(s.x, s.h, w[layer.post_attention_norm], norm);
      if (layer.moe.experts) {
        layer.moe.forward(block, w, s.moe);
      } else {
        layer.mlp.forward(block, w, s.mlp);
      }
      outputs.taps.take(ops, i, s.h);
    }
    ends_.logits(block, weights.outside_layers(), pass.logit_rows, s.last, outputs);
  }

 private:
  Qwen3MoeConfig config_;
  Rotary rotary_;
  ModelSpec spec_;
  TokenEnds ends_;
  std::vector<Qwen3MoeLayer> layers_;
};

}  // namespace

Result<std::unique_ptr<Model>> make_qwen3_moe(const ModelSource& source) {
  TF_ASSIGN_OR_RETURN(Qwen3MoeConfig c, read_config(source));
  TF_ASSIGN_OR_RETURN(const ContextLengths lengths,
                      choose_context(c.max_position_embeddings, source.options.context_tokens, c.rope.kind));
  TF_ASSIGN_OR_RETURN(Rotary rotary, make_rotary(c.rope, {c.heads.head_dim, c.max_position_embeddings,
                                                          lengths.context_tokens}));
  ModelSpec spec;
  spec.model_type = source.config.model_type;
  spec.num_layers = c.num_layers;
  spec.hidden_size = c.hidden_size;
  spec.vocab_size = c.vocab_size;
  spec.max_position_embeddings = lengths.max_position_embeddings;
  spec.activation_dtype = activation_dtype(source.config, source.options.compute_f32);
  spec.kv_layers.assign(c.num_layers, {c.heads.num_kv_heads, c.heads.head_dim, spec.activation_dtype});
  for (int64_t i = 0; i < c.num_layers; ++i) {
    spec.layers.push_back({attention_kind(c.windows[i]), c.is_sparse[i] ? MlpKind::kExperts : MlpKind::kDense});
  }
  return std::unique_ptr<Model>(new Qwen3Moe(std::move(c), std::move(rotary), std::move(spec), source.table));
}

}  // namespace tensorfold
