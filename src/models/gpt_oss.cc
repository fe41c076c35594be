// GPT-OSS (GptOssForCausalLM): windows on every second layer, a learned sink per head, and experts in MXFP4
// with a clamped SwiGLU (OpenAI 2025, arXiv:2508.10925). Facts: specs/gpt-oss.md.
#include <fmt/format.h>

#include "models/config_rules.h"
#include "models/layers.h"
#include "models/registry.h"

namespace tensorfold {
namespace {

struct GptOssConfig {
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;  ///< Of one expert.
  int64_t num_experts = 0;
  int64_t num_experts_per_tok = 0;
  MlpActivation activation;
  int64_t vocab_size = 0;
  HeadCounts heads;
  float rms_norm_eps = 0;
  bool attention_bias = false;  ///< On q, k, v and o.
  bool is_tied = false;
  std::vector<int64_t> windows;  ///< Of each layer; 0: all keys.
  int64_t max_position_embeddings = 0;
  RopeConfig rope;
};

void read_experts(ConfigReader& reader, GptOssConfig& c) {
  c.intermediate_size = reader.positive_int("intermediate_size");
  c.num_experts = reader.positive_int(reader.has("num_local_experts") ? "num_local_experts" : "num_experts");
  const char* per_token = reader.has("num_experts_per_tok") ? "num_experts_per_tok" : "experts_per_token";
  c.num_experts_per_tok = reader.positive_int(per_token);
  if (c.num_experts_per_tok > c.num_experts)
    reader.fail(StatusCode::kCorrupt, per_token, fmt::format("expected at most {}", c.num_experts));
  c.activation = {.kind = MlpActivation::Kind::kClampedSilu,
                  .alpha = static_cast<float>(reader.positive_number("swiglu_alpha", 1.702)),
                  .limit = static_cast<float>(reader.positive_number("swiglu_limit", 7.0))};
}

/// By `layer_types`; without it windows and full attention take turns.
std::vector<int64_t> read_gpt_oss_windows(ConfigReader& reader, int64_t num_layers) {
  const int64_t window = reader.positive_int("sliding_window", 128);
  if (reader.has("layer_types")) return windows_by_type(reader, num_layers, window);
  std::vector<int64_t> windows(num_layers, 0);
  for (int64_t i = 0; i < num_layers; i += 2) windows[i] = window;
  return windows;
}

/// Where the file says nothing, the YaRN of the published models, as in the reference.
RopeConfig read_rope(ConfigReader& reader) {
  constexpr double kTheta = 150000.0;
  if (reader.has("rope_scaling") || reader.has("rope_parameters"))
    return read_full_width_rope(reader, {.theta = kTheta});
  return {.kind = RopeKind::kYarn,
          .theta = reader.positive_number("rope_theta", kTheta),
          .factor = 32.0,
          .original_max_position_embeddings = 4096,
          .truncate = false};
}

Result<GptOssConfig> read_config(const ModelSource& source) {
  ConfigReader reader = source.config.reader();
  GptOssConfig c;
  c.num_layers = read_num_layers(reader);
  c.hidden_size = reader.positive_int("hidden_size");
  read_experts(reader, c);
  c.vocab_size = reader.positive_int("vocab_size");
  c.heads = read_head_counts(reader, c.hidden_size, /*default_head_dim=*/64);
  c.rms_norm_eps = static_cast<float>(reader.positive_number("rms_norm_eps", 1e-5));
  c.attention_bias = reader.boolean("attention_bias", true);
  c.windows = read_gpt_oss_windows(reader, c.num_layers);
  c.is_tied = read_tied(reader, source.table);
  c.max_position_embeddings = reader.positive_int("max_position_embeddings", 131072);
  c.rope = read_rope(reader);
  require_silu(reader);
  if (!reader.status().ok()) return reader.status();
  return c;
}

struct GptOssLayer {
  VectorId input_norm;
  SelfAttention attention;
  VectorId post_attention_norm;
  SparseMoe moe;
};

GptOssLayer declare_layer(const GptOssConfig& c, int i, WeightTable& table) {
  const int64_t E = c.hidden_size;
  const std::string layer = fmt::format("layers.{}.", i);
  GptOssLayer l;
  l.input_norm = table.vector(i, layer + "input_layernorm.weight", E);
  l.attention = declare_attention(table, i,
                                  {.module = layer + "self_attn",
                                   .hidden_size = E,
                                   .shape = {c.heads.num_heads, c.heads.num_kv_heads, c.heads.head_dim},
                                   .has_qkv_bias = c.attention_bias,
                                   .has_o_bias = c.attention_bias});
  l.attention.sinks = table.vector(i, layer + "self_attn.sinks", c.heads.num_heads);
  l.attention.window = c.windows[i];
  l.post_attention_norm = table.vector(i, layer + "post_attention_layernorm.weight", E);
  l.moe.gate = table.linear(i, {layer + "mlp.router", c.num_experts, E, /*has_bias=*/true});
  l.moe.experts = table.experts(i, {.module = layer + "mlp",
                                    .num_experts = c.num_experts,
                                    .hidden_size = E,
                                    .intermediate_size = c.intermediate_size,
                                    .has_bias = true,
                                    .is_interleaved = true,
                                    .num_experts_per_tok = c.num_experts_per_tok});
  l.moe.activation = c.activation;
  l.moe.scoring = RouterScoring::kSoftmaxOfChosen;
  return l;
}

/// Scratch of one pass.
struct Scratch {
  View h;         ///< [T, E] f32: the residual stream.
  View x;         ///< [T, E] activation dtype: its normalized copy.
  View last;      ///< [T, E] f32: the rows whose logits are wanted.
  View cos, sin;  ///< [T, R/2] f32.
  AttentionScratch attention;
  MoeScratch moe;

