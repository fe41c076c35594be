// Qwen3.5 to 3.8 (Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM and their multimodal wrappers, whose text model
// this is) and Qwen3-Next (Qwen3NextForCausalLM): three layers in four mix by a gated DeltaNet, the fourth by
// gated attention; then an MLP, or experts with a shared one. With the head that drafts (MTP), where the
// checkpoint has it. Facts: specs/qwen.md §1-5 and §9, specs/drafters.md §1.
#include <fmt/format.h>

#include <algorithm>

#include "models/config_rules.h"
#include "models/gated_delta_net.h"
#include "models/layers.h"
#include "models/registry.h"

namespace tensorfold {
namespace {

/// What the families differ in.
enum class Variant : uint8_t {
  kDense,  ///< qwen3_5.
  kMoe,    ///< qwen3_5_moe: experts in every layer.
  kNext,   ///< qwen3_next: experts in most layers, and the delta net's projections fused.
};

struct Qwen35Config {
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;  ///< 0: every layer has experts.
  MoeShape moe;                   ///< num_experts 0: no layer has.
  int64_t moe_intermediate_size = 0;
  bool norm_topk_prob = true;
  std::vector<bool> is_sparse;          ///< Of each layer: experts, or an MLP of intermediate_size.
  std::vector<bool> is_full_attention;  ///< Of each layer: attention, or a gated DeltaNet.
  int64_t vocab_size = 0;
  HeadCounts heads;
  GatedDeltaShape delta;
  bool is_delta_fused = false;
  float rms_norm_eps = 0;
  bool attention_bias = false;  ///< On q, k, v and o.
  bool is_tied = false;
  bool has_mtp = false;
  int64_t max_position_embeddings = 0;
  RopeConfig rope;

