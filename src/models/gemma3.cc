// Gemma 3 (Gemma3ForCausalLM, and Gemma3ForConditionalGeneration, whose text model this is): norms before and
// after each block, q and k normed per head, most layers with a window and rotary angles of their own, GELU
// (Gemma Team 2025, arXiv:2503.19786). Facts: specs/gemma3.md, part A.
#include <fmt/format.h>

#include <cmath>

#include "base/bf16.h"
#include "models/config_rules.h"
#include "models/layers.h"
#include "models/registry.h"

namespace tensorfold {
namespace {

/// Stored norm weights are around zero, in MLX folders too.
constexpr float kNormOffset = 1.0f;

struct Gemma3Config {
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t vocab_size = 0;
  HeadCounts heads;
  double query_pre_attn_scalar = 0;  ///< q.k is divided by its root.
  float rms_norm_eps = 0;
  bool attention_bias = false;  ///< On q, k, v and o.
  bool is_tied = false;
  std::vector<int64_t> windows;  ///< Of each layer; 0: all keys.
  int64_t max_position_embeddings = 0;
  RopeConfig full_rope;               ///< Of layers that see all keys.
  RopeConfig window_rope;             ///< Of layers with a window.
  float final_logit_softcapping = 0;  ///< 0: none.

  AttentionShape attention() const { return {heads.num_heads, heads.num_kv_heads, heads.head_dim}; }
};

/// Published wrappers leave out what the library's class has as its default; the weights' shapes tell whether
/// it holds.
HeadCounts read_heads(ConfigReader& reader, int64_t hidden_size) {
  constexpr int64_t kDefaultHeadDim = 256;
  if (reader.has("num_attention_heads")) return read_head_counts(reader, hidden_size, kDefaultHeadDim);
  HeadCounts heads{.num_heads = 8, .num_kv_heads = 4, .head_dim = kDefaultHeadDim};
  for (const char* key : {"num_key_value_heads", "head_dim"})
    if (reader.has(key)) reader.fail(StatusCode::kCorrupt, key, "expected num_attention_heads beside it");
  return heads;
}

/// `layer_types`, or without it all but every `sliding_window_pattern`-th layer have the window.
std::vector<int64_t> read_layer_windows(ConfigReader& reader, int64_t num_layers) {
  const int64_t window = reader.has("sliding_window") ? reader.positive_int("sliding_window") : 0;
  if (reader.has("layer_types")) return windows_by_type(reader, num_layers, window);
  const char* key =
      reader.has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
  const int64_t pattern = reader.positive_int(key, 6);
  std::vector<int64_t> windows(num_layers, 0);
  for (int64_t i = 0; i < num_layers; ++i)
    if ((i + 1) % pattern != 0) windows[i] = window;
  if (pattern > 1 && window == 0) (void)reader.positive_int("sliding_window");  // says that it is missing
  return windows;
}

/// Rotary parameters of the layers with a window: `rope_scaling` is none of theirs.
RopeConfig read_window_rope(ConfigReader& reader) {
  RopeConfig rope;
  rope.theta = reader.positive_number("rope_local_base_freq", 10000.0);
  std::optional<ConfigReader> parameters = reader.object("rope_parameters");
  std::optional<ConfigReader> own = parameters ? parameters->object("sliding_attention") : std::nullopt;
  if (!own) return rope;
  rope.theta = own->positive_number("rope_theta", rope.theta);
  if (own->string("rope_type", "default") != "default")
    own->fail(StatusCode::kUnsupported, "rope_type", "expected default");
  if (own->positive_number("partial_rotary_factor", 1.0) != 1.0)
    own->fail(StatusCode::kUnsupported, "partial_rotary_factor", "expected 1");
  return rope;
}

/// Keys whose usual value is the only one that is computed here.
void require_usual(ConfigReader& reader) {
  const char* activation = reader.has("hidden_activation") ? "hidden_activation" : "hidden_act";
  if (reader.string(activation, "gelu_pytorch_tanh") != "gelu_pytorch_tanh")
    reader.fail(StatusCode::kUnsupported, activation, "expected gelu_pytorch_tanh");
  if (reader.has("attn_logit_softcapping"))
    reader.fail(StatusCode::kUnsupported, "attn_logit_softcapping", "expected null");
  if (reader.boolean("use_bidirectional_attention", false))
    reader.fail(StatusCode::kUnsupported, "use_bidirectional_attention", "expected false");
}

Result<Gemma3Config> read_config(const ModelSource& source) {
  ConfigReader reader = source.config.reader();
  Gemma3Config c;
  c.num_layers = read_num_layers(reader);
  c.hidden_size = reader.positive_int("hidden_size");
  c.intermediate_size = reader.positive_int("intermediate_size");
  c.vocab_size = reader.positive_int("vocab_size", 262208);
  c.heads = read_heads(reader, c.hidden_size);
  c.query_pre_attn_scalar = reader.positive_number("query_pre_attn_scalar", 256.0);
  c.rms_norm_eps = read_rms_norm_eps(reader);
  c.attention_bias = reader.boolean("attention_bias", false);
  c.is_tied = read_tied(reader, source.table);
  c.windows = read_layer_windows(reader, c.num_layers);
  c.max_position_embeddings = reader.positive_int("max_position_embeddings", 131072);
  c.full_rope = read_full_width_rope(reader, {.theta = 1e6});
  c.window_rope = read_window_rope(reader);
  if (reader.has("final_logit_softcapping"))
    c.final_logit_softcapping = static_cast<float>(reader.positive_number("final_logit_softcapping"));
  require_usual(reader);
  if (!reader.status().ok()) return reader.status();
  return c;
}

struct Gemma3Layer {
  VectorId input_norm;
  SelfAttention attention;
  VectorId post_attention_norm;
  VectorId pre_feedforward_norm;
  Mlp mlp;
  VectorId post_feedforward_norm;
};

Gemma3Layer declare_layer(const Gemma3Config& c, int i, WeightTable& table) {
  const int64_t E = c.hidden_size;
  const std::string layer = fmt::format("layers.{}.", i);
  const auto norm = [&](const char* name) {
    return table.vector(i, layer + name + ".weight", E, kNormOffset);
  };
  Gemma3Layer l;
  l.input_norm = norm("input_layernorm");
  l.attention = declare_attention(table, i,
                                  {.module = layer + "self_attn",
                                   .hidden_size = E,
                                   .shape = c.attention(),
                                   .has_qkv_bias = c.attention_bias,
                                   .has_o_bias = c.attention_bias,
                                   .has_qk_norm = true,
                                   .norm_offset = kNormOffset,
                                   .norm_eps = c.rms_norm_eps});
  l.attention.scale = static_cast<float>(1.0 / std::sqrt(c.query_pre_attn_scalar));
  l.attention.window = c.windows[i];
  l.post_attention_norm = norm("post_attention_layernorm");
  l.pre_feedforward_norm = norm("pre_feedforward_layernorm");
  l.mlp = declare_mlp(table, i,
                      {layer + "mlp", E, c.intermediate_size, {.kind = MlpActivation::Kind::kGeluTanh}});
  l.post_feedforward_norm = norm("post_feedforward_layernorm");
  return l;
}

/// The root of hidden_size, rounded to the dtype of the embedding, as transformers does; MLX, whose packed
/// embeddings these are, always rounds to bf16.
float embedding_scale(int64_t hidden_size, const LinearSpec& embedding) {
  const auto root = static_cast<float>(std::sqrt(static_cast<double>(hidden_size)));
  if (embedding.format != WeightFormat::kFloat) return to_float(to_bf16(root));
  if (embedding.dtype == DType::kF32) return root;
  return embedding.dtype == DType::kF16 ? to_float(to_f16(root)) : to_float(to_bf16(root));
}

TokenEnds declare_gemma3_ends(const Gemma3Config& c, WeightTable& table) {
  TokenEnds ends = declare_ends(table, {.vocab_size = c.vocab_size,
                                        .hidden_size = c.hidden_size,
                                        .is_tied = c.is_tied,
                                        .norm_eps = c.rms_norm_eps,
                                        .norm_offset = kNormOffset});
  if (ends.token_embedding)
    ends.embedding_scale =
        embedding_scale(c.hidden_size, table.manifest().linears[ends.token_embedding.index].spec);
  return ends;
}

/// Rotary frequencies of the two kinds of layers.
struct Gemma3Rotaries {
  Rotary full, window;
};

/// Scratch of one pass.
struct Scratch {
  View h;                       ///< [T, E] f32: the residual stream.
  View x;                       ///< [T, E] activation dtype: its normalized copy.
  View block_out;               ///< [T, E] f32: what a block gives, before it is normed and added.
  View last;                    ///< [T, E] f32: the rows whose logits are wanted.
  View full_cos, full_sin;      ///< [T, R/2] f32.
  View window_cos, window_sin;  ///< [T, R/2] f32.
  AttentionScratch attention;
  MlpScratch mlp;

