// See model_presets.h. The numbers are those of the published config.json files (specs/qwen.md §2.2,
// gpt-oss.md §1, nemotron.md §1, glm.md §1.1, gemma3.md §A1); what does not change a shape or the forward
// pass is left out.
#include "cli/model_presets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "base/nearest_name.h"

namespace tensorfold {
namespace {

struct Preset {
  std::string_view name;
  std::string_view config;
};

constexpr std::string_view kQwen3_8_27B = R"({
  "model_type": "qwen3_5_text", "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64,
  "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "full_attention_interval": 4,
  "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
  "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "vocab_size": 248320,
  "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "hidden_act": "silu",
  "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25}})";

constexpr std::string_view kQwen3_5_08B = R"({
  "model_type": "qwen3_5_text", "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24,
  "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "full_attention_interval": 4,
  "linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_key_head_dim": 128,
  "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "vocab_size": 248320,
  "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "hidden_act": "silu",
  "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25}})";

constexpr std::string_view kQwen3_6_35B = R"({
  "model_type": "qwen3_5_moe_text", "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16,
  "num_key_value_heads": 2, "head_dim": 256, "full_attention_interval": 4, "linear_num_key_heads": 16,
  "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
  "linear_conv_kernel_dim": 4, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
  "shared_expert_intermediate_size": 512, "vocab_size": 248320, "max_position_embeddings": 262144,
  "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "hidden_act": "silu",
  "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25}})";

constexpr std::string_view kQwen3Next80B = R"({
  "model_type": "qwen3_next", "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 48,
  "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "full_attention_interval": 4,
  "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
  "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "num_experts": 512, "num_experts_per_tok": 10,
  "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "norm_topk_prob": true,
  "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936, "max_position_embeddings": 262144,
  "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "hidden_act": "silu", "rope_theta": 10000000,
  "partial_rotary_factor": 0.25})";

constexpr std::string_view kGptOss20B = R"({
  "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
  "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32,
  "num_experts_per_tok": 4, "vocab_size": 201088, "rms_norm_eps": 1e-5, "sliding_window": 128,
  "rope_theta": 150000, "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
  "original_max_position_embeddings": 4096, "truncate": false}, "max_position_embeddings": 131072,
  "swiglu_limit": 7.0, "attention_bias": true, "hidden_act": "silu", "tie_word_embeddings": false})";

constexpr std::string_view kGptOss120B = R"({
  "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
  "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 128,
  "num_experts_per_tok": 4, "vocab_size": 201088, "rms_norm_eps": 1e-5, "sliding_window": 128,
  "rope_theta": 150000, "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
  "original_max_position_embeddings": 4096, "truncate": false}, "max_position_embeddings": 131072,
  "swiglu_limit": 7.0, "attention_bias": true, "hidden_act": "silu", "tie_word_embeddings": false})";

constexpr std::string_view kNemotronNano30B = R"({
  "model_type": "nemotron_h", "hidden_size": 2688,
  "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "num_hidden_layers": 52,
  "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "mamba_num_heads": 64,
  "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "use_conv_bias": true,
  "n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856, "n_shared_experts": 1,
  "moe_shared_expert_intermediate_size": 3712, "intermediate_size": 1856, "n_group": 1, "topk_group": 1,
  "norm_topk_prob": true, "routed_scaling_factor": 2.5, "layer_norm_epsilon": 1e-5, "vocab_size": 131072,
  "max_position_embeddings": 262144, "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu",
  "tie_word_embeddings": false})";

constexpr std::string_view kNemotronUltra550B = R"({
  "model_type": "nemotron_h", "hidden_size": 8192, "hybrid_override_pattern":
  "MEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
  "num_hidden_layers": 108, "num_attention_heads": 64, "num_key_value_heads": 2, "head_dim": 128,
  "mamba_num_heads": 256, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4,
  "use_conv_bias": true, "n_routed_experts": 512, "num_experts_per_tok": 22, "moe_intermediate_size": 5120,
  "n_shared_experts": 1, "moe_shared_expert_intermediate_size": 10240, "moe_latent_size": 2048,
  "intermediate_size": 5120, "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 5.0,
  "layer_norm_epsilon": 1e-5, "vocab_size": 131072, "max_position_embeddings": 262144,
  "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu", "tie_word_embeddings": false})";

