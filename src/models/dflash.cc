// DFlash and DFlash2 (z-lab): a small Qwen3-like model whose block rows attend to each other and to context
// that is projected, in each layer, from the target's residual streams. DFlash2 adds a convolution around
// attention and MLP, and scores for pairs of tokens. Facts: specs/drafters.md §3 and §4.
#include "models/dflash.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/fp_env.h"
#include "models/config_rules.h"
#include "models/layers.h"

namespace tensorfold {
namespace {

struct DFlashConfig {
  bool is_v2 = false;
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t vocab_size = 0;  ///< The target's.
  HeadCounts heads;
  float rms_norm_eps = 0;
  bool attention_bias = false;         ///< On q, k, v and o.
  std::vector<int64_t> windows;        ///< Of each layer; 0: all keys.
  std::vector<bool> is_causal;         ///< Of each layer: whether a row sees only the block's rows before it.
  std::vector<int32_t> target_layers;  ///< Whose residual streams it reads.
  int64_t block_size = 0;
  int32_t mask_token_id = 0;
  float input_embedding_scale = 1;
  float output_multiplier = 1;        ///< Of the logits, before the cap.
  float final_logit_softcapping = 0;  ///< 0: none.
  int64_t num_candidates = 16;
  int64_t conv_taps = 0, conv_group_size = 1;  ///< v2.
  int64_t selector_rank = 0;                   ///< v2.
  int64_t max_position_embeddings = 0;
  RopeConfig rope;

