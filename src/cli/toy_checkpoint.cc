// Shapes of toy checkpoints. Their tokenizers and templates are made in toy_text.cc, their random bytes in
// toy_weights.cc.
#include "cli/toy_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <numeric>

#include "base/nearest_name.h"
#include "cli/model_presets.h"
#include "formats/hf_config.h"
#include "memory/weight_table.h"
#include "models/registry.h"

namespace tensorfold {
namespace {

constexpr int64_t kGroupSize = 64, kMxfp4GroupSize = 32;

/// A family, what its config needs beside the keys that all have, and which of the sizes it has under which
/// names. $I is the intermediate size of an expert, $X and $K the experts and those of a token, $H and $D
/// heads and their size.
struct ToyFamily {
  std::string_view name;
  std::string_view architecture;
  bool has_experts = false;
  std::string_view keys = "{}";
};

constexpr std::string_view kHybridKeys = R"({"full_attention_interval": 4, "linear_num_key_heads": 2,
  "linear_num_value_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4,
  "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25}})";
constexpr std::string_view kHybridMoeKeys = R"({"full_attention_interval": 4, "linear_num_key_heads": 2,
  "linear_num_value_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4,
  "num_experts": $X, "num_experts_per_tok": $K, "moe_intermediate_size": $I, "shared_expert_intermediate_size": $I,
  "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [],
  "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25}})";

constexpr ToyFamily kToyFamilies[] = {
    {"gemma3_text", "Gemma3ForCausalLM", false,
     R"({"query_pre_attn_scalar": $D, "sliding_window": 512, "sliding_window_pattern": 6, "rope_theta": 1000000,
         "rope_local_base_freq": 10000, "hidden_activation": "gelu_pytorch_tanh"})"},
    {"glm4_moe", "Glm4MoeForCausalLM", true,
     R"({"n_routed_experts": $X, "num_experts_per_tok": $K, "moe_intermediate_size": $I, "n_shared_experts": 1,
         "first_k_dense_replace": 1, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
         "norm_topk_prob": true, "use_qk_norm": true, "attention_bias": true, "partial_rotary_factor": 0.5})"},
    {"gpt_oss", "GptOssForCausalLM", true,
     R"({"num_local_experts": $X, "num_experts_per_tok": $K, "sliding_window": 128, "swiglu_limit": 7.0,
         "attention_bias": true, "rope_theta": 150000, "rope_scaling": {"rope_type": "yarn", "factor": 32.0,
         "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096, "truncate": false}})"},
    {"llama", "LlamaForCausalLM"},
    {"nemotron_h", "NemotronHForCausalLM", true,
     R"({"mamba_num_heads": $H, "mamba_head_dim": $D, "ssm_state_size": 64, "n_groups": 1, "conv_kernel": 4,
         "use_conv_bias": true, "n_routed_experts": $X, "num_experts_per_tok": $K, "moe_intermediate_size": $I,
         "n_shared_experts": 1, "moe_shared_expert_intermediate_size": $I, "n_group": 1, "topk_group": 1,
         "norm_topk_prob": true, "routed_scaling_factor": 1.0, "layer_norm_epsilon": 1e-5,
         "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu"})"},
    {"qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "Qwen3ForCausalLM"},
    {"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", true, kHybridMoeKeys},
    {"qwen3_5_text", "Qwen3_5ForCausalLM", false, kHybridKeys},
    {"qwen3_moe", "Qwen3MoeForCausalLM", true,
     R"({"num_experts": $X, "num_experts_per_tok": $K, "moe_intermediate_size": $I, "norm_topk_prob": true,
         "decoder_sparse_step": 1, "mlp_only_layers": []})"},
    {"qwen3_next", "Qwen3NextForCausalLM", true, kHybridMoeKeys},
};

