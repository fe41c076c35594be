// GLM-4.5 to 4.7 (Glm4MoeForCausalLM): grouped-query attention that rotates a part of each head, dense layers
// first, then experts by a sigmoid router in groups with a shared one (GLM-4.5 Team 2025, arXiv:2508.06471).
// With the head that drafts (MTP), where the checkpoint has it. Facts: specs/glm.md §1.1, §2, §3 and §7.
#include <fmt/format.h>

#include "models/config_rules.h"
#include "models/layers.h"
#include "models/registry.h"

namespace tensorfold {
namespace {

struct Glm4MoeConfig {
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;  ///< Of the dense layers.
  int64_t num_dense_layers = 0;   ///< first_k_dense_replace.
  MoeShape moe;
  int64_t moe_intermediate_size = 0;
  int64_t num_groups = 1;
  int64_t groups_kept = 1;
  bool norm_topk_prob = true;
  float routed_scaling_factor = 1;
  int64_t vocab_size = 0;
  HeadCounts heads;
  bool use_qk_norm = false;
  bool attention_bias = false;  ///< On q, k and v.
  float rms_norm_eps = 0;
  bool is_tied = false;
  int64_t max_position_embeddings = 0;
  RopeConfig rope;

  AttentionShape attention() const { return {heads.num_heads, heads.num_kv_heads, heads.head_dim}; }
};

void read_groups(ConfigReader& reader, Glm4MoeConfig& c) {
  const int64_t num_experts = c.moe.num_experts;
  c.num_groups = reader.positive_int("n_group", 1);
  c.groups_kept = reader.positive_int("topk_group", 1);
  // A group's worth is the sum of its two best experts.
  if (num_experts % c.num_groups != 0 || (c.num_groups > 1 && num_experts / c.num_groups < 2)) {
    reader.fail(StatusCode::kCorrupt, "n_group",
                fmt::format("expected a divisor of n_routed_experts ({}) with two experts or more a group",
                            num_experts));
    c.num_groups = 1;
  }
  if (c.groups_kept > c.num_groups)
    reader.fail(StatusCode::kCorrupt, "topk_group",
                fmt::format("expected at most n_group ({})", c.num_groups));
  const int64_t eligible = num_experts / c.num_groups * c.groups_kept;
  if (c.moe.num_experts_per_tok > eligible)
    reader.fail(StatusCode::kCorrupt, "num_experts_per_tok",
                fmt::format("expected at most {}, the experts of topk_group groups", eligible));
}

void read_experts(ConfigReader& reader, Glm4MoeConfig& c) {
  c.num_dense_layers = reader.non_negative_int("first_k_dense_replace", 1);
  c.moe.hidden_size = c.hidden_size;
  c.moe.num_experts =
      reader.positive_int(reader.has("n_routed_experts") ? "n_routed_experts" : "num_local_experts");
  c.moe.num_experts_per_tok = reader.positive_int("num_experts_per_tok");
  c.moe_intermediate_size = reader.positive_int("moe_intermediate_size");
  c.moe.shared_intermediate_size = c.moe_intermediate_size * reader.positive_int("n_shared_experts", 1);
  read_groups(reader, c);
  c.norm_topk_prob = reader.boolean("norm_topk_prob", true);
  c.routed_scaling_factor = static_cast<float>(reader.positive_number("routed_scaling_factor", 1.0));
  for (const auto& [key, value] :
       {std::pair("scoring_func", "sigmoid"), std::pair("topk_method", "noaux_tc")})
    if (reader.string(key, value) != value)
      reader.fail(StatusCode::kUnsupported, key, fmt::format("expected {}", value));
}

Result<Glm4MoeConfig> read_config(const ModelSource& source) {
  ConfigReader reader = source.config.reader();
  Glm4MoeConfig c;
  c.num_layers = read_num_layers(reader);
  c.hidden_size = reader.positive_int("hidden_size");
  c.intermediate_size = reader.positive_int("intermediate_size");
  read_experts(reader, c);
  c.vocab_size = reader.positive_int("vocab_size");
  c.heads = read_head_counts(reader, c.hidden_size, /*default_head_dim=*/128);
  c.use_qk_norm = reader.boolean("use_qk_norm", false);
  c.attention_bias = reader.boolean("attention_bias", false);
  c.rms_norm_eps = static_cast<float>(reader.positive_number("rms_norm_eps", 1e-5));
  c.is_tied = read_tied(reader, source.table);
  c.max_position_embeddings = reader.positive_int("max_position_embeddings", 131072);
  c.rope = read_rope_config(reader, {.partial_rotary_factor = 0.5});
  require_silu(reader);
  if (!reader.status().ok()) return reader.status();
  return c;
}

/// A layer, of the model or of its draft head.
struct Glm4MoeLayer {
  VectorId input_norm;
  SelfAttention attention;
  VectorId post_attention_norm;
  SparseMoe moe;  ///< Either this, or
  Mlp mlp;        ///< this.
};

SparseMoe declare_moe(const Glm4MoeConfig& c, int layer, const std::string& mlp, WeightTable& table) {
  const int64_t E = c.hidden_size, X = c.moe.num_experts;
  SparseMoe moe;
  moe.gate = table.linear(layer, {mlp + ".gate", X, E});
  moe.correction_bias = table.vector(layer, mlp + ".gate.e_score_correction_bias", X);
  moe.experts = table.experts(layer, {.module = mlp,
                                      .num_experts = X,
                                      .hidden_size = E,
                                      .intermediate_size = c.moe_intermediate_size,
                                      .num_experts_per_tok = c.moe.num_experts_per_tok,
                                      .num_groups = c.num_groups});
  moe.scoring = RouterScoring::kSigmoid;
  moe.normalize = c.norm_topk_prob;
  moe.scale = c.routed_scaling_factor;
  moe.num_groups = c.num_groups;
  moe.groups_kept = c.groups_kept;
  moe.shared = declare_mlp(table, layer, {mlp + ".shared_experts", E, c.moe.shared_intermediate_size});
  return moe;
}

Glm4MoeLayer declare_layer(const Glm4MoeConfig& c, int i, WeightTable& table) {
  const int64_t E = c.hidden_size;
  const std::string layer = fmt::format("layers.{}.", i);
  Glm4MoeLayer l;
  l.input_norm = table.vector(i, layer + "input_layernorm.weight", E);
  l.attention = declare_attention(table, i,
                                  {.module = layer + "self_attn",
                                   .hidden_size = E,
                                   .shape = c.attention(),
                                   .has_qkv_bias = c.attention_bias,
                                   .has_qk_norm = c.use_qk_norm,
                                   .norm_eps = c.rms_norm_eps});
  if (!c.use_qk_norm) table.expect_absent(layer + "self_attn.q_norm.weight", "use_qk_norm = false");
  l.post_attention_norm = table.vector(i, layer + "post_attention_layernorm.weight", E);
  if (i < c.num_dense_layers) {
    l.mlp = declare_mlp(table, i, {layer + "mlp", E, c.intermediate_size});
  } else {
    l.moe = declare_moe(c, i, layer + "mlp", table);
  }
  return l;
}

/// Scratch of one pass, of the model or of its draft head.
struct Scratch {
  View h;         ///< [T, E] f32: the residual stream.
  View x;         ///< [T, E] activation dtype: its normalized copy.
  View last;      ///< [T, E] f32: the rows whose logits are wanted.
  View cos, sin;  ///< [T, R/2] f32.
  AttentionScratch attention;
  MlpScratch mlp;
  MoeScratch moe;