  AttentionShape attention() const { return {heads.num_heads, heads.num_kv_heads, heads.head_dim}; }
  int64_t num_taps() const { return std::ssize(target_layers); }
  /// Numbers that a row adds to one side of a convolution.
  int64_t side_size() const { return conv_taps * (hidden_size / conv_group_size); }
};

/// `target_layer_ids`; without the key as many layers as the drafter has, from the second to the fourth last,
/// at even distances (halves to the even one).
std::vector<int32_t> read_target_layers(ConfigReader& reader, const DFlashConfig& c,
                                        int64_t num_target_layers) {
  std::vector<int64_t> layers = reader.int_list("target_layer_ids");
  if (!reader.has("target_layer_ids")) {
    const int64_t n = c.num_layers;
    for (int64_t i = 0; i < n; ++i) {
      const double place =
          n == 1 ? static_cast<double>(num_target_layers / 2)
                 : 1.0 + static_cast<double>(i * (num_target_layers - 4)) / static_cast<double>(n - 1);
      layers.push_back(static_cast<int64_t>(std::nearbyint(place)));
    }
  }
  const char* key = reader.has("target_layer_ids") ? "target_layer_ids" : "num_hidden_layers";
  if (layers.empty() || std::ssize(layers) > num_target_layers)
    reader.fail(StatusCode::kCorrupt, key,
                fmt::format("expected 1 to {} layers, as many as the target has", num_target_layers));
  for (const int64_t layer : layers) {
    if (layer < 0 || layer >= num_target_layers)
      reader.fail(
          StatusCode::kInvalidArgument, "target_layer_ids",
          fmt::format("expected layers of the target, which has {}, not {}", num_target_layers, layer));
  }
  return {layers.begin(), layers.end()};
}

/// What must be as the target is.
void check_target(ConfigReader& reader, const DFlashConfig& c, const ModelSpec& target) {
  const auto fail = [&](std::string_view key, int64_t expected) {
    reader.fail(
        StatusCode::kInvalidArgument, key,
        fmt::format("expected {}, as of the {} model that it drafts for", expected, target.model_type));
  };
  if (c.hidden_size != target.hidden_size) fail("hidden_size", target.hidden_size);
  if (reader.has("num_target_layers") && reader.positive_int("num_target_layers") != target.num_layers)
    fail("num_target_layers", target.num_layers);
  if (c.is_v2 && c.vocab_size != target.vocab_size) fail("vocab_size", target.vocab_size);
  if (c.mask_token_id >= target.vocab_size)
    reader.fail(StatusCode::kInvalidArgument, "mask_token_id",
                fmt::format("expected a token below {}, the vocabulary of the model that it drafts for",
                            target.vocab_size));
}

void read_attention_kinds(ConfigReader& reader, DFlashConfig& c) {
  c.windows = read_windows(reader, c.num_layers, reader.non_negative_int("max_window_layers", 28));
  const std::optional<bool> is_causal = reader.optional_boolean("is_causal");
  for (const int64_t window : c.windows) {
    c.is_causal.push_back(is_causal.value_or(window > 0));
    if (window > 0 && window < c.block_size)
      reader.fail(StatusCode::kUnsupported, "sliding_window",
                  fmt::format("expected at least the block_size ({})", c.block_size));
  }
}

void read_v2(ConfigReader& reader, DFlashConfig& c) {
  c.conv_taps = read_size(reader, "conv_kernel_size", 1, kMaxConvTaps);
  c.conv_group_size = reader.positive_int("conv_group_size");
  if (c.hidden_size % c.conv_group_size != 0) {
    reader.fail(StatusCode::kCorrupt, "conv_group_size",
                fmt::format("expected a divisor of hidden_size ({})", c.hidden_size));
    c.conv_group_size = 1;
  }
  c.selector_rank = reader.positive_int("selector_rank");
  c.num_candidates = read_size(reader, "selector_top_k", 1, kMaxCandidates);
  c.vocab_size = reader.positive_int("vocab_size");
}

Result<DFlashConfig> read_config(const BlockDrafterSource& source) {
  // What `dflash_config` has may also lie at the root.
  ConfigReader reader = source.config.reader().lifted("dflash_config");
  DFlashConfig c;
  c.is_v2 = std::ranges::find(source.config.architectures, kDFlash2) != source.config.architectures.end();
  c.num_layers = read_num_layers(reader);
  c.hidden_size = reader.positive_int("hidden_size");
  c.intermediate_size = reader.positive_int("intermediate_size");
  c.heads = read_head_counts(reader, c.hidden_size);
  c.rms_norm_eps = read_rms_norm_eps(reader);
  c.attention_bias = reader.boolean("attention_bias", false);
  c.block_size = reader.positive_int("block_size", 16);
  if (c.block_size < 2 || c.block_size > kMaxDraftedRows)
    reader.fail(StatusCode::kUnsupported, "block_size", fmt::format("expected 2 to {}", kMaxDraftedRows));
  read_attention_kinds(reader, c);
  c.mask_token_id = static_cast<int32_t>(reader.non_negative_int("mask_token_id", -1));
  if (!reader.has("mask_token_id")) reader.fail(StatusCode::kCorrupt, "mask_token_id", "expected a token");
  c.input_embedding_scale = static_cast<float>(reader.positive_number("input_embedding_scale", 1));
  c.output_multiplier = static_cast<float>(reader.positive_number("output_multiplier", 1));
  c.final_logit_softcapping = static_cast<float>(reader.number("final_logit_softcapping", 0));
  if (c.is_v2) read_v2(reader, c);
  c.max_position_embeddings = reader.positive_int("max_position_embeddings", 32768);
  c.rope = read_full_width_rope(reader);
  require_silu(reader);
  c.target_layers = read_target_layers(reader, c, source.target.num_layers);
  check_target(reader, c, source.target);
  if (!c.is_v2) c.vocab_size = source.target.vocab_size;
  if (!reader.status().ok()) return reader.status();
  return c;
}

/// The convolution on both sides of attention or MLP; its weights follow from the row as it enters.
struct BlockConv {
  VectorId base;               ///< [2, taps, E]
  LinearId kernel_projection;  ///< [2*taps*G, E]
};

struct DFlashLayer {
  VectorId input_norm;
  BlockConv attention_conv;  ///< v2.
  SelfAttention attention;
  VectorId post_attention_norm;
  BlockConv mlp_conv;  ///< v2.
  Mlp mlp;
};

BlockConv declare_conv(const DFlashConfig& c, int layer, const std::string& module, WeightTable& table) {
  return {table.array(layer, module + ".base_kernel", {2, c.conv_taps, c.hidden_size}),
          table.linear(layer, {module + ".kernel_projection", 2 * c.side_size(), c.hidden_size})};
}

DFlashLayer declare_layer(const DFlashConfig& c, int i, WeightTable& table) {
  const std::string layer = fmt::format("layers.{}.", i);
  DFlashLayer l;
  l.input_norm = table.vector(i, layer + "input_layernorm.weight", c.hidden_size);
  l.attention = declare_attention(table, i,
                                  {.module = layer + "self_attn",
                                   .hidden_size = c.hidden_size,
                                   .shape = c.attention(),
                                   .has_qkv_bias = c.attention_bias,
                                   .has_o_bias = c.attention_bias,
                                   .has_qk_norm = true,
                                   .norm_eps = c.rms_norm_eps});
  l.attention.window = c.windows[i];
  l.attention.sees_later_rows = !c.is_causal[i];
  l.post_attention_norm = table.vector(i, layer + "post_attention_layernorm.weight", c.hidden_size);
  l.mlp = declare_mlp(table, i, {layer + "mlp", c.hidden_size, c.intermediate_size});
  if (!c.is_v2) return l;
  l.attention_conv = declare_conv(c, i, layer + "attention_conv", table);
  l.mlp_conv = declare_conv(c, i, layer + "mlp_conv", table);
  return l;
}

/// What both absorb() and propose() take for each row.
struct RowScratch {
  View h;         ///< [T, E] f32: the residual stream; the context before its norm.
  View x;         ///< [T, E] activation dtype: its normalized copy.
  View cos, sin;  ///< [T, R/2] f32.
  AttentionScratch attention;