/// Names that people know models by; the rest toy_family_name() finds by rule.
constexpr std::pair<std::string_view, std::string_view> kFamilyAliases[] = {
    {"gemma", "gemma3_text"},    {"glm4", "glm4_moe"},        {"glm_4_5", "glm4_moe"},
    {"gptoss", "gpt_oss"},       {"llama3", "llama"},         {"nemotron", "nemotron_h"},
    {"qwen2_5", "qwen2"},        {"qwen3_6", "qwen3_5_text"}, {"qwen3_6_moe", "qwen3_5_moe_text"},
    {"qwen3_8", "qwen3_5_text"},
};

const ToyFamily* find_family(std::string_view name) {
  for (const ToyFamily& family : kToyFamilies)
    if (family.name == name) return &family;
  return nullptr;
}

/// A size, its flag, its range, and the keys that presets have it under; the first that is there counts.
struct ToySize {
  const char* flag;
  int64_t ToyOptions::*value;
  int64_t least, most;
  std::vector<const char*> keys;
};

const std::vector<ToySize>& toy_sizes() {
  static const std::vector<ToySize> sizes = {
      {"hidden", &ToyOptions::hidden_size, 64, 1 << 20, {"hidden_size"}},
      {"intermediate",
       &ToyOptions::intermediate_size,
       64,
       1 << 22,
       {"moe_intermediate_size", "intermediate_size"}},
      {"heads", &ToyOptions::num_heads, 1, 4096, {"num_attention_heads"}},
      {"kv-heads", &ToyOptions::num_kv_heads, 1, 4096, {"num_key_value_heads"}},
      {"head-dim", &ToyOptions::head_dim, 2, 1024, {"head_dim"}},
      {"vocab", &ToyOptions::vocab_size, kMinToyVocab, 1 << 22, {"vocab_size"}},
      {"experts",
       &ToyOptions::num_experts,
       1,
       65536,
       {"num_experts", "n_routed_experts", "num_local_experts"}},
      {"experts-per-token", &ToyOptions::num_experts_per_tok, 1, 65536, {"num_experts_per_tok"}},
      {"context", &ToyOptions::max_position_embeddings, 1, 1 << 30, {"max_position_embeddings"}},
  };
  return sizes;
}

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

/// Sizes that are 0 are left out.
Status check_toy_sizes(const ToyOptions& o) {
  for (const ToySize& size : toy_sizes()) {
    const int64_t value = o.*size.value;
    if (value != 0 && (value < size.least || value > size.most))
      return invalid_argument("--{} is {}, expected {} to {}", size.flag, value, size.least, size.most);
  }
  if (o.num_heads > 0 && o.num_kv_heads > 0 && o.num_heads % o.num_kv_heads != 0)
    return invalid_argument("--kv-heads {} does not divide --heads {}", o.num_kv_heads, o.num_heads);
  if (o.head_dim % 2 != 0) return invalid_argument("--head-dim {} is odd", o.head_dim);
  if (o.num_experts > 0 && o.num_experts_per_tok > o.num_experts)
    return invalid_argument("--experts-per-token {} is more than --experts {}", o.num_experts_per_tok,
                            o.num_experts);
  if (!o.is_quantized) return {};
  for (const auto& [name, size] : {std::pair("hidden", o.hidden_size),
                                   {"intermediate", o.intermediate_size},
                                   {"heads times --head-dim", o.num_heads * o.head_dim}})
    if (size % kGroupSize != 0)
      return invalid_argument("--{} is {}, which 4-bit groups of {} do not divide", name, size, kGroupSize);
  return {};
}

/// Puts the sizes that are given over those of the preset.
Status override_preset(Json& config, const ToyOptions& o) {
  for (const ToySize& size : toy_sizes()) {
    if (o.*size.value == 0) continue;
    const auto key =
        std::ranges::find_if(size.keys, [&](const char* name) { return config.find(name) != nullptr; });
    if (key == size.keys.end())
      return invalid_argument("--{} {} does not go with --like {}, which has no such size", size.flag,
                              o.*size.value, o.like);
    config.set(*key, o.*size.value);
  }
  if (o.tie_word_embeddings) config.set("tie_word_embeddings", *o.tie_word_embeddings);
  // Fewer experts than a token of the published model takes: it takes all.
  if (const Json* taken = config.find("num_experts_per_tok");
      taken != nullptr && o.num_experts > 0 && o.num_experts_per_tok == 0)
    config.set("num_experts_per_tok", std::min(taken->as_int(), o.num_experts));
  return {};
}