constexpr std::string_view kGlm4_5 = R"({
  "model_type": "glm4_moe", "hidden_size": 5120, "intermediate_size": 12288, "num_hidden_layers": 92,
  "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "moe_intermediate_size": 1536,
  "n_routed_experts": 160, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
  "routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "use_qk_norm": true,
  "attention_bias": true, "partial_rotary_factor": 0.5, "rope_theta": 1000000, "rms_norm_eps": 1e-5,
  "vocab_size": 151552, "max_position_embeddings": 131072, "hidden_act": "silu", "tie_word_embeddings": false})";

constexpr std::string_view kGlm4_5Air = R"({
  "model_type": "glm4_moe", "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
  "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "moe_intermediate_size": 1408,
  "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1,
  "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "use_qk_norm": false,
  "attention_bias": true, "partial_rotary_factor": 0.5, "rope_theta": 1000000, "rms_norm_eps": 1e-5,
  "vocab_size": 151552, "max_position_embeddings": 131072, "hidden_act": "silu", "tie_word_embeddings": false})";

constexpr std::string_view kGemma3_270M = R"({
  "model_type": "gemma3_text", "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18,
  "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "query_pre_attn_scalar": 256,
  "sliding_window": 512, "sliding_window_pattern": 6, "rope_theta": 1000000, "rope_local_base_freq": 10000,
  "rms_norm_eps": 1e-6, "vocab_size": 262144, "max_position_embeddings": 32768,
  "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": true})";

constexpr std::string_view kGemma3_1B = R"({
  "model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26,
  "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "query_pre_attn_scalar": 256,
  "sliding_window": 512, "sliding_window_pattern": 6, "rope_theta": 1000000, "rope_local_base_freq": 10000,
  "rms_norm_eps": 1e-6, "vocab_size": 262144, "max_position_embeddings": 32768,
  "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": true})";

// Several names share a config where only weights and templates differ.
constexpr Preset kPresets[] = {
    {"GLM-4.5", kGlm4_5},
    {"GLM-4.5-Air", kGlm4_5Air},
    {"GLM-4.6", kGlm4_5},
    {"GLM-4.7", kGlm4_5},
    {"NVIDIA-Nemotron-3-Nano-30B-A3B", kNemotronNano30B},
    {"NVIDIA-Nemotron-3-Ultra-550B-A55B", kNemotronUltra550B},
    {"NVIDIA-Nemotron-3.5-Lightning-30B-A3B", kNemotronNano30B},
    {"Qwen3-Next-80B-A3B", kQwen3Next80B},
    {"Qwen3.5-0.8B", kQwen3_5_08B},
    {"Qwen3.5-27B", kQwen3_8_27B},
    {"Qwen3.5-35B-A3B", kQwen3_6_35B},
    {"Qwen3.6-27B", kQwen3_8_27B},
    {"Qwen3.6-35B-A3B", kQwen3_6_35B},
    {"Qwen3.8-27B", kQwen3_8_27B},
    {"gemma-3-1b", kGemma3_1B},
    {"gemma-3-270m", kGemma3_270M},
    {"gpt-oss-120b", kGptOss120B},
    {"gpt-oss-20b", kGptOss20B},
};

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

/// Keeps the first num_layers layers.
void cut_layers(Json& config, int64_t num_layers) {
  config.set("num_hidden_layers", num_layers);
  if (const Json* pattern = config.find("hybrid_override_pattern")) {
    const std::string cut = pattern->as_string().substr(0, static_cast<size_t>(num_layers));
    config.set("hybrid_override_pattern", cut);
  }
}

}  // namespace

std::vector<std::string> model_preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

Result<Json> model_preset_config(std::string_view name, int64_t num_layers) {
  const std::string wanted = lower(name.substr(name.find('/') == name.npos ? 0 : name.find('/') + 1));
  for (const Preset& preset : kPresets) {
    if (lower(preset.name) != wanted) continue;
    TF_ASSIGN_OR_RETURN(Json config, parse_json(preset.config));
    const int64_t published = config.find("num_hidden_layers")->as_int();
    if (num_layers > published)
      return invalid_argument("--layers is {}, but {} has {}", num_layers, preset.name, published);
    if (num_layers > 0) cut_layers(config, num_layers);
    return config;
  }
  const std::string nearest = nearest_name(name, model_preset_names());
  return invalid_argument("--like {}: no such model{}; the names known are {}", name,
                          nearest.empty() ? "" : fmt::format(" (did you mean {}?)", nearest),
                          fmt::join(model_preset_names(), ", "));
}

}  // namespace tensorfold