  Scratch(Arena& arena, const Glm4MoeConfig& c, const Rotary& rotary, DType dtype, int64_t T)
      : h(arena.array(DType::kF32, {T, c.hidden_size})),
        x(arena.array(dtype, {T, c.hidden_size})),
        last(arena.array(DType::kF32, {T, c.hidden_size})),
        cos(arena.array(DType::kF32, {T, rotary.num_pairs()})),
        sin(arena.array(DType::kF32, {T, rotary.num_pairs()})),
        attention(arena, c.attention(), dtype, T),
        mlp(arena, c.intermediate_size, dtype, T),
        moe(arena, c.moe, dtype, T) {}
};

/// What the model and its head are made of.
struct Glm4MoeParts {
  Glm4MoeConfig config;
  Rotary rotary;
  DType dtype = DType::kBF16;  ///< Of activations.
  TokenEnds ends;

  /// One layer, on s.h.
  void forward(const Glm4MoeLayer& layer, const BlockPass& block, const Lease& w, const KvPages& pages,
               const Scratch& s) const {
    const RmsNormOptions norm{config.rms_norm_eps};
    block.ops.rms_norm(s.x, s.h, w[layer.input_norm], norm);
    layer.attention.forward(block, w, pages, s.attention);
    block.ops.rms_norm(s.x, s.h, w[layer.post_attention_norm], norm);
    layer.moe.experts ? layer.moe.forward(block, w, s.moe) : layer.mlp.forward(block, w, s.mlp);
  }
};

std::string draft_layer_module(const Glm4MoeConfig& c) { return fmt::format("layers.{}.", c.num_layers); }

/// The draft head: embedding of the next token and hidden state, side by side through one matrix, then a
/// layer with experts and attention of its own. Stored and leased as one more layer, after the model's; its
/// copies of the embedding and of lm_head are not read.
class Glm4MoeDraftHead final : public DraftHead {
 public:
  Glm4MoeDraftHead(const Glm4MoeParts& model, WeightTable& table) : model_(model), ends_(model.ends) {
    const Glm4MoeConfig& c = model.config;
    const int64_t E = c.hidden_size;
    const std::string module = draft_layer_module(c);
    lease_ = static_cast<int>(c.num_layers);
    embedding_norm_ = table.vector(lease_, module + "enorm.weight", E);
    hidden_norm_ = table.vector(lease_, module + "hnorm.weight", E);
    eh_proj_ = table.linear(lease_, {module + "eh_proj", E, 2 * E});
    layer_ = declare_layer(c, lease_, table);
    ends_.final_norm = table.vector(kOutsideLayers, module + "shared_head.norm.weight", E);
    table.expect_absent(fmt::format("layers.{}.input_layernorm.weight", c.num_layers + 1),
                        fmt::format("num_hidden_layers = {}, and one draft head is read", c.num_layers));
    kv_shape_ = {c.heads.num_kv_heads, c.heads.head_dim, model.dtype};
  }

