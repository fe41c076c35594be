// Nemotron-H (NemotronHForCausalLM): a stack in which every layer is one mixer, Mamba-2, attention without
// positions, an MLP or a mixture of experts (NVIDIA 2025, arXiv:2504.03624). Facts: specs/nemotron.md.
#include <fmt/format.h>

#include <algorithm>

#include "models/config_rules.h"
#include "models/layers.h"
#include "models/mamba2.h"
#include "models/registry.h"

namespace tensorfold {
namespace {

enum class LayerType { kMamba, kAttention, kMoe, kMlp };

constexpr MlpActivation kRelu2 = {.kind = MlpActivation::Kind::kRelu2};

struct NemotronHConfig {
  std::vector<LayerType> layers;
  std::vector<LayerType> mtp_layers;  ///< Of the draft head; empty: none.
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;      ///< Of the MLP layers.
  int64_t moe_intermediate_size = 0;  ///< Of one expert.
  MoeShape moe;
  int64_t n_group = 1;
  int64_t topk_group = 1;
  bool norm_topk_prob = false;  ///< The chosen experts' weights are divided by their sum.
  float routed_scaling_factor = 1;
  Mamba2Shape mamba;
  bool use_bias = false;       ///< On the projections of Mamba-2.
  bool use_conv_bias = false;  ///< On its convolution.
  float dt_min = 0, dt_max = 0;
  HeadCounts heads;
  bool attention_bias = false;  ///< On q, k, v and o.
  bool mlp_bias = false;        ///< On MLPs, shared experts and latent projections, not on routed experts.
  float norm_eps = 0;
  int64_t vocab_size = 0;
  bool is_tied = false;
  int64_t max_position_embeddings = 0;