  RowScratch(Arena& arena, const DFlashConfig& c, const Rotary& rotary, DType dtype, int64_t T)
      : h(arena.array(DType::kF32, {T, c.hidden_size})),
        x(arena.array(dtype, {T, c.hidden_size})),
        cos(arena.array(DType::kF32, {T, rotary.num_pairs()})),
        sin(arena.array(DType::kF32, {T, rotary.num_pairs()})),
        attention(arena, c.attention(), dtype, T) {}
};

/// What propose() takes beside it.
struct BlockScratch {
  View normed;                    ///< [T, E] f32: what enters a convolution; v2.
  View branch;                    ///< [T, E] f32: what leaves attention or MLP; v2.
  View dynamic;                   ///< [T, 2*taps*G] f32; v2.
  View last;                      ///< [R, E] f32: the drafted rows, which are fewer than T.
  View logits;                    ///< [R, V] f32.
  View hidden;                    ///< [R, rank] f32; v2.
  View predecessors, successors;  ///< [(k+1)*T, rank], [k*T, rank] f32; v2.
  MlpScratch mlp;

  BlockScratch(Arena& arena, const DFlashConfig& c, DType dtype, int64_t T)
      : normed(arena.array(DType::kF32, {c.is_v2 ? T : 0, c.hidden_size})),
        branch(arena.array(DType::kF32, {c.is_v2 ? T : 0, c.hidden_size})),
        dynamic(arena.array(DType::kF32, {T, 2 * c.side_size()})),
        last(arena.array(DType::kF32, {T, c.hidden_size})),
        logits(arena.array(DType::kF32, {T, c.vocab_size})),
        hidden(arena.array(DType::kF32, {T, c.selector_rank})),
        predecessors(arena.array(DType::kF32, {(c.num_candidates + 1) * T, c.selector_rank})),
        successors(arena.array(DType::kF32, {c.num_candidates * T, c.selector_rank})),
        mlp(arena, c.intermediate_size, dtype, T) {}
};

/// Rows of a block pass in host memory.
struct BlockTokens {
  std::vector<int32_t> tokens;        ///< [T] the anchor, then masks, for each sequence.
  std::vector<int32_t> drafted_rows;  ///< [R]