  AttentionShape attention() const {
    return {heads.num_heads, heads.num_kv_heads, heads.head_dim, /*has_output_gate=*/true};
  }
};

constexpr const char* kMtpGate = "mtp.layers.0.mlp.gate.weight";

/// `layer_types`, or without it every `full_attention_interval`-th layer.
std::vector<bool> read_layer_types(ConfigReader& reader, int64_t num_layers) {
  std::vector<bool> is_full(num_layers);
  if (!reader.has("layer_types")) {
    const int64_t interval = reader.positive_int("full_attention_interval", 4);
    for (int64_t i = 0; i < num_layers; ++i) is_full[i] = (i + 1) % interval == 0;
    return is_full;
  }
  const std::vector<std::string> types = reader.string_list("layer_types");
  if (std::ssize(types) != num_layers) {
    reader.fail(StatusCode::kCorrupt, "layer_types",
                fmt::format("expected {} entries (num_hidden_layers)", num_layers));
    return is_full;
  }
  for (int64_t i = 0; i < num_layers; ++i) {
    is_full[i] = types[i] == "full_attention";
    if (!is_full[i] && types[i] != "linear_attention")
      reader.fail(StatusCode::kUnsupported, "layer_types",
                  fmt::format("expected full_attention and linear_attention, not {}", types[i]));
  }
  return is_full;
}

GatedDeltaShape read_delta_shape(ConfigReader& reader) {
  GatedDeltaShape shape;
  shape.num_key_heads = read_size(reader, "linear_num_key_heads", 1, kMaxRecurrentHeads);
  shape.num_value_heads = read_size(reader, "linear_num_value_heads", 1, kMaxRecurrentHeads);
  shape.key_head_dim = read_size(reader, "linear_key_head_dim", 1, kMaxHeadDim);
  shape.value_head_dim = read_size(reader, "linear_value_head_dim", 1, kMaxHeadDim);
  // One tap would leave the two layouts of the weights alike (read_norm_offset).
  shape.conv_taps = read_size(reader, "linear_conv_kernel_dim", 2, kMaxConvTaps);
  if (shape.num_value_heads % shape.num_key_heads != 0) {
    reader.fail(StatusCode::kCorrupt, "linear_num_value_heads",
                fmt::format("expected a multiple of linear_num_key_heads ({})", shape.num_key_heads));
    shape.num_value_heads = shape.num_key_heads;
  }
  return shape;
}

void read_experts(ConfigReader& reader, Variant variant, Qwen35Config& c) {
  c.is_sparse.assign(c.num_layers, variant != Variant::kDense);
  if (variant == Variant::kDense) return;
  c.moe.hidden_size = c.hidden_size;
  c.moe.num_experts = reader.positive_int("num_experts");
  c.moe.num_experts_per_tok = reader.positive_int("num_experts_per_tok");
  if (c.moe.num_experts_per_tok > c.moe.num_experts)
    reader.fail(StatusCode::kCorrupt, "num_experts_per_tok",
                fmt::format("expected at most {}", c.moe.num_experts));
  c.moe.shared_intermediate_size = reader.positive_int("shared_expert_intermediate_size");
  c.moe_intermediate_size = reader.positive_int("moe_intermediate_size");
  c.norm_topk_prob = reader.boolean("norm_topk_prob", true);
  if (variant == Variant::kMoe) {
    // Its reference divides without asking the key.
    if (!c.norm_topk_prob) reader.fail(StatusCode::kUnsupported, "norm_topk_prob", "expected true");
    return;
  }
  const int64_t step = reader.positive_int("decoder_sparse_step", 1);
  for (int64_t i = 0; i < c.num_layers; ++i) c.is_sparse[i] = (i + 1) % step == 0;
  for (int64_t dense : reader.int_list("mlp_only_layers"))
    if (dense < c.num_layers) c.is_sparse[dense] = false;
}

/// Keys whose usual value is the only one that is computed here.
void require_usual_gates(ConfigReader& reader) {
  require_silu(reader);
  if (!reader.boolean("attn_output_gate", true))
    reader.fail(StatusCode::kUnsupported, "attn_output_gate", "expected true");
  const std::string gate = reader.string("output_gate_type", "silu");
  if (gate != "silu" && gate != "swish")
    reader.fail(StatusCode::kUnsupported, "output_gate_type", "expected silu or swish");
}

/// Whether the checkpoint has a head that drafts. Conversions drop its tensors and keep the keys.
bool read_mtp(ConfigReader& reader, const WeightTable& table) {
  if (!table.has_tensor("mtp.fc.weight")) return false;
  const int64_t num_layers = reader.non_negative_int("mtp_num_hidden_layers", 1);
  if (num_layers > 1) reader.fail(StatusCode::kUnsupported, "mtp_num_hidden_layers", "expected at most 1");
  if (num_layers > 0 && reader.boolean("mtp_use_dedicated_embeddings", false))
    reader.fail(StatusCode::kUnsupported, "mtp_use_dedicated_embeddings", "expected false");
  return num_layers > 0;
}

Result<Qwen35Config> read_config(const ModelSource& source, Variant variant) {
  ConfigReader reader = source.config.reader();
  Qwen35Config c;
  c.num_layers = read_num_layers(reader);
  c.hidden_size = reader.positive_int("hidden_size");
  c.is_full_attention = read_layer_types(reader, c.num_layers);
  if (std::ranges::count(c.is_full_attention, false) == 0)
    reader.fail(StatusCode::kUnsupported,
                reader.has("layer_types") ? "layer_types" : "full_attention_interval",
                "expected at least one layer of linear attention");
  read_experts(reader, variant, c);
  if (std::ranges::count(c.is_sparse, false) > 0)
    c.intermediate_size = reader.positive_int("intermediate_size");
  c.vocab_size = reader.positive_int("vocab_size");
  c.heads = read_head_counts(reader, c.hidden_size, /*default_head_dim=*/256);
  c.delta = read_delta_shape(reader);
  c.is_delta_fused = variant == Variant::kNext;
  c.rms_norm_eps = read_rms_norm_eps(reader);
  c.attention_bias = reader.boolean("attention_bias", false);
  c.is_tied = read_tied(reader, source.table);
  c.has_mtp = source.options.with_draft_head && read_mtp(reader, source.table);
  c.max_position_embeddings = reader.positive_int("max_position_embeddings", 32768);
  // Text has one position a token, for which the three-fold rotation of images is this plain one.
  c.rope = read_rope_config(reader, {.partial_rotary_factor = 0.25});
  require_usual_gates(reader);
  if (!reader.status().ok()) return reader.status();
  return c;
}

/// What is added to norm weights. They are stored around zero, and around one by MLX, which turns the
/// convolutions when it shifts the norms: [C, taps, 1] instead of [C, 1, taps].
float read_norm_offset(const Qwen35Config& c, const WeightTable& table) {
  const auto linear = std::ranges::find(c.is_full_attention, false) - c.is_full_attention.begin();
  const auto shape = table.shape_of(fmt::format("layers.{}.linear_attn.conv1d.weight", linear));
  return !shape.empty() && shape.back() == 1 ? 0.0f : 1.0f;
}

/// The same of the draft head. Nobody shifts the head of a file in Hugging Face's layout; to MLX folders it
/// comes by several ways, and only its values tell by which.
float read_mtp_norm_offset(float norm_offset, WeightTable& table) {
  if (norm_offset != 0) return norm_offset;
  const double mean =
      table.mean("mtp.pre_fc_norm_hidden.weight") + table.mean("mtp.layers.0.self_attn.q_norm.weight");
  return mean / 2 < 0.5 ? 1.0f : 0.0f;
}

/// A layer, of the model or of its draft head.
struct Qwen35Layer {
  VectorId input_norm;
  SelfAttention attention;  ///< Either this, or
  GatedDeltaNet delta;      ///< this.
  VectorId post_attention_norm;
  SparseMoe moe;  ///< Either this, or
  Mlp mlp;        ///< this.