  AttentionShape attention() const { return {heads.num_heads, heads.num_kv_heads, heads.head_dim}; }
  bool has(LayerType type) const {
    return std::find(layers.begin(), layers.end(), type) != layers.end() ||
           std::find(mtp_layers.begin(), mtp_layers.end(), type) != mtp_layers.end();
  }
};

/// The names of `layers_block_type`, those of older files first.
std::vector<LayerType> layers_by_name(ConfigReader& reader, std::string_view key) {
  constexpr std::pair<std::string_view, LayerType> kNames[] = {{"mamba", LayerType::kMamba},
                                                               {"attention", LayerType::kAttention},
                                                               {"moe", LayerType::kMoe},
                                                               {"mlp", LayerType::kMlp},
                                                               {"linear_attention", LayerType::kMamba},
                                                               {"full_attention", LayerType::kAttention}};
  std::vector<LayerType> layers;
  for (const std::string& name : reader.string_list(key)) {
    const auto* known = std::find_if(std::begin(kNames), std::end(kNames),
                                     [&](const auto& entry) { return entry.first == name; });
    if (known != std::end(kNames)) {
      layers.push_back(known->second);
    } else {
      reader.fail(StatusCode::kUnsupported, key,
                  fmt::format("expected mamba, attention, moe and mlp, not \"{}\"", name));
    }
  }
  return layers;
}

/// The letters of `hybrid_override_pattern`.
std::vector<LayerType> layers_by_letter(ConfigReader& reader, std::string_view key) {
  constexpr std::string_view kLetters = "M*E-";  // in the order of LayerType
  std::vector<LayerType> layers;
  for (const char letter : reader.string(key, "")) {
    const size_t index = kLetters.find(letter);
    if (index != kLetters.npos) {
      layers.push_back(static_cast<LayerType>(index));
    } else {
      reader.fail(StatusCode::kUnsupported, key, "expected the letters M, *, E and -");
    }
  }
  return layers;
}

/// From either spelling; files with both must mean the same by them, as readers differ in which one they
/// take.
std::vector<LayerType> read_layers(ConfigReader& reader, std::string_view list, std::string_view pattern) {
  if (!reader.has(list)) return layers_by_letter(reader, pattern);
  const std::vector<LayerType> layers = layers_by_name(reader, list);
  if (reader.has(pattern) && layers_by_letter(reader, pattern) != layers)
    reader.fail(StatusCode::kCorrupt, pattern, fmt::format("expected the layers of {}", list));
  return layers;
}

void read_all_layers(ConfigReader& reader, NemotronHConfig& c, bool has_mtp) {
  c.layers = read_layers(reader, "layers_block_type", "hybrid_override_pattern");
  if (c.layers.empty() || std::ssize(c.layers) > kMaxLayers)
    reader.fail(StatusCode::kCorrupt, "layers_block_type",
                fmt::format("expected it or hybrid_override_pattern to have 1 to {} layers", kMaxLayers));
  if (!has_mtp) return;
  c.mtp_layers = read_layers(reader, "mtp_layers_block_type", "mtp_hybrid_override_pattern");
  if (c.mtp_layers.empty()) c.mtp_layers = {LayerType::kAttention, LayerType::kMoe};
  // A draft head has no recurrent states.
  if (std::find(c.mtp_layers.begin(), c.mtp_layers.end(), LayerType::kMamba) != c.mtp_layers.end())
    reader.fail(StatusCode::kUnsupported, "mtp_layers_block_type", "expected no mamba in the draft head");
}

void read_experts(ConfigReader& reader, NemotronHConfig& c) {
  MoeShape& moe = c.moe;
  moe.hidden_size = c.hidden_size;
  if (!c.has(LayerType::kMoe)) return;
  moe.num_experts = reader.positive_int("n_routed_experts");
  moe.num_experts_per_tok = reader.positive_int("num_experts_per_tok");
  reader.positive_int("n_shared_experts", 1);  // however many there are, this is the width of all of them:
  moe.shared_intermediate_size = reader.positive_int("moe_shared_expert_intermediate_size");
  moe.latent_size = reader.positive_int("moe_latent_size", 0);
  c.moe_intermediate_size = reader.positive_int("moe_intermediate_size");
  c.norm_topk_prob = reader.boolean("norm_topk_prob", true);
  c.routed_scaling_factor = static_cast<float>(reader.positive_number("routed_scaling_factor", 1.0));
  c.n_group = reader.positive_int("n_group", 1);
  c.topk_group = reader.positive_int("topk_group", 1);
  // A group's worth is the sum of its two best experts.
  if (moe.num_experts % c.n_group != 0 || (c.n_group > 1 && moe.num_experts / c.n_group < 2))
    reader.fail(StatusCode::kCorrupt, "n_group",
                fmt::format("expected a divisor of n_routed_experts ({}) with two experts or more a group",
                            moe.num_experts));
  if (c.topk_group > c.n_group)
    reader.fail(StatusCode::kCorrupt, "topk_group", fmt::format("expected at most n_group ({})", c.n_group));
  const int64_t num_choosable = moe.num_experts / c.n_group * c.topk_group;
  if (moe.num_experts_per_tok > num_choosable)
    reader.fail(StatusCode::kCorrupt, "num_experts_per_tok",
                fmt::format("expected at most {}", num_choosable));
}

/// `time_step_limit`: two numbers, the second of them usually infinite. The reference's PyTorch path takes
/// time_step_min instead, which the kernels that models are served with do not.
void read_time_step_limit(ConfigReader& reader, NemotronHConfig& c) {
  std::vector<double> limit = {0.0, std::numeric_limits<double>::infinity()};
  if (reader.has("time_step_limit")) limit = reader.extended_number_list("time_step_limit");
  if (limit.size() == 2 && limit[0] >= 0 && limit[0] <= limit[1]) {
    c.dt_min = static_cast<float>(limit[0]);
    c.dt_max = static_cast<float>(limit[1]);
  } else {
    reader.fail(StatusCode::kCorrupt, "time_step_limit", "expected two numbers from 0 on, ascending");
  }
}

void read_mamba(ConfigReader& reader, NemotronHConfig& c) {
  if (!c.has(LayerType::kMamba)) return;
  Mamba2Shape& mamba = c.mamba;
  mamba.num_heads = read_size(reader, "mamba_num_heads", 1, kMaxRecurrentHeads);
  mamba.head_dim = read_size(reader, "mamba_head_dim", 1, kMaxHeadDim);
  mamba.num_groups = read_size(reader, "n_groups", 1, kMaxRecurrentHeads);
  mamba.state_size = read_size(reader, "ssm_state_size", 1, kMaxHeadDim);
  mamba.conv_taps = read_size(reader, "conv_kernel", 2, kMaxConvTaps);
  if (mamba.num_heads % mamba.num_groups != 0)
    reader.fail(StatusCode::kCorrupt, "n_groups",
                fmt::format("expected a divisor of mamba_num_heads ({})", mamba.num_heads));
  c.use_bias = reader.boolean(reader.has("use_bias") ? "use_bias" : "mamba_proj_bias", false);
  c.use_conv_bias = reader.boolean("use_conv_bias", true);
  read_time_step_limit(reader, c);
  const std::string activation = reader.string("mamba_hidden_act", "silu");
  if (activation != "silu" && activation != "swish")
    reader.fail(StatusCode::kUnsupported, "mamba_hidden_act", "expected silu");
}

/// `layer_norm_epsilon`, which some files also call `norm_eps`.
float read_norm_eps(ConfigReader& reader) {
  const double norm_eps = reader.positive_number("norm_eps", 1e-5);
  const double eps = reader.positive_number("layer_norm_epsilon", norm_eps);
  if (reader.has("norm_eps") && norm_eps != eps)
    reader.fail(StatusCode::kCorrupt, "norm_eps", fmt::format("expected layer_norm_epsilon ({})", eps));
  return static_cast<float>(eps);
}

Result<NemotronHConfig> read_config(const ModelSource& source) {
  ConfigReader reader = source.config.reader();
  NemotronHConfig c;
  // Files without a head keep its keys, and files with one say "0 layers": the tensors decide.
  read_all_layers(reader, c,
                  source.options.with_draft_head && source.table.has_tensor("mtp.layers.0.eh_proj.weight"));
  c.hidden_size = reader.positive_int("hidden_size");
  if (c.has(LayerType::kMlp)) c.intermediate_size = reader.positive_int("intermediate_size");
  read_experts(reader, c);
  read_mamba(reader, c);
  c.heads = read_head_counts(reader, c.hidden_size, /*default_head_dim=*/128);
  c.attention_bias = reader.boolean("attention_bias", false);
  c.mlp_bias = reader.boolean("mlp_bias", false);
  c.norm_eps = read_norm_eps(reader);
  c.vocab_size = reader.positive_int("vocab_size");
  c.is_tied = read_tied(reader, source.table);
  c.max_position_embeddings = reader.positive_int("max_position_embeddings", 4096);
  if (reader.string("mlp_hidden_act", "relu2") != "relu2")
    reader.fail(StatusCode::kUnsupported, "mlp_hidden_act", "expected relu2");
  if (!reader.status().ok()) return reader.status();
  return c;
}

/// A norm and one of the four.
struct NemotronHLayer {
  LayerType type = LayerType::kMamba;
  VectorId norm;
  Mamba2 mamba;
  SelfAttention attention;
  SparseMoe moe;
  Mlp mlp;
};

/// Where a layer's weights are.
struct LayerDeclaration {
  int layer = 0;       ///< Of the lease.
  std::string module;  ///< "layers.3."
  LayerType type = LayerType::kMamba;
};

SparseMoe declare_moe(const NemotronHConfig& c, const LayerDeclaration& d, WeightTable& table) {
  const std::string mixer = d.module + "mixer";
  const int64_t E = c.hidden_size, latent = c.moe.latent_size;
  SparseMoe moe;
  moe.gate = table.linear(d.layer, {mixer + ".gate", c.moe.num_experts, E});
  moe.correction_bias = table.vector(d.layer, mixer + ".gate.e_score_correction_bias", c.moe.num_experts);
  if (latent > 0) {
    moe.latent_in = table.linear(d.layer, {mixer + ".fc1_latent_proj", latent, E, c.mlp_bias});
    moe.latent_out = table.linear(d.layer, {mixer + ".fc2_latent_proj", E, latent, c.mlp_bias});
  }
  moe.experts = table.experts(d.layer, {.module = mixer,
                                        .num_experts = c.moe.num_experts,
                                        .hidden_size = latent > 0 ? latent : E,
                                        .intermediate_size = c.moe_intermediate_size,
                                        .has_gate = false,
                                        .num_experts_per_tok = c.moe.num_experts_per_tok,
                                        .num_groups = c.n_group});
  moe.shared = declare_mlp(
      table, d.layer, {mixer + ".shared_experts", E, c.moe.shared_intermediate_size, kRelu2, c.mlp_bias});
  moe.activation = kRelu2;
  moe.scoring = RouterScoring::kSigmoid;
  moe.normalize = c.norm_topk_prob;
  moe.scale = c.routed_scaling_factor;
  moe.num_groups = c.n_group;
  moe.groups_kept = c.topk_group;
  return moe;
}

NemotronHLayer declare_layer(const NemotronHConfig& c, const LayerDeclaration& d, WeightTable& table) {
  const std::string mixer = d.module + "mixer";
  const int64_t E = c.hidden_size;
  NemotronHLayer l;
  l.type = d.type;
  l.norm = table.vector(d.layer, d.module + "norm.weight", E);
  switch (d.type) {
    case LayerType::kMamba:
      l.mamba = declare_mamba2(table, d.layer, {mixer, E, c.mamba, c.use_bias, c.use_conv_bias, c.norm_eps});
      l.mamba.dt_min = c.dt_min;
      l.mamba.dt_max = c.dt_max;
      break;
    case LayerType::kAttention:
      l.attention = declare_attention(table, d.layer,
                                      {.module = mixer,
                                       .hidden_size = E,
                                       .shape = c.attention(),
                                       .has_qkv_bias = c.attention_bias,
                                       .has_o_bias = c.attention_bias});
      break;
    case LayerType::kMoe:
      l.moe = declare_moe(c, d, table);
      break;
    case LayerType::kMlp:
      l.mlp = declare_mlp(table, d.layer, {mixer, E, c.intermediate_size, kRelu2, c.mlp_bias});
      break;
  }
  return l;
}

/// Scratch of one pass, of the model or of its draft head.
struct Scratch {
  View h;             ///< [T, E] f32: the residual stream.
  View x;             ///< [T, E] activation dtype: its normalized copy.
  View last;          ///< [T, E] f32: the rows whose logits are wanted.
  View no_positions;  ///< [T, 0] f32: nothing is rotated.
  AttentionScratch attention;
  Mamba2Scratch mamba;
  MlpScratch mlp;
  MoeScratch moe;