/// `text` with its size names replaced.
std::string with_sizes(std::string_view text, const ToyOptions& o) {
  const std::pair<std::string_view, int64_t> sizes[] = {{"$I", o.intermediate_size},
                                                        {"$X", o.num_experts},
                                                        {"$K", o.num_experts_per_tok},
                                                        {"$H", o.num_heads},
                                                        {"$D", o.head_dim}};
  std::string result(text);
  for (const auto& [name, value] : sizes) {
    for (size_t at; (at = result.find(name)) != result.npos;)
      result.replace(at, name.size(), std::to_string(value));
  }
  return result;
}

/// "MEM*MEM*...": Mamba-2, experts, Mamba-2, attention.
std::string hybrid_pattern(int64_t num_layers) {
  std::string pattern;
  for (int64_t i = 0; i < num_layers; ++i) pattern += "MEM*"[i % 4];
  return pattern;
}

Result<Json> config_of(const ToyOptions& o) {
  const ToyFamily& family = *find_family(o.family);
  Json json = Json::object();
  json.set("architectures", Json(Json::Array{std::string(family.architecture)}));
  json.set("model_type", o.family);
  json.set("hidden_size", o.hidden_size);
  json.set("intermediate_size", o.intermediate_size);
  json.set("num_hidden_layers", o.num_layers);
  json.set("num_attention_heads", o.num_heads);
  json.set("num_key_value_heads", o.num_kv_heads);
  json.set("head_dim", o.head_dim);
  json.set("vocab_size", o.vocab_size);
  json.set("max_position_embeddings", o.max_position_embeddings);
  json.set("rms_norm_eps", 1e-6);
  json.set("rope_theta", 10000.0);
  json.set("hidden_act", "silu");
  json.set("tie_word_embeddings", o.tie_word_embeddings.value_or(false));
  TF_ASSIGN_OR_RETURN(const Json keys, parse_json(with_sizes(family.keys, o)));
  for (const auto& [key, value] : keys.as_object()) json.set(key, value);
  if (o.family == "nemotron_h") json.set("hybrid_override_pattern", hybrid_pattern(o.num_layers));
  return json;
}

/// Modules that conversions leave unpacked: small, and what they decide is discrete.
bool stays_float(std::string_view module, int64_t in) {
  const std::string_view last = module.substr(module.rfind('.') + 1);
  return last == "gate" || last == "router" || last == "shared_expert_gate" || in % kGroupSize != 0;
}

/// Vectors by their name: norms give a unit scale, gates and decays values such as trained models have.
ToyTensor toy_vector(const DeclaredWeight& weight) {
  ToyTensor tensor{.name = "model." + weight.name, .shape = {weight.out}};
  const auto has = [&](std::string_view part) { return weight.name.find(part) != weight.name.npos; };
  if (has("norm")) {
    tensor.mean = 1.0 - weight.added;
  } else if (has("A_log")) {
    tensor.mean = 1.0;
    tensor.stddev = 0.6;
  } else if (weight.name.ends_with(".D")) {
    tensor.mean = 1.0;
  } else {
    tensor.stddev = has("sinks") || has("dt_bias") ? 1.0 : 0.05;
  }
  return tensor;
}

/// The tensors of a declared weight, as MLX writes them (experts stacked) or as Hugging Face does (one by
/// one).
class TensorList {
 public:
  explicit TensorList(bool is_quantized) : is_quantized_(is_quantized) {}