  bool has_attention() const { return static_cast<bool>(attention.q_proj); }
  void feed_forward(const BlockPass& block, const Lease& w, const MlpScratch& mlp_scratch,
                    const MoeScratch& moe_scratch) const {
    moe.experts ? moe.forward(block, w, moe_scratch) : mlp.forward(block, w, mlp_scratch);
  }
};

/// Where a layer's weights are and how they are stored.
struct LayerDeclaration {
  int layer = 0;       ///< Of the lease.
  std::string module;  ///< "layers.3.".
  bool is_full_attention = false;
  bool is_sparse = false;
  float norm_offset = 0;
};

SparseMoe declare_moe(const Qwen35Config& c, const LayerDeclaration& d, WeightTable& table) {
  const std::string mlp = d.module + "mlp";
  SparseMoe moe;
  moe.gate = table.linear(d.layer, {mlp + ".gate", c.moe.num_experts, c.hidden_size});
  moe.experts = table.experts(d.layer, {.module = mlp,
                                        .num_experts = c.moe.num_experts,
                                        .hidden_size = c.hidden_size,
                                        .intermediate_size = c.moe_intermediate_size,
                                        .num_experts_per_tok = c.moe.num_experts_per_tok});
  moe.normalize = c.norm_topk_prob;
  moe.shared =
      declare_mlp(table, d.layer, {mlp + ".shared_expert", c.hidden_size, c.moe.shared_intermediate_size});
  moe.shared_gate = table.linear(d.layer, {mlp + ".shared_expert_gate", 1, c.hidden_size});
  return moe;
}

Qwen35Layer declare_layer(const Qwen35Config& c, const LayerDeclaration& d, WeightTable& table) {
  const int64_t E = c.hidden_size;
  Qwen35Layer l;
  l.input_norm = table.vector(d.layer, d.module + "input_layernorm.weight", E, d.norm_offset);
  if (d.is_full_attention) {
    l.attention = declare_attention(table, d.layer,
                                    {.module = d.module + "self_attn",
                                     .hidden_size = E,
                                     .shape = c.attention(),
                                     .has_qkv_bias = c.attention_bias,
                                     .has_o_bias = c.attention_bias,
                                     .has_qk_norm = true,
                                     .norm_offset = d.norm_offset,
                                     .norm_eps = c.rms_norm_eps});
  } else {
    l.delta = declare_gated_delta_net(
        table, d.layer, {d.module + "linear_attn", E, c.delta, c.rms_norm_eps, c.is_delta_fused});
  }
  l.post_attention_norm =
      table.vector(d.layer, d.module + "post_attention_layernorm.weight", E, d.norm_offset);
  if (d.is_sparse) {
    l.moe = declare_moe(c, d, table);
  } else {
    l.mlp = declare_mlp(table, d.layer, {d.module + "mlp", E, c.intermediate_size});
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

  Scratch(Arena& arena, const Qwen35Config& c, const Rotary& rotary, DType dtype, int64_t T)
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
struct Qwen35Parts {
  Qwen35Config config;
  Rotary rotary;
  DType dtype = DType::kBF16;  ///< Of activations.
  TokenEnds ends;
};

/// The draft head: embedding of the next token and hidden state, side by side through one matrix, then a
/// layer with attention of its own. Its weights are leased as one more layer, after the model's.
class Qwen35DraftHead final : public DraftHead {
 public:
  Qwen35DraftHead(const Qwen35Parts& model, float norm_offset, WeightTable& table)
      : model_(model), ends_(model.ends) {
    const Qwen35Config& c = model.config;
    const int64_t E = c.hidden_size;
    lease_ = static_cast<int>(c.num_layers);
    embedding_norm_ = table.vector(lease_, "mtp.pre_fc_norm_embedding.weight", E, norm_offset);
    hidden_norm_ = table.vector(lease_, "mtp.pre_fc_norm_hidden.weight", E, norm_offset);
    fc_ = table.linear(lease_, {"mtp.fc", E, 2 * E});
    layer_ = declare_layer(c,
                           {.layer = lease_,
                            .module = "mtp.layers.0.",
                            .is_full_attention = true,
                            .is_sparse = table.has_tensor(kMtpGate),
                            .norm_offset = norm_offset},
                           table);
    ends_.final_norm = table.vector(kOutsideLayers, "mtp.norm.weight", E, norm_offset);
    table.expect_absent("mtp.layers.1.input_layernorm.weight", "mtp_num_hidden_layers = 1");
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
    const LinearCall combine[] = {{.out = s.h, .weight = w[fc_]}};
    ops.linear(pair, combine);
    ops.rms_norm(s.x, s.h, w[layer_.input_norm], norm);
    layer_.attention.forward(block, w, state.kv_layers[0], s.attention);
    ops.rms_norm(s.x, s.h, w[layer_.post_attention_norm], norm);
    layer_.feed_forward(block, w, s.mlp, s.moe);
    ends_.logits(block, weights.outside_layers(), pass.logit_rows, s.last, outputs);
  }

 private:
  /// [T, 2E] activation dtype: the normalized embedding, then the normalized hidden state.
  View pair_scratch(Arena& arena, int64_t num_rows) const {
    return arena.array(model_.dtype, {num_rows, 2 * model_.config.hidden_size});
  }

  const Qwen35Parts& model_;  ///< Of the model that owns this head.
  int lease_ = 0;
  VectorId embedding_norm_, hidden_norm_;
  LinearId fc_;
  Qwen35Layer layer_;
  TokenEnds ends_;  ///< The model's, but for the final norm.
  KvShape kv_shape_;
};

class Qwen35 final : public Model {
 public:
  Qwen35(Qwen35Config config, Rotary rotary, ModelSpec spec, WeightTable& table)
      : parts_{std::move(config), std::move(rotary), spec.activation_dtype, {}}, spec_(std::move(spec)) {
    const Qwen35Config& c = parts_.config;
    const float norm_offset = read_norm_offset(c, table);
    parts_.ends = declare_ends(table, {.vocab_size = c.vocab_size,
                                       .hidden_size = c.hidden_size,
                                       .is_tied = c.is_tied,
                                       .norm_eps = c.rms_norm_eps,
                                       .norm_offset = norm_offset});
    for (int i = 0; i < c.num_layers; ++i)
      layers_.push_back(declare_layer(
          c, {i, fmt::format("layers.{}.", i), c.is_full_attention[i], c.is_sparse[i], norm_offset}, table));
    table.expect_absent(fmt::format("layers.{}.input_layernorm.weight", c.num_layers),
                        fmt::format("num_hidden_layers = {}", c.num_layers));
    if (c.has_mtp)
      draft_head_ =
          std::make_unique<Qwen35DraftHead>(parts_, read_mtp_norm_offset(norm_offset, table), table);
  }

  const ModelSpec& spec() const override { return spec_; }
  const TokenEnds* token_ends() const override { return &parts_.ends; }
  const DraftHead* draft_head() const override { return draft_head_.get(); }

  int64_t scratch_bytes(int64_t num_rows) const override {
    Arena measure(nullptr, 0);
    Scratch(measure, parts_.config, parts_.rotary, parts_.dtype, num_rows);
    GatedDeltaScratch(measure, parts_.config.delta, parts_.dtype, num_rows);
    return measure.used_bytes();
  }

  void forward(const Pass& pass, Ops& ops, Weights& weights, const State& state, Arena& scratch,
               const Outputs& outputs) const override {
    const Qwen35Config& c = parts_.config;
    const Scratch s(scratch, c, parts_.rotary, parts_.dtype, pass.rows.num_rows());
    const GatedDeltaScratch delta(scratch, c.delta, parts_.dtype, pass.rows.num_rows());
    const BlockPass block{ops, pass.rows, s.h, s.x, s.cos, s.sin, pass.drafted_rows};
    const RmsNormOptions norm{c.rms_norm_eps};
    size_t next_kv = 0, next_recurrent = 0;

    parts_.ends.embed(block, weights.outside_layers(), pass.tokens);
    ops.rope_table(s.cos, s.sin, pass.rows.positions, parts_.rotary.inv_freq, parts_.rotary.multiplier);
    for (size_t i = 0; i < layers_.size(); ++i) {
      const Qwen35Layer& layer = layers_[i];
      const Lease w = weights.layer(static_cast<int>(i));
      ops.rms_norm(s.x, s.h, w[layer.input_norm], norm);
      if (layer.has_attention()) {
        layer.attention.forward(block, w, state.kv_layers[next_kv++], s.attention);
      } else {
        layer.delta.forward(block, w, state.recurrent_layers[next_recurrent++], delta);
      }
      ops.rms_norm(s.x, s.h, w[layer.post_attention_norm], norm);
      layer.feed_forward(block, w, s.mlp, s.moe);
      outputs.taps.take(ops, i, s.h);
    }
    parts_.ends.logits(block, weights.outside_layers(), pass.logit_rows, s.last, outputs);
  }

  void commit(const RowBatch& accepted, Ops& ops, Weights& weights, const State& state,
              Arena& scratch) const override {
    const GatedDeltaScratch s(scratch, parts_.config.delta, parts_.dtype, accepted.num_rows());
    size_t next_recurrent = 0;
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (layers_[i].has_attention()) continue;
      layers_[i].delta.commit({ops, accepted}, weights.layer(static_cast<int>(i)),
                              state.recurrent_layers[next_recurrent++], s);
    }
  }

 private:
  Qwen35Parts parts_;
  ModelSpec spec_;
  std::vector<Qwen35Layer> layers_;
  std::unique_ptr<Qwen35DraftHead> draft_head_;  ///< Refers to parts_.
};

ModelSpec make_spec(const ModelSource& source, const Qwen35Config& c, int64_t max_position_embeddings) {
  ModelSpec spec;
  spec.model_type = source.config.model_type;
  spec.num_layers = c.num_layers;
  spec.hidden_size = c.hidden_size;
  spec.vocab_size = c.vocab_size;
  spec.max_position_embeddings = max_position_embeddings;
  spec.activation_dtype = activation_dtype(source.config, source.options.compute_f32);
  for (int64_t i = 0; i < c.num_layers; ++i) {
    if (c.is_full_attention[i]) {
      spec.kv_layers.push_back({c.heads.num_kv_heads, c.heads.head_dim, spec.activation_dtype});
    } else {
      spec.recurrent_layers.push_back(c.delta.state());
    }
    spec.layers.push_back({c.is_full_attention[i] ? MixerKind::kAttention : MixerKind::kGatedDelta,
                           c.is_sparse[i] ? MlpKind::kExperts : MlpKind::kDense});
  }
  return spec;
}

Result<std::unique_ptr<Model>> make_model(const ModelSource& source, Variant variant) {
  TF_ASSIGN_OR_RETURN(Qwen35Config c, read_config(source, variant));
  TF_ASSIGN_OR_RETURN(const ContextLengths lengths,
                      choose_context(c.max_position_embeddings, source.options.context_tokens, c.rope.kind));
  TF_ASSIGN_OR_RETURN(Rotary rotary, make_rotary(c.rope, {c.heads.head_dim, c.max_position_embeddings,
                                                          lengths.context_tokens}));
  ModelSpec spec = make_spec(source, c, lengths.max_position_embeddings);
  return std::unique_ptr<Model>(new Qwen35(std::move(c), std::move(rotary), std::move(spec), source.table));
}

}  // namespace

Result<std::unique_ptr<Model>> make_qwen3_5(const ModelSource& source) {
  return make_model(source, Variant::kDense);
}
Result<std::unique_ptr<Model>> make_qwen3_5_moe(const ModelSource& source) {
  return make_model(source, Variant::kMoe);
}
Result<std::unique_ptr<Model>> make_qwen3_next(const ModelSource& source) {
  return make_model(source, Variant::kNext);
}

}  // namespace tensorfold