  Scratch(Arena& arena, const NemotronHConfig& c, DType dtype, int64_t T)
      : h(arena.array(DType::kF32, {T, c.hidden_size})),
        x(arena.array(dtype, {T, c.hidden_size})),
        last(arena.array(DType::kF32, {T, c.hidden_size})),
        no_positions(arena.array(DType::kF32, {T, 0})),
        attention(arena, c.attention(), dtype, T),
        mamba(arena, c.mamba, dtype, T),
        mlp(arena, c.intermediate_size, dtype, T),
        moe(arena, c.moe, dtype, T) {}
};

/// What the model and its head are made of.
struct NemotronHParts {
  NemotronHConfig config;
  DType dtype = DType::kBF16;  ///< Of activations.
  TokenEnds ends;
};

/// Runs layers and counts the states that they take.
class LayerRun {
 public:
  LayerRun(const BlockPass& block, const State& state, const Scratch& scratch, float norm_eps)
      : block_(block), state_(state), s_(scratch), norm_{norm_eps} {}

  void run(const NemotronHLayer& layer, const Lease& w) {
    block_.ops.rms_norm(s_.x, s_.h, w[layer.norm], norm_);
    switch (layer.type) {
      case LayerType::kMamba:
        return layer.mamba.forward(block_, w, state_.recurrent_layers[next_recurrent_++], s_.mamba);
      case LayerType::kAttention:
        return layer.attention.forward(block_, w, state_.kv_layers[next_kv_++], s_.attention);
      case LayerType::kMoe:
        return layer.moe.forward(block_, w, s_.moe);
      case LayerType::kMlp:
        return layer.mlp.forward(block_, w, s_.mlp);
    }
  }

