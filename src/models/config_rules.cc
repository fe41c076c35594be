// See config_rules.h.
#include "models/config_rules.h"

#include <fmt/format.h>

namespace tensorfold {

int64_t read_size(ConfigReader& config, std::string_view key, int64_t least, int64_t most) {
  const int64_t size = config.positive_int(key);
  if (size >= least && size <= most) return size;
  config.fail(StatusCode::kUnsupported, key, fmt::format("expected {} to {}", least, most));
  return least;
}

int64_t read_num_layers(ConfigReader& config) {
  const int64_t num_layers = config.positive_int("num_hidden_layers");
  if (num_layers <= kMaxLayers) return num_layers;
  config.fail(StatusCode::kUnsupported, "num_hidden_layers", fmt::format("expected at most {}", kMaxLayers));
  return 1;
}

HeadCounts read_head_counts(ConfigReader& config, int64_t hidden_size, int64_t default_head_dim) {
  HeadCounts heads;
  heads.num_heads = config.positive_int("num_attention_heads");
  heads.num_kv_heads = config.positive_int("num_key_value_heads", heads.num_heads);
  if (heads.num_heads % heads.num_kv_heads != 0)
    config.fail(StatusCode::kCorrupt, "num_key_value_heads",
                fmt::format("expected a divisor of num_attention_heads ({})", heads.num_heads));
  if (!config.has("head_dim") && default_head_dim == 0 && hidden_size % heads.num_heads != 0)
    config.fail(StatusCode::kCorrupt, "num_attention_heads",
                fmt::format("expected a divisor of hidden_size ({}), as there is no head_dim", hidden_size));
  if (default_head_dim == 0) default_head_dim = std::max<int64_t>(hidden_size / heads.num_heads, 1);
  heads.head_dim = config.positive_int("head_dim", default_head_dim);
  if (heads.head_dim % 2 != 0 || heads.head_dim > kMaxHeadDim) {
    // Without the key there is no value to quote; the one it follows from is named instead.
    config.fail(StatusCode::kUnsupported, config.has("head_dim") ? "head_dim" : "hidden_size",
                fmt::format("expected heads of even size up to {}, not {}", kMaxHeadDim, heads.head_dim));
    heads.head_dim = 2;
  }
  return heads;
}

float read_rms_norm_eps(ConfigReader& config) {
  return static_cast<float>(config.positive_number("rms_norm_eps", 1e-6));
}

void require_silu(ConfigReader& config) {
  const std::string activation = config.string("hidden_act", "silu");
  if (activation != "silu" && activation != "swish")
    config.fail(StatusCode::kUnsupported, "hidden_act", "expected silu");
}

std::vector<int64_t> windows_by_type(ConfigReader& config, int64_t num_layers, int64_t window) {
  const std::vector<std::string> types = config.string_list("layer_types");
  std::vector<int64_t> windows(num_layers, 0);
  if (static_cast<int64_t>(types.size()) != num_layers) {
    config.fail(StatusCode::kCorrupt, "layer_types",
                fmt::format("expected {} entries (num_hidden_layers)", num_layers));
    return windows;
  }
  for (int64_t i = 0; i < num_layers; ++i) {
    if (types[i] == "full_attention") continue;
    if (types[i] != "sliding_attention") {
      config.fail(StatusCode::kUnsupported, "layer_types",
                  fmt::format("expected full_attention and sliding_attention, not {}", types[i]));
    } else if (window == 0) {
      config.fail(StatusCode::kCorrupt, "layer_types",
                  "expected no sliding_attention without sliding_window and use_sliding_window");
    }
    windows[i] = window;
  }
  return windows;
}

std::vector<int64_t> read_windows(ConfigReader& config, int64_t num_layers, int64_t first_windowed) {
  const bool is_on = config.boolean("use_sliding_window", false);
  const int64_t window = is_on && config.has("sliding_window") ? config.positive_int("sliding_window") : 0;
  if (config.has("layer_types")) return windows_by_type(config, num_layers, window);
  std::vector<int64_t> windows(num_layers, 0);
  for (int64_t i = first_windowed; i < num_layers; ++i) windows[i] = window;
  return windows;
}

RopeConfig read_full_width_rope(ConfigReader& config, const RopeDefaults& defaults) {
  const RopeConfig rope = read_rope_config(config, defaults);
  if (rope.partial_rotary_factor != 1.0)
    config.fail(StatusCode::kUnsupported, "rope_parameters",
                "expected no partial_rotary_factor other than 1");
  return rope;
}

bool read_tied(ConfigReader& config, const WeightTable& table) {
  return config.boolean("tie_word_embeddings", !table.has_tensor("lm_head.weight"));
}

Result<ContextLengths> choose_context(int64_t max_position_embeddings, int64_t requested_tokens,
                                      RopeKind kind) {
  const int64_t context = requested_tokens > 0 ? requested_tokens : max_position_embeddings;
  if (context <= max_position_embeddings) return ContextLengths{context, max_position_embeddings};
  if (kind == RopeKind::kDynamic) return ContextLengths{context, context};
  return invalid_argument("a context of {} tokens: the model was made for {} (max_position_embeddings)",
                          context, max_position_embeddings);
}

DType activation_dtype(const HfConfig& config, bool compute_f32) {
  return compute_f32 || config.dtype == DType::kF32 ? DType::kF32 : DType::kBF16;
}

}  // namespace tensorfold