  BlockTokens(const DraftBlocks& blocks, int32_t mask_token_id)
      : tokens(static_cast<size_t>(blocks.rows.num_rows()), mask_token_id) {
    for (size_t s = 0; s < blocks.rows.sequences.size(); ++s) {
      const SequenceRows& rows = blocks.rows.sequences[s];
      tokens[rows.first_row] = blocks.anchors[s];
      for (int64_t r = 1; r < rows.num_rows; ++r)
        drafted_rows.push_back(static_cast<int32_t>(rows.first_row + r));
    }
  }
  int64_t num_drafted() const { return std::ssize(drafted_rows); }
};

class DFlash final : public BlockDrafter {
 public:
  DFlash(DFlashConfig config, Rotary rotary, DType dtype, WeightTable& table)
      : config_(std::move(config)), rotary_(std::move(rotary)), dtype_(dtype) {
    const DFlashConfig& c = config_;
    const int64_t E = c.hidden_size;
    fc_ = table.linear(kOutsideLayers, {"fc", E, c.num_taps() * E});
    hidden_norm_ = table.vector(kOutsideLayers, "hidden_norm.weight", E);
    norm_ = table.vector(kOutsideLayers, "norm.weight", E);
    for (int i = 0; i < c.num_layers; ++i) layers_.push_back(declare_layer(c, i, table));
    table.expect_absent(fmt::format("layers.{}.input_layernorm.weight", c.num_layers),
                        fmt::format("num_hidden_layers = {}", c.num_layers));
    if (c.is_v2) declare_selector(table);
    make_spec();
  }

  const BlockDrafterSpec& spec() const override { return spec_; }

  int64_t absorb_scratch_bytes(int64_t num_rows) const override {
    Arena measure(nullptr, 0);
    RowScratch(measure, config_, rotary_, dtype_, num_rows);
    return measure.used_bytes();
  }

  int64_t propose_scratch_bytes(int64_t num_rows) const override {
    Arena measure(nullptr, 0);
    RowScratch(measure, config_, rotary_, dtype_, num_rows);
    BlockScratch(measure, config_, dtype_, num_rows);
    return measure.used_bytes();
  }

  void absorb(const RowBatch& rows, View taps, Ops& ops, Weights& weights, std::span<const KvPages> kv_layers,
              Arena& scratch) const override {
    const RowScratch s(scratch, config_, rotary_, dtype_, rows.num_rows());
    const Lease outside = weights.outside_layers();
    const LinearCall combine[] = {{.out = s.h, .weight = outside[fc_]}};
    ops.linear(taps, combine);
    ops.rms_norm(s.x, s.h, outside[hidden_norm_], {config_.rms_norm_eps});
    ops.rope_table(s.cos, s.sin, rows.positions, rotary_.inv_freq, rotary_.multiplier);
    for (size_t i = 0; i < layers_.size(); ++i) {
      const SelfAttention& attention = layers_[i].attention;
      const Lease w = weights.layer(static_cast<int>(i));
      const LinearCall kv[] = {{.out = s.attention.k, .weight = w[attention.k_proj]},
                               {.out = s.attention.v, .weight = w[attention.v_proj]}};
      ops.linear(s.x, kv);
      ops.qk_norm_rope({.q_out = s.attention.q_rotated.columns(0, 0),
                        .k_out = s.attention.k_rotated,
                        .q = s.attention.q.columns(0, 0),
                        .k = s.attention.k,
                        .q_norm = View(),
                        .k_norm = w[attention.k_norm],
                        .norm_eps = config_.rms_norm_eps,
                        .cos = s.cos,
                        .sin = s.sin,
                        .head_dim = config_.heads.head_dim});
      ops.append_kv(kv_layers[i], s.attention.k_rotated, s.attention.v, rows);
    }
  }

  Status propose(const DraftBlocks& blocks, Ops& ops, Weights& weights, const DraftTarget& target,
                 std::span<const KvPages> kv_layers, Arena& scratch,
                 BlockProposals& proposals) const override {
    const ScopedFlushDenormals flush;
    const DFlashConfig& c = config_;
    const int64_t T = blocks.rows.num_rows();
    const RowScratch s(scratch, c, rotary_, dtype_, T);
    const BlockScratch b(scratch, c, dtype_, T);
    const BlockPass pass{ops, blocks.rows, s.h, s.x, s.cos, s.sin};
    const BlockTokens tokens(blocks, c.mask_token_id);
    const TokenEnds& ends = *target.model.token_ends();
    const Lease target_ends = target.weights.outside_layers();

    ops.begin_pass(blocks.rows);
    // The bare embedding: a scale that the target may have is in input_embedding_scale.
    ops.embed(s.h, target_ends[ends.token_embedding], tokens.tokens, c.input_embedding_scale);
    ops.rope_table(s.cos, s.sin, blocks.rows.positions, rotary_.inv_freq, rotary_.multiplier);
    for (size_t i = 0; i < layers_.size(); ++i) {
      const DFlashLayer& layer = layers_[i];
      const Lease w = weights.layer(static_cast<int>(i));
      add_branch(pass, b, w, layer.input_norm, layer.attention_conv, [&](View out) {
        out.data == nullptr ? layer.attention.forward(pass, w, kv_layers[i], s.attention)
                            : layer.attention.forward_to(out, pass, w, kv_layers[i], s.attention);
      });
      add_branch(pass, b, w, layer.post_attention_norm, layer.mlp_conv, [&](View out) {
        out.data == nullptr ? layer.mlp.forward(pass, w, b.mlp) : layer.mlp.forward_to(out, pass, w, b.mlp);
      });
    }

    return find_candidates(blocks, tokens, pass, weights, target, b, proposals);
  }