 private:
  const BlockPass& block_;
  const State& state_;
  const Scratch& s_;
  RmsNormOptions norm_;
  size_t next_kv_ = 0, next_recurrent_ = 0;
};

/// The draft head: embedding of the next token and hidden state, side by side through one matrix, then layers
/// of its own. Its weights are leased as one more layer, after the model's.
class NemotronHDraftHead final : public DraftHead {
 public:
  NemotronHDraftHead(const NemotronHParts& model, WeightTable& table) : model_(model), ends_(model.ends) {
    const NemotronHConfig& c = model.config;
    const int64_t E = c.hidden_size;
    lease_ = static_cast<int>(c.layers.size());
    embedding_norm_ = table.vector(lease_, "mtp.layers.0.enorm.weight", E);
    hidden_norm_ = table.vector(lease_, "mtp.layers.0.hnorm.weight", E);
    combine_ = table.linear(lease_, {"mtp.layers.0.eh_proj", E, 2 * E});
    const auto module = [](size_t i) { return fmt::format("mtp.layers.{}.", i); };
    const size_t num_layers = c.mtp_layers.size();
    for (size_t i = 0; i < num_layers; ++i) {
      layers_.push_back(declare_layer(c, {lease_, module(i), c.mtp_layers[i]}, table));
      if (c.mtp_layers[i] == LayerType::kAttention)
        kv_layers_.push_back({c.heads.num_kv_heads, c.heads.head_dim, model.dtype});
    }
    ends_.final_norm = table.vector(kOutsideLayers, module(num_layers - 1) + "final_layernorm.weight", E);
    table.expect_absent(module(num_layers) + "norm.weight",
                        fmt::format("a draft head of {} layers", num_layers));
  }