  void add(const DeclaredWeight& weight) {
    switch (weight.kind) {
      case DeclaredWeight::Kind::kVector:
        return tensors_.push_back(toy_vector(weight));
      case DeclaredWeight::Kind::kConvolution:
        return tensors_.push_back({"model." + weight.name, {weight.out, weight.in, 1}, 0, 0.5});
      case DeclaredWeight::Kind::kLinear:
        return add_linear(weight);
      case DeclaredWeight::Kind::kExperts:
        return add_experts(weight);
    }
  }
  std::vector<ToyTensor> take() { return std::move(tensors_); }

 private:
  /// Values such that an input of unit size has an output of about `gain`.
  void add_matrix(const std::string& module, std::vector<int64_t> shape, double gain, ToyTensor::Form form) {
    const double stddev = gain / std::sqrt(static_cast<double>(shape.back()));
    const std::string name = form == ToyTensor::Form::kFloats ? module + ".weight" : module;
    tensors_.push_back({name, std::move(shape), 0, stddev, form});
  }

  void add_linear(const DeclaredWeight& weight) {
    const std::string module = (weight.name == "lm_head" ? "" : "model.") + weight.name;
    const bool is_packed = is_quantized_ && !stays_float(weight.name, weight.in);
    // At both ends larger, for logits of a few units: neither flat nor all on one token.
    const double gain = weight.layer == kOutsideLayers ? 3 : 1;
    add_matrix(module, {weight.out, weight.in}, gain,
               is_packed ? ToyTensor::Form::kAffine : ToyTensor::Form::kFloats);
    if (weight.has_bias) tensors_.push_back({module + ".bias", {weight.out}, 0, 0.1});
  }

  void add_experts(const DeclaredWeight& weight) {
    const int64_t X = weight.num_experts, out = weight.out, in = weight.in;
    const std::string module = "model." + weight.name;
    if (is_quantized_ || weight.is_interleaved) {
      const std::string stacked =
          module + (weight.is_interleaved ? ".experts." : ".switch_mlp.") + weight.projection;
      const auto packed = weight.is_interleaved ? ToyTensor::Form::kMxfp4 : ToyTensor::Form::kAffine;
      add_matrix(stacked, {X, out, in}, 1, is_quantized_ ? packed : ToyTensor::Form::kFloats);
      if (weight.has_bias) tensors_.push_back({stacked + ".bias", {X, out}, 0, 0.1});
      return;
    }
    for (int64_t i = 0; i < X; ++i) {
      const std::string expert = fmt::format("{}.experts.{}.{}", module, i, weight.projection);
      add_matrix(expert, {out, in}, 1, ToyTensor::Form::kFloats);
      if (weight.has_bias) tensors_.push_back({expert + ".bias", {out}, 0, 0.1});
    }
  }

  bool is_quantized_;
  std::vector<ToyTensor> tensors_;
};

/// MLX's section: affine groups, and an entry for each MXFP4 module.
Json quantization_of(const std::vector<ToyTensor>& tensors) {
  Json section = Json::object();
  section.set("group_size", kGroupSize);
  section.set("bits", 4);
  for (const ToyTensor& tensor : tensors) {
    if (tensor.form != ToyTensor::Form::kMxfp4) continue;
    Json entry = Json::object();
    entry.set("group_size", kMxfp4GroupSize);
    entry.set("bits", 4);
    entry.set("mode", "mxfp4");
    section.set(tensor.name, std::move(entry));
  }
  return section;
}

}  // namespace

Result<std::string> toy_family_name(std::string_view name) {
  if (name.empty()) return std::string("llama");
  std::string plain(name);
  for (char& c : plain) c = c == '-' || c == '.' || c == ' ' ? '_' : static_cast<char>(std::tolower(c));
  for (const std::string& candidate : {plain, plain + "_text"})
    if (find_family(candidate) != nullptr) return candidate;
  for (const auto& [alias, family] : kFamilyAliases)
    if (alias == plain) return std::string(family);
  const std::vector<std::string> known(toy_families().begin(), toy_families().end());
  const std::string nearest = nearest_name(plain, known);
  return invalid_argument("--family {}: no such family{}; those known are {}", name,
                          nearest.empty() ? "" : fmt::format(" (did you mean {}?)", nearest),
                          fmt::join(known, ", "));
}