  Scratch(Arena& arena, const Gemma3Config& c, const Gemma3Rotaries& rotaries, DType dtype, int64_t T)
      : h(arena.array(DType::kF32, {T, c.hidden_size})),
        x(arena.array(dtype, {T, c.hidden_size})),
        block_out(arena.array(DType::kF32, {T, c.hidden_size})),
        last(arena.array(DType::kF32, {T, c.hidden_size})),
        full_cos(arena.array(DType::kF32, {T, rotaries.full.num_pairs()})),
        full_sin(arena.array(DType::kF32, {T, rotaries.full.num_pairs()})),
        window_cos(arena.array(DType::kF32, {T, rotaries.window.num_pairs()})),
        window_sin(arena.array(DType::kF32, {T, rotaries.window.num_pairs()})),
        attention(arena, c.attention(), dtype, T),
        mlp(arena, c.intermediate_size, dtype, T) {}
};

class Gemma3 final : public Model {
 public:
  Gemma3(Gemma3Config config, Gemma3Rotaries rotaries, ModelSpec spec, WeightTable& table)
      : config_(std::move(config)), rotaries_(std::move(rotaries)), spec_(std::move(spec)) {
    ends_ = declare_gemma3_ends(config_, table);
    for (int i = 0; i < config_.num_layers; ++i) layers_.push_back(declare_layer(config_, i, table));
    table.expect_absent(fmt::format("layers.{}.input_layernorm.weight", config_.num_layers),
                        fmt::format("num_hidden_layers = {}", config_.num_layers));
  }