 private:
  void declare_selector(WeightTable& table) {
    const DFlashConfig& c = config_;
    const std::string selector = "candidate_selector.";
    hidden_projection_ =
        table.linear(kOutsideLayers, {selector + "hidden_projection", c.selector_rank, c.hidden_size});
    const auto codebook = [&](const char* name) {
      return table.linear(
          kOutsideLayers,
          {.module = selector + name, .out = c.vocab_size, .in = c.selector_rank, .allows_bare = true});
    };
    predecessor_codebook_ = codebook("predecessor_codebook");
    successor_codebook_ = codebook("successor_codebook");
  }

  void make_spec() {
    const DFlashConfig& c = config_;
    spec_.architecture = c.is_v2 ? kDFlash2 : kDFlash;
    spec_.num_layers = c.num_layers;
    spec_.block_size = c.block_size;
    spec_.mask_token_id = c.mask_token_id;
    spec_.num_candidates = c.num_candidates;
    if (std::ranges::count(c.windows, 0) == 0) spec_.context_tokens = std::ranges::max(c.windows) - 1;
    spec_.target_layers = c.target_layers;
    spec_.kv_layers.assign(c.num_layers, {c.heads.num_kv_heads, c.heads.head_dim, dtype_});
    spec_.rank = c.selector_rank;
  }

  /// h += branch(norm h), or h += conv(branch(conv(norm h))). `branch` reads pass.x; it adds to h itself
  /// where it is given no output.
  void add_branch(const BlockPass& pass, const BlockScratch& b, const Lease& w, VectorId norm,
                  const BlockConv& conv, const std::function<void(View out)>& branch) const {
    Ops& ops = pass.ops;
    ops.rms_norm(pass.x, pass.h, w[norm], {config_.rms_norm_eps});
    if (!config_.is_v2) return branch(View());
    // The convolution reads fp32, the projection its rounding.
    ops.rms_norm(b.normed, pass.h, w[norm], {config_.rms_norm_eps});
    const LinearCall project[] = {{.out = b.dynamic, .weight = w[conv.kernel_projection]}};
    ops.linear(pass.x, project);
    const int64_t taps = config_.conv_taps, side = config_.side_size();
    const View base(w[conv.base].data, DType::kF32, {2 * taps, config_.hidden_size});
    ops.dynamic_conv({.out = pass.x,
                      .x = b.normed,
                      .base = base.rows(0, taps),
                      .dynamic = b.dynamic.columns(0, side),
                      .rows = pass.rows});
    branch(b.branch);
    ops.dynamic_conv({.out = pass.h,
                      .x = b.branch,
                      .base = base.rows(taps, taps),
                      .dynamic = b.dynamic.columns(side, side),
                      .rows = pass.rows,
                      .accumulate = true});
  }