  std::span<const KvShape> kv_layers() const override { return kv_layers_; }

  int64_t scratch_bytes(int64_t num_rows) const override {
    Arena measure(nullptr, 0);
    (void)pair_scratch(measure, num_rows);
    Scratch(measure, model_.config, model_.dtype, num_rows);
    return measure.used_bytes();
  }

  void forward(const Pass& pass, View hidden, Ops& ops, Weights& weights, const State& state, Arena& scratch,
               const Outputs& outputs) const override {
    const int64_t T = pass.rows.num_rows(), E = model_.config.hidden_size;
    const View pair = pair_scratch(scratch, T);
    const Scratch s(scratch, model_.config, model_.dtype, T);
    const BlockPass block{ops, pass.rows, s.h, s.x, s.no_positions, s.no_positions};
    const RmsNormOptions norm{model_.config.norm_eps};

    ends_.embed(block, weights.outside_layers(), pass.tokens);
    const Lease w = weights.layer(lease_);
    ops.rms_norm(pair.columns(0, E), s.h, w[embedding_norm_], norm);
    ops.rms_norm(pair.columns(E, E), hidden, w[hidden_norm_], norm);
    const LinearCall combine[] = {{.out = s.h, .weight = w[combine_]}};
    ops.linear(pair, combine);
    LayerRun layers(block, state, s, model_.config.norm_eps);
    for (const NemotronHLayer& layer : layers_) layers.run(layer, w);
    ends_.logits(block, weights.outside_layers(), pass.logit_rows, s.last, outputs);
  }

 private:
  /// [T, 2E] activation dtype: the normalized embedding, then the normalized hidden state.
  View pair_scratch(Arena& arena, int64_t num_rows) const {
    return arena.array(model_.dtype, {num_rows, 2 * model_.config.hidden_size});
  }

  const NemotronHParts& model_;  ///< Of the model that owns this head.
  int lease_ = 0;
  VectorId embedding_norm_, hidden_norm_;
  LinearId combine_;
  std::vector<NemotronHLayer> layers_;
  TokenEnds ends_;  ///< The model's, but for the final norm.
  std::vector<KvShape> kv_layers_;
};

class NemotronH final : public Model {
 public:
  NemotronH(NemotronHConfig config, ModelSpec spec, WeightTable& table)
      : parts_{std::move(config), spec.activation_dtype, {}}, spec_(std::move(spec)) {
    const NemotronHConfig& c = parts_.config;
    parts_.ends =
        declare_ends(table, {.vocab_size = c.vocab_size,
                             .hidden_size = c.hidden_size,
                             .is_tied = c.is_tied,
                             .norm_eps = c.norm_eps,
                             .embedding = table.has_tensor("embedding.weight") ? "embedding" : "embeddings",
                             .final_norm = "norm_f.weight"});
    for (size_t i = 0; i < c.layers.size(); ++i)
      layers_.push_back(
          declare_layer(c, {static_cast<int>(i), fmt::format("layers.{}.", i), c.layers[i]}, table));
    table.expect_absent(fmt::format("layers.{}.norm.weight", c.layers.size()),
                        fmt::format("that there are {} layers", c.layers.size()));
    if (!c.mtp_layers.empty()) draft_head_ = std::make_unique<NemotronHDraftHead>(parts_, table);
  }