  std::span<const KvShape> kv_layers() const override { return {&kv_shape_, 1}; }

  int64_t scratch_bytes(int64_t num_rows) const override {
    Arena measure(nullptr, 0);
    (void)pair_scratch(measure, num_rows);
    Scratch(measure, model_.config, model_.rotary, model_.dtype, num_rows);
    return measure.used_bytes();
  }

  void forward(const Pass& pass, View hidden, Ops& ops, Weights& weights, const State& state, Arena& scratch,
               const Outputs& outputs) const override {
    const int64_t T = pass.rows.num_rows(), E = model_.config.hidden_size;
    const View pair = pair_scratch(scratch, T);
    const Scratch s(scratch, model_.config, model_.rotary, model_.dtype, T);
    const BlockPass block{ops, pass.rows, s.h, s.x, s.cos, s.sin};
    const RmsNormOptions norm{model_.config.rms_norm_eps};

    ends_.embed(block, weights.outside_layers(), pass.tokens);
    ops.rope_table(s.cos, s.sin, pass.rows.positions, model_.rotary.inv_freq, model_.rotary.multiplier);
    const Lease w = weights.layer(lease_);
    ops.rms_norm(pair.columns(0, E), s.h, w[embedding_norm_], norm);
    ops.rms_norm(pair.columns(E, E), hidden, w[hidden_norm_], norm);
    const LinearCall combine[] = {{.out = s.h, .weight = w[eh_proj_]}};
    ops.linear(pair, combine);
    model_.forward(layer_, block, w, state.kv_layers[0], s);
    ends_.logits(block, weights.outside_layers(), pass.logit_rows, s.last, outputs);
  }