  Scratch(Arena& arena, const GptOssConfig& c, const Rotary& rotary, DType dtype, int64_t T)
      : h(arena.array(DType::kF32, {T, c.hidden_size})),
        x(arena.array(dtype, {T, c.hidden_size})),
        last(arena.array(DType::kF32, {T, c.hidden_size})),
        cos(arena.array(DType::kF32, {T, rotary.num_pairs()})),
        sin(arena.array(DType::kF32, {T, rotary.num_pairs()})),
        attention(arena, {c.heads.num_heads, c.heads.num_kv_heads, c.heads.head_dim}, dtype, T),
        moe(arena, {c.hidden_size, c.num_experts, c.num_experts_per_tok}, dtype, T) {}
};

class GptOss final : public Model {
 public:
  GptOss(GptOssConfig config, Rotary rotary, ModelSpec spec, WeightTable& table)
      : config_(std::move(config)), rotary_(std::move(rotary)), spec_(std::move(spec)) {
    ends_ = declare_ends(table, {.vocab_size = config_.vocab_size,
                                 .hidden_size = config_.hidden_size,
                                 .is_tied = config_.is_tied,
                                 .norm_eps = config_.rms_norm_eps});
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
      const GptOssLayer& layer = layers_[i];
      const Lease w = weights.layer(static_cast<int>(i));
      ops.rms_norm(s.x, s.h, w[layer.input_norm], norm);
      layer.attention.forward(block, w, state.kv_layers[i], s.attention);
      ops.rms_norm(s.x, s.h, w[layer.post_attention_norm], norm);
      layer.moe.forward(block, w, s.moe);
      outputs.taps.take(ops, i, s.h);
    }
    ends_.logits(block, weights.outside_layers(), pass.logit_rows, s.last, outputs);
  }

 private:
  GptOssConfig config_;
  Rotary rotary_;
  ModelSpec spec_;
  TokenEnds ends_;
  std::vector<GptOssLayer> layers_;
};

}  // namespace

Result<std::unique_ptr<Model>> make_gpt_oss(const ModelSource& source) {
  TF_ASSIGN_OR_RETURN(GptOssConfig c, read_config(source));
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
  for (int64_t window : c.windows) spec.layers.push_back({attention_kind(window), MlpKind::kExperts});
  return std::unique_ptr<Model>(new GptOss(std::move(c), std::move(rotary), std::move(spec), source.table));
}

}  // namespace tensorfold