  const ModelSpec& spec() const override { return spec_; }
  const TokenEnds* token_ends() const override { return &ends_; }

  int64_t scratch_bytes(int64_t num_rows) const override {
    Arena measure(nullptr, 0);
    Scratch(measure, config_, rotaries_, spec_.activation_dtype, num_rows);
    return measure.used_bytes();
  }

  void forward(const Pass& pass, Ops& ops, Weights& weights, const State& state, Arena& scratch,
               const Outputs& outputs) const override {
    const Scratch s(scratch, config_, rotaries_, spec_.activation_dtype, pass.rows.num_rows());
    const BlockPass full{ops, pass.rows, s.h, s.x, s.full_cos, s.full_sin};
    const BlockPass windowed{ops, pass.rows, s.h, s.x, s.window_cos, s.window_sin};
    const RmsNormOptions norm{config_.rms_norm_eps};
    const RmsNormOptions norm_and_add{config_.rms_norm_eps, /*accumulate=*/true};

    ends_.embed(full, weights.outside_layers(), pass.tokens);
    const auto& positions = pass.rows.positions;
    ops.rope_table(s.full_cos, s.full_sin, positions, rotaries_.full.inv_freq, rotaries_.full.multiplier);
    ops.rope_table(s.window_cos, s.window_sin, positions, rotaries_.window.inv_freq,
                   rotaries_.window.multiplier);
    for (size_t i = 0; i < layers_.size(); ++i) {
      const Gemma3Layer& layer = layers_[i];
      const Lease w = weights.layer(static_cast<int>(i));
      const BlockPass& block = config_.windows[i] > 0 ? windowed : full;
      ops.rms_norm(s.x, s.h, w[layer.input_norm], norm);
      layer.attention.forward_to(s.block_out, block, w, state.kv_layers[i], s.attention);
      ops.rms_norm(s.h, s.block_out, w[layer.post_attention_norm], norm_and_add);
      ops.rms_norm(s.x, s.h, w[layer.pre_feedforward_norm], norm);
      layer.mlp.forward_to(s.block_out, block, w, s.mlp);
      ops.rms_norm(s.h, s.block_out, w[layer.post_feedforward_norm], norm_and_add);
      outputs.taps.take(ops, i, s.h);
    }
    ends_.logits(full, weights.outside_layers(), pass.logit_rows, s.last, outputs);
    if (config_.final_logit_softcapping > 0 && !pass.logit_rows.empty())
      ops.softcap(outputs.logits, config_.final_logit_softcapping);
  }

 private:
  Gemma3Config config_;
  Gemma3Rotaries rotaries_;
  ModelSpec spec_;
  TokenEnds ends_;
  std::vector<Gemma3Layer> layers_;
};

}  // namespace

Result<std::unique_ptr<Model>> make_gemma3(const ModelSource& source) {
  TF_ASSIGN_OR_RETURN(Gemma3Config c, read_config(source));
  TF_ASSIGN_OR_RETURN(
      const ContextLengths lengths,
      choose_context(c.max_position_embeddings, source.options.context_tokens, c.full_rope.kind));
  const RotaryGeometry geometry = {c.heads.head_dim, c.max_position_embeddings, lengths.context_tokens};
  Gemma3Rotaries rotaries;
  TF_ASSIGN_OR_RETURN(rotaries.full, make_rotary(c.full_rope, geometry));
  TF_ASSIGN_OR_RETURN(rotaries.window, make_rotary(c.window_rope, geometry));
  ModelSpec spec;
  spec.model_type = source.config.model_type;
  spec.num_layers = c.num_layers;
  spec.hidden_size = c.hidden_size;
  spec.vocab_size = c.vocab_size;
  spec.max_position_embeddings = lengths.max_position_embeddings;
  spec.activation_dtype = activation_dtype(source.config, source.options.compute_f32);
  spec.kv_layers.assign(c.num_layers, {c.heads.num_kv_heads, c.heads.head_dim, spec.activation_dtype});
  for (const int64_t window : c.windows) spec.layers.push_back({attention_kind(window)});
  return std::unique_ptr<Model>(new Gemma3(std::move(c), std::move(rotaries), std::move(spec), source.table));
}

}  // namespace tensorfold