  /// Logits of the drafted rows, the largest of them, and what pairs of those add. Ends the pass.
  Status find_candidates(const DraftBlocks& blocks, const BlockTokens& tokens, const BlockPass& pass,
                         Weights& weights, const DraftTarget& target, const BlockScratch& b,
                         BlockProposals& proposals) const {
    const DFlashConfig& c = config_;
    Ops& ops = pass.ops;
    const int64_t R = tokens.num_drafted(), k = c.num_candidates;
    const View last = b.last.rows(0, R), x = pass.x.rows(0, R), logits = b.logits.rows(0, R);
    const Lease outside = weights.outside_layers(), target_ends = target.weights.outside_layers();
    ops.gather_rows(last, pass.h, tokens.drafted_rows);
    ops.rms_norm(x, last, outside[norm_], {c.rms_norm_eps});
    const LinearCall head[] = {{.out = logits, .weight = target_ends[target.model.token_ends()->lm_head]}};
    ops.linear(x, head);
    if (c.is_v2) {
      const LinearCall project[] = {{.out = b.hidden.rows(0, R), .weight = outside[hidden_projection_]}};
      ops.linear(x, project);
    }
    BlockProposalsBuilder found(proposals);
    found.begin(blocks, k, c.selector_rank);
    const int64_t drawable = blocks.num_drawable_tokens > 0 ? blocks.num_drawable_tokens : c.vocab_size;
    ops.top_tokens(found.tokens(), found.logits(), logits.columns(0, drawable), k);
    TF_RETURN_IF_ERROR(c.is_v2 ? take_factors(blocks, ops, outside, b, R, found) : ops.end_pass());
    for (float& logit : found.logits()) logit = processed(logit);
    return {};
  }

  /// The rows of the codebooks for anchors and candidates, and the rows' own factors, to the host. Ends the
  /// pass.
  Status take_factors(const DraftBlocks& blocks, Ops& ops, const Lease& outside, const BlockScratch& b,
                      int64_t num_drafted, BlockProposalsBuilder& found) const {
    // A place without a candidate takes any row of a codebook.
    std::vector<int32_t> tokens(blocks.anchors.begin(), blocks.anchors.end());
    for (const int32_t token : found.tokens()) tokens.push_back(std::max(token, 0));
    const std::span candidates = std::span<const int32_t>(tokens).subspan(blocks.anchors.size());
    const View predecessors = b.predecessors.rows(0, std::ssize(tokens));
    const View successors = b.successors.rows(0, std::ssize(candidates));
    ops.embed(predecessors, outside[predecessor_codebook_], tokens, 1.0f);
    ops.embed(successors, outside[successor_codebook_], candidates, 1.0f);
    TF_RETURN_IF_ERROR(ops.end_pass());
    const auto copy = [&](std::span<float> to, View from) {
      return ops.device().copy_to_host(reinterpret_cast<std::byte*>(to.data()), from.data,
                                       static_cast<int64_t>(to.size_bytes()));
    };
    TF_RETURN_IF_ERROR(copy(found.hidden(), b.hidden.rows(0, num_drafted)));
    TF_RETURN_IF_ERROR(copy(found.predecessors(), predecessors));
    return copy(found.successors(), successors);
  }

  /// A logit as the drafter means it. Both steps keep the order, so the largest are found before.
  float processed(float logit) const {
    const float x = logit * config_.output_multiplier, cap = config_.final_logit_softcapping;
    return cap > 0 ? cap * std::tanh(x / cap) : x;
  }

  DFlashConfig config_;
  Rotary rotary_;
  DType dtype_;  ///< Of activations.
  BlockDrafterSpec spec_;
  LinearId fc_;  ///< [E, taps*E]
  VectorId hidden_norm_, norm_;
  std::vector<DFlashLayer> layers_;
  LinearId hidden_projection_, predecessor_codebook_, successor_codebook_;  ///< v2.
};

}  // namespace

Result<std::unique_ptr<BlockDrafter>> make_dflash(const BlockDrafterSource& source) {
  TF_ASSIGN_OR_RETURN(DFlashConfig c, read_config(source));
  TF_ASSIGN_OR_RETURN(const ContextLengths lengths,
                      choose_context(c.max_position_embeddings, source.context_tokens, c.rope.kind));
  TF_ASSIGN_OR_RETURN(Rotary rotary, make_rotary(c.rope, {c.heads.head_dim, c.max_position_embeddings,
                                                          lengths.context_tokens}));
  return std::unique_ptr<BlockDrafter>(
      new DFlash(std::move(c), std::move(rotary), source.target.activation_dtype, source.table));
}

}  // namespace tensorfold