Result<ToyOptions> complete_toy_options(ToyOptions o) {
  if (!o.like.empty()) {
    if (!o.family.empty())
      return invalid_argument("--family {} does not go with --like {}, which has its own", o.family, o.like);
    TF_RETURN_IF_ERROR(check_toy_sizes(o));
    return o;
  }
  TF_ASSIGN_OR_RETURN(o.family, toy_family_name(o.family));
  const bool has_experts = find_family(o.family)->has_experts;
  if (!has_experts && (o.num_experts != 0 || o.num_experts_per_tok != 0))
    return invalid_argument("--experts and --experts-per-token do not go with --family {}, which has none",
                            o.family);
  const auto fill = [](int64_t& size, int64_t standard) { size = size == 0 ? standard : size; };
  fill(o.num_layers, 4);
  fill(o.hidden_size, 256);
  fill(o.head_dim, 64);
  fill(o.vocab_size, 512);
  fill(o.max_position_embeddings, 4096);
  TF_RETURN_IF_ERROR(check_toy_sizes(o));  // what follows divides by them
  fill(o.num_heads, std::max<int64_t>(1, o.hidden_size / o.head_dim));
  if (o.num_kv_heads == 0) {
    o.num_kv_heads = std::max<int64_t>(1, o.num_heads / 4);
    while (o.num_heads % o.num_kv_heads != 0) --o.num_kv_heads;
  }
  fill(o.intermediate_size, round_up(has_experts ? o.hidden_size / 2 : 3 * o.hidden_size, 64));
  if (has_experts) {
    fill(o.num_experts, 8);
    fill(o.num_experts_per_tok, std::min<int64_t>(2, o.num_experts));
  }
  TF_RETURN_IF_ERROR(check_toy_sizes(o));
  return o;
}

ToyOptions toy_options_of_size(ToyOptions o, int64_t num_params) {
  // Published models have about one layer for each 64 of their width; heads are 128 wide from 2048 on.
  for (int64_t width = 128;; width += 128) {
    o.hidden_size = width;
    o.num_layers = std::clamp<int64_t>(width / 64, 2, 80);
    if (width >= 2048) o.head_dim = 128;
    const Result<ToyOptions> complete = complete_toy_options(o);
    if (!complete.ok() || width >= 32768) return o;
    const Result<ToyModel> model = make_toy_model(*complete);
    if (!model.ok() || model->num_params >= num_params) return o;
  }
}

Result<ToyModel> make_toy_model(const ToyOptions& options) {
  ToyModel model;
  if (options.like.empty()) {
    TF_ASSIGN_OR_RETURN(model.config, config_of(options));
  } else {
    TF_ASSIGN_OR_RETURN(model.config, model_preset_config(options.like, options.num_layers));
    TF_RETURN_IF_ERROR(override_preset(model.config, options));
  }
  model.config.set("torch_dtype", "bfloat16");
  model.config.set("bos_token_id", kToyStartId);
  model.config.set("eos_token_id", kToyEndId);
  TF_ASSIGN_OR_RETURN(const HfConfig config, parse_hf_config(dump_json(model.config)));
  WeightTable table(config.model_type);
  if (const Status status = make_model({config, table, {}}).status(); !status.ok())
    return invalid_argument("these sizes do not go together: {}", status.message());
  TensorList list(options.is_quantized);
  for (const DeclaredWeight& weight : table.declared()) list.add(weight);
  model.tensors = list.take();
  for (const ToyTensor& tensor : model.tensors) {
    model.num_params +=
        std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
  }
  if (options.is_quantized) model.config.set("quantization", quantization_of(model.tensors));
  return model;
}

std::span<const std::string_view> toy_families() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const ToyFamily& family : kToyFamilies) all.push_back(family.name);
    return all;
  }();
  return names;
}

}  // namespace tensorfold
