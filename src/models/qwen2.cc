// Qwen2 and Qwen2.5 (Qwen2ForCausalLM): Llama's skeleton with biases on q, k and v, and optionally a sliding
// window in the upper layers (Qwen Team 2024, arXiv:2407.10671). Facts: specs/llama.md.
#include <fmt/format.h>

#include "models/config_rules.h"
#include "models/layers.h"
#include "models/registry.h"

namespace tensorfold {
namespace {

struct Qwen2Config {
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t vocab_size = 0;
  HeadCounts heads;
  float rms_norm_eps = 0;
  bool is_tied = false;
  std::vector<int64_t> windows;  ///< Of each layer; 0: all keys.
  int64_t max_position_embeddings = 0;
  RopeConfig rope;
};

Result<Qwen2Config> read_config(const ModelSource& source) {
  ConfigReader reader = source.config.reader();
  Qwen2Config c;
  c.num_layers = read_num_layers(reader);
  c.hidden_size = reader.positive_int("hidden_size");
  c.intermediate_size = reader.positive_int("intermediate_size");
  c.vocab_size = reader.positive_int("vocab_size");
  c.heads = read_head_counts(reader, c.hidden_size);
  c.rms_norm_eps = read_rms_norm_eps(reader);
  c.windows = read_windows(reader, c.num_layers, reader.non_negative_int("max_window_layers", 28));
  c.is_tied = read_tied(reader, source.table);
  c.max_position_embeddings = reader.positive_int("max_position_embeddings", 32768);
  c.rope = read_full_width_rope(reader);
  require_silu(reader);
  if (!reader.status().ok()) return reader.status();
  return c;
}

struct Qwen2Layer {
  VectorId input_norm;
  SelfAttention attention;
  VectorId post_attention_norm;
  Mlp mlp;
};

Qwen2Layer declare_layer(const Qwen2Config& c, int i, WeightTable& table) {
  const int64_t E = c.hidden_size, I = c.intermediate_size;
  const int64_t q_size = c.heads.num_heads * c.heads.head_dim;
  const int64_t kv_size = c.heads.num_kv_heads * c.heads.head_dim;
  const std::string layer = fmt::format("layers.{}.", i);
  const std::string attention = layer + "self_attn.", mlp = layer + "mlp.";
  Qwen2Layer l;
  l.input_norm = table.vector(i, layer + "input_layernorm.weight", E);
  l.attention.q_proj = table.linear(i, {attention + "q_proj", q_size, E, /*has_bias=*/true});
  l.attention.k_proj = table.linear(i, {attention + "k_proj", kv_size, E, /*has_bias=*/true});
  l.attention.v_proj = table.linear(i, {attention + "v_proj", kv_size, E, /*has_bias=*/true});
  l.attention.o_proj = table.linear(i, {attention + "o_proj", E, q_size});
  l.post_attention_norm = table.vector(i, layer + "post_attention_layernorm.weight", E);
  l.mlp.gate_proj = table.linear(i, {mlp + "gate_proj", I, E});
  l.mlp.up_proj = table.linear(i, {mlp + "up_proj", I, E});
  l.mlp.down_proj = table.linear(i, {mlp + "down_proj", E, I});
  l.attention.shape = {c.heads.num_heads, c.heads.num_kv_heads, c.heads.head_dim};
  l.attention.window = c.windows[i];
  return l;
}

TokenEnds declare_ends(const Qwen2Config& c, WeightTable& table) {
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

  Scratch(Arena& arena, const Qwen2Config& c, const Rotary& rotary, DType dtype, int64_t T)
      : h(arena.array(DType::kF32, {T, c.hidden_size})),
        x(arena.array(dtype, {T, c.hidden_size})),
        last(arena.array(DType::kF32, {T, c.hidden_size})),
        cos(arena.array(DType::kF32, {T, rotary.num_pairs()})),
        sin(arena.array(DType::kF32, {T, rotary.num_pairs()})),
        attention(arena, {c.heads.num_heads, c.heads.num_kv_heads, c.heads.head_dim}, dtype, T),
        mlp(arena, c.intermediate_size, dtype, T) {}
};

class Qwen2 final : public Model {
 public:
  Qwen2(Qwen2Config config, Rotary rotary, ModelSpec spec, WeightTable& table)
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
      const Qwen2Layer& layer = layers_[i];
      const Lease w = weights.layer(static_cast<int>(i));
      ops.rms_norm(s.x, s.h, w[layer.input_norm], norm);
      layer.attention.forward(block, w, state.kv_layers[i], s.attention);
      ops.rms_norm(s.x, s.h, w[layer.post_attention_norm], norm);
      layer.mlp.forward(block, w, s.mlp);
      outputs.taps.take(ops, i, s.h);
    }
    ends_.logits(block, weights.outside_layers(), pass.logit_rows, s.last, outputs);
  }

 private:
  Qwen2Config config_;
  Rotary rotary_;
  ModelSpec spec_;
  TokenEnds ends_;
  std::vector<Qwen2Layer> layers_;
};

}  // namespace

Result<std::unique_ptr<Model>> make_qwen2(const ModelSource& source) {
  TF_ASSIGN_OR_RETURN(Qwen2Config c, read_config(source));
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
  for (const int64_t window : c.windows) spec.layers.push_back({attention_kind(window), MlpKind::kDense});
  return std::unique_ptr<Model>(new Qwen2(std::move(c), std::move(rotary), std::move(spec), source.table));
}

}  // namespace tensorfold