 private:
  /// [T, 2E] activation dtype: the normalized embedding, then the normalized hidden state.
  View pair_scratch(Arena& arena, int64_t num_rows) const {
    return arena.array(model_.dtype, {num_rows, 2 * model_.config.hidden_size});
  }

  const Glm4MoeParts& model_;  ///< Of the model that owns this head.
  int lease_ = 0;
  VectorId embedding_norm_, hidden_norm_;
  LinearId eh_proj_;
  Glm4MoeLayer layer_;
  TokenEnds ends_;  ///< The model's, but for the final norm.
  KvShape kv_shape_;
};

class Glm4Moe final : public Model {
 public:
  Glm4Moe(Glm4MoeConfig config, Rotary rotary, ModelSpec spec, const ModelSource& source)
      : parts_{std::move(config), std::move(rotary), spec.activation_dtype, {}}, spec_(std::move(spec)) {
    const Glm4MoeConfig& c = parts_.config;
    WeightTable& table = source.table;
    parts_.ends = declare_ends(table, {.vocab_size = c.vocab_size,
                                       .hidden_size = c.hidden_size,
                                       .is_tied = c.is_tied,
                                       .norm_eps = c.rms_norm_eps});
    for (int i = 0; i < c.num_layers; ++i) layers_.push_back(declare_layer(c, i, table));
    // Conversions drop the head's tensors and keep `num_nextn_predict_layers`, which says nothing therefore.
    if (table.has_tensor(draft_layer_module(c) + "eh_proj.weight")) {
      if (source.options.with_draft_head) draft_head_ = std::make_unique<Glm4MoeDraftHead>(parts_, table);
    } else {
      table.expect_absent(draft_layer_module(c) + "input_layernorm.weight",
                          fmt::format("num_hidden_layers = {}", c.num_layers));
    }
  }

  const ModelSpec& spec() const override { return spec_; }
  const TokenEnds* token_ends() const override { return &parts_.ends; }
  const DraftHead* draft_head() const override { return draft_head_.get(); }

  int64_t scratch_bytes(int64_t num_rows) const override {
    Arena measure(nullptr, 0);
    Scratch(measure, parts_.config, parts_.rotary, parts_.dtype, num_rows);
    return measure.used_bytes();
  }

  void forward(const Pass& pass, Ops& ops, Weights& weights, const State& state, Arena& scratch,
               const Outputs& outputs) const override {
    const Scratch s(scratch, parts_.config, parts_.rotary, parts_.dtype, pass.rows.num_rows());
    const BlockPass block{ops, pass.rows, s.h, s.x, s.cos, s.sin};
    parts_.ends.embed(block, weights.outside_layers(), pass.tokens);
    ops.rope_table(s.cos, s.sin, pass.rows.positions, parts_.rotary.inv_freq, parts_.rotary.multiplier);
    for (size_t i = 0; i < layers_.size(); ++i) {
      const Lease w = weights.layer(static_cast<int>(i));
      parts_.forward(layers_[i], block, w, state.kv_layers[i], s);
      outputs.taps.take(ops, i, s.h);
    }
    parts_.ends.logits(block, weights.outside_layers(), pass.logit_rows, s.last, outputs);
  }

 private:
  Glm4MoeParts parts_;
  ModelSpec spec_;
  std::vector<Glm4MoeLayer> layers_;
  std::unique_ptr<Glm4MoeDraftHead> draft_head_;  ///< Refers to parts_.
};

}  // namespace

Result<std::unique_ptr<Model>> make_glm4_moe(const ModelSource& source) {
  TF_ASSIGN_OR_RETURN(Glm4MoeConfig c, read_config(source));
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
  for (int64_t i = 0; i < c.num_layers; ++i)
    spec.layers.push_back(
        {MixerKind::kAttention, i < c.num_dense_layers ? MlpKind::kDense : MlpKind::kExperts});
  return std::unique_ptr<Model>(new Glm4Moe(std::move(c), std::move(rotary), std::move(spec), source));
}

}  // namespace tensorfold