  const ModelSpec& spec() const override { return spec_; }
  const TokenEnds* token_ends() const override { return &parts_.ends; }
  const DraftHead* draft_head() const override { return draft_head_.get(); }

  int64_t scratch_bytes(int64_t num_rows) const override {
    Arena measure(nullptr, 0);
    Scratch(measure, parts_.config, parts_.dtype, num_rows);
    return measure.used_bytes();
  }

  void forward(const Pass& pass, Ops& ops, Weights& weights, const State& state, Arena& scratch,
               const Outputs& outputs) const override {
    const Scratch s(scratch, parts_.config, parts_.dtype, pass.rows.num_rows());
    const BlockPass block{ops, pass.rows, s.h, s.x, s.no_positions, s.no_positions, pass.drafted_rows};

    parts_.ends.embed(block, weights.outside_layers(), pass.tokens);
    LayerRun layers(block, state, s, parts_.config.norm_eps);
    for (size_t i = 0; i < layers_.size(); ++i) {
      layers.run(layers_[i], weights.layer(static_cast<int>(i)));
      outputs.taps.take(ops, i, s.h);
    }
    parts_.ends.logits(block, weights.outside_layers(), pass.logit_rows, s.last, outputs);
  }

  void commit(const RowBatch& accepted, Ops& ops, Weights& weights, const State& state,
              Arena& scratch) const override {
    const Mamba2Scratch s(scratch, parts_.config.mamba, parts_.dtype, accepted.num_rows());
    size_t next_recurrent = 0;
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (layers_[i].type != LayerType::kMamba) continue;
      layers_[i].mamba.commit({ops, accepted}, weights.layer(static_cast<int>(i)),
                              state.recurrent_layers[next_recurrent++], s);
    }
  }

 private:
  NemotronHParts parts_;
  ModelSpec spec_;
  std::vector<NemotronHLayer> layers_;
  std::unique_ptr<NemotronHDraftHead> draft_head_;  ///< Refers to parts_.
};

LayerKind kind_of(LayerType type) {
  switch (type) {
    case LayerType::kMamba:
      return {MixerKind::kMamba2, MlpKind::kNone};
    case LayerType::kAttention:
      return {MixerKind::kAttention, MlpKind::kNone};
    case LayerType::kMoe:
      return {MixerKind::kNone, MlpKind::kExperts};
    case LayerType::kMlp:
      return {MixerKind::kNone, MlpKind::kDense};
  }
  TF_CHECK(false, "unknown LayerType");
}

ModelSpec make_spec(const ModelSource& source, const NemotronHConfig& c, int64_t max_position_embeddings) {
  ModelSpec spec;
  spec.model_type = source.config.model_type;
  spec.num_layers = std::ssize(c.layers);
  spec.hidden_size = c.hidden_size;
  spec.vocab_size = c.vocab_size;
  spec.max_position_embeddings = max_position_embeddings;
  spec.activation_dtype = activation_dtype(source.config, source.options.compute_f32);
  for (LayerType type : c.layers) {
    spec.layers.push_back(kind_of(type));
    if (type == LayerType::kAttention)
      spec.kv_layers.push_back({c.heads.num_kv_heads, c.heads.head_dim, spec.activation_dtype});
    if (type == LayerType::kMamba) spec.recurrent_layers.push_back(c.mamba.state());
  }
  return spec;
}

}  // namespace

Result<std::unique_ptr<Model>> make_nemotron_h(const ModelSource& source) {
  TF_ASSIGN_OR_RETURN(NemotronHConfig c, read_config(source));
  TF_ASSIGN_OR_RETURN(
      const ContextLengths lengths,
      choose_context(c.max_position_embeddings, source.options.context_tokens, RopeKind::kDefault));
  ModelSpec spec = make_spec(source, c, lengths.max_position_embeddings);
  return std::unique_ptr<Model>(new NemotronH(std::move(c), std::move(spec), source.table));
}

}  // namespace tensorfold
