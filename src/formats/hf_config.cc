// Reading of formats/hf_config.h.
#include "formats/hf_config.h"

#include <fmt/format.h>

#include <algorithm>

namespace tensorfold {
namespace {

constexpr std::string_view kConfigName = "config.json";
constexpr std::string_view kGenerationName = "generation_config.json";
constexpr int64_t kMaxConfigBytes =
    16'000'000;  // Real ones have a few kB; module overrides make the largest.

/// Python writes infinities and NaN as bare words, which are no JSON. Outside strings they are replaced by
/// what newer files have in their place: {"__float__": "Infinity"}.
std::string with_objects_for_words(std::string_view text) {
  constexpr std::string_view kWords[] = {"-Infinity", "Infinity", "NaN"};
  std::string out;
  bool is_in_string = false;
  for (size_t i = 0; i < text.size();) {
    const auto* word = std::find_if(std::begin(kWords), std::end(kWords),
                                    [&](std::string_view w) { return text.substr(i).starts_with(w); });
    if (!is_in_string && word != std::end(kWords)) {
      out += fmt::format(R"({{"__float__": "{}"}})", *word);
      i += word->size();
      continue;
    }
    const bool is_escaped = is_in_string && text[i] == '\\' && i + 1 < text.size();
    if (text[i] == '"') is_in_string = !is_in_string;
    const size_t count = is_escaped ? 2 : 1;
    out += text.substr(i, count);
    i += count;
  }
  return out;
}

Result<Json> parse_config(std::string_view file, std::string_view text) {
  Result<Json> json = parse_json(with_objects_for_words(text));
  if (!json.ok()) return corrupt("{}: {}", file, json.status().message());
  if (!json->is_object()) return corrupt("{}: expected an object, found {}", file, json->kind_name());
  return json;
}

DType read_dtype(ConfigReader& config) {
  constexpr std::pair<std::string_view, DType> kChoices[] = {
      {"bfloat16", DType::kBF16}, {"float16", DType::kF16}, {"float32", DType::kF32}};
  return config.choice(config.has("dtype") ? "dtype" : "torch_dtype", DType::kBF16, kChoices);
}

constexpr std::pair<std::string_view, RopeKind> kRopeKinds[] = {
    {"default", RopeKind::kDefault},
    {"linear", RopeKind::kLinear},
    {"dynamic", RopeKind::kDynamic},
    {"llama3", RopeKind::kLlama3},
    {"yarn", RopeKind::kYarn},
    {"longrope", RopeKind::kLongRope},
    // Older names of two of these.
    {"mrope", RopeKind::kDefault},
    {"su", RopeKind::kLongRope},
};

/// The object with the rotary keys: a non-null `rope_scaling` replaces `rope_parameters`; the latter may hold
/// one object per kind of layer.
std::optional<ConfigReader> rope_object(ConfigReader& config, const std::string& layer_type) {
  if (std::optional<ConfigReader> scaling = config.object("rope_scaling")) return scaling;
  std::optional<ConfigReader> parameters = config.object("rope_parameters");
  if (!parameters || !parameters->has(layer_type)) return parameters;
  return parameters->object(layer_type);
}

/// The keys that only some kinds have; `rope` is the object of rope_object().
void read_scaling(ConfigReader& rope, RopeConfig& result) {
  const bool needs_factor = result.kind == RopeKind::kLinear || result.kind == RopeKind::kDynamic ||
                            result.kind == RopeKind::kLlama3 || result.kind == RopeKind::kYarn;
  const double absent = result.kind == RopeKind::kLongRope ? 0.0 : 1.0;
  result.factor = needs_factor ? rope.positive_number("factor") : rope.positive_number("factor", absent);
  result.low_freq_factor = rope.positive_number("low_freq_factor", result.low_freq_factor);
  result.high_freq_factor = rope.positive_number("high_freq_factor", result.high_freq_factor);
  result.beta_fast = rope.positive_number("beta_fast", result.beta_fast);
  result.beta_slow = rope.positive_number("beta_slow", result.beta_slow);
  result.attention_factor = rope.optional_number("attention_factor");
  result.mscale = rope.optional_number("mscale");
  result.mscale_all_dim = rope.optional_number("mscale_all_dim");
  result.truncate = rope.boolean("truncate", true);
  result.short_factor = rope.number_list("short_factor");
  result.long_factor = rope.number_list("long_factor");
  result.mrope_section = rope.int_list("mrope_section");
  result.mrope_interleaved = rope.boolean("mrope_interleaved", false);
  if (result.kind == RopeKind::kLlama3 && result.low_freq_factor >= result.high_freq_factor) {
    rope.fail(StatusCode::kCorrupt, "low_freq_factor", "expected a number below high_freq_factor");
  }
}

/// Settings of transformers' GenerationConfig that change which tokens may be drawn, and the value that does
/// nothing.
struct SamplingSetting {
  std::string_view name;
  double neutral;
};
constexpr SamplingSetting kUnappliedNumbers[] = {
    {"repetition_penalty", 1.0},
    {"encoder_repetition_penalty", 1.0},
    {"presence_penalty", 0.0},
    {"frequency_penalty", 0.0},
    {"no_repeat_ngram_size", 0.0},
    {"encoder_no_repeat_ngram_size", 0.0},
    {"typical_p", 1.0},
    {"top_h", 0.0},
    {"epsilon_cutoff", 0.0},
    {"eta_cutoff", 0.0},
    {"penalty_alpha", 0.0},
    {"num_beams", 1.0},
    {"num_beam_groups", 1.0},
    {"diversity_penalty", 0.0},
    {"min_length", 0.0},
    {"min_new_tokens", 0.0},
    {"guidance_scale", 1.0},
};
constexpr std::string_view kUnappliedOthers[] = {
    "bad_words_ids",         "force_words_ids",     "constraints",         "suppress_tokens",
    "begin_suppress_tokens", "sequence_bias",       "forced_bos_token_id", "forced_eos_token_id",
    "dola_layers",           "watermarking_config", "forced_decoder_ids",  "exponential_decay_length_penalty",
};

std::vector<std::string> read_ignored(const ConfigReader& config) {
  std::vector<std::string> ignored;
  for (const SamplingSetting& setting : kUnappliedNumbers) {
    const Json* value = config.find(setting.name);
    if (value == nullptr || (value->is_number() && value->as_double() == setting.neutral)) continue;
    ignored.push_back(fmt::format("{} = {}", setting.name, dump_json(*value).substr(0, 40)));
  }
  for (std::string_view name : kUnappliedOthers) {
    const Json* value = config.find(name);
    const bool is_empty = value == nullptr || (value->is_array() && value->as_array().empty());
    if (!is_empty) ignored.push_back(fmt::format("{} = {}", name, dump_json(*value).substr(0, 40)));
  }
  return ignored;
}

/// A number that must lie in [least, most], or above least where `excludes_least`.
std::optional<double> read_in_range(ConfigReader& config, std::string_view key, double least,
                                    bool excludes_least, double most, std::string_view expected) {
  const std::optional<double> value = config.optional_number(key);
  if (value && (*value < least || (excludes_least && *value == least) || *value > most)) {
    config.fail(StatusCode::kCorrupt, key, expected);
  }
  return value;
}

}  // namespace

ConfigReader HfConfig::reader() const {
  return ConfigReader(std::string(kConfigName), *json).lifted("text_config");
}

Result<HfConfig> parse_hf_config(std::string_view text) {
  TF_ASSIGN_OR_RETURN(Json json, parse_config(kConfigName, text));
  HfConfig config;
  config.json = std::make_shared<const Json>(std::move(json));
  // The root's type names the family, also where text_config has one of its own ("qwen3_5_text").
  ConfigReader root(std::string(kConfigName), *config.json);
  config.model_type = root.string("model_type");
  config.architectures = root.string_list("architectures");
  if (!root.status().ok()) return root.status();
  ConfigReader reader = config.reader();
  config.dtype = read_dtype(reader);
  config.eos_token_ids = reader.int_or_list("eos_token_id");
  if (!reader.status().ok()) return reader.status();
  TF_ASSIGN_OR_RETURN(config.quantization, read_quantization_config(reader));
  return config;
}

Result<HfConfig> read_hf_config(const std::string& folder, const FileSystem& files) {
  const std::string path = join_path(folder, kConfigName);
  TF_ASSIGN_OR_RETURN(const std::string text, read_text_file(files, path, kMaxConfigBytes));
  Result<HfConfig> config = parse_hf_config(text);
  if (!config.ok()) return config.status().with_context(folder);
  return config;
}

std::string_view rope_kind_name(RopeKind kind) {
  for (const auto& [name, value] : kRopeKinds) {
    if (value == kind) return name;
  }
  check_failed(__FILE__, __LINE__, "unknown RopeKind");
}

RopeConfig read_rope_config(ConfigReader& config, const RopeDefaults& defaults) {
  RopeConfig result;
  std::optional<ConfigReader> rope = rope_object(config, defaults.layer_type);
  // Keys outside the object hold where it lacks them.
  result.theta = config.positive_number("rope_theta", defaults.theta);
  result.partial_rotary_factor =
      config.positive_number("partial_rotary_factor", defaults.partial_rotary_factor);
  result.original_max_position_embeddings = config.positive_int("original_max_position_embeddings", 0);
  if (rope) {
    result.kind = rope->choice(rope->has("rope_type") ? "rope_type" : "type", RopeKind::kDefault, kRopeKinds);
    result.theta = rope->positive_number("rope_theta", result.theta);
    result.partial_rotary_factor =
        rope->positive_number("partial_rotary_factor", result.partial_rotary_factor);
    result.original_max_position_embeddings =
        rope->positive_int("original_max_position_embeddings", result.original_max_position_embeddings);
    read_scaling(*rope, result);
  }
  if (result.partial_rotary_factor > 1.0) {
    ConfigReader& owner = rope && rope->has("partial_rotary_factor") ? *rope : config;
    owner.fail(StatusCode::kCorrupt, "partial_rotary_factor", "expected a number in (0, 1]");
  }
  return result;
}

Result<GenerationConfig> parse_generation_config(std::string_view text, const HfConfig& config) {
  TF_ASSIGN_OR_RETURN(const Json json, parse_config(kGenerationName, text));
  ConfigReader reader(std::string(kGenerationName), json);
  GenerationConfig result;
  result.do_sample = reader.optional_boolean("do_sample");
  result.temperature = read_in_range(reader, "temperature", 0, false, 1e6, "expected a number from 0");
  if (reader.has("top_k")) result.top_k = reader.non_negative_int("top_k", 0);
  result.top_p = read_in_range(reader, "top_p", 0, true, 1, "expected a number in (0, 1]");
  result.min_p = read_in_range(reader, "min_p", 0, false, 1, "expected a number in [0, 1]");
  if (reader.has("max_new_tokens")) result.max_new_tokens = reader.positive_int("max_new_tokens");
  result.eos_token_ids =
      reader.has("eos_token_id") ? reader.int_or_list("eos_token_id") : config.eos_token_ids;
  result.ignored = read_ignored(reader);
  if (!reader.status().ok()) return reader.status();
  return result;
}

Result<GenerationConfig> read_generation_config(const std::string& folder, const HfConfig& config,
                                                const FileSystem& files) {
  const std::string path = join_path(folder, kGenerationName);
  if (!files.is_file(path)) {
    GenerationConfig result;
    result.eos_token_ids = config.eos_token_ids;
    return result;
  }
  TF_ASSIGN_OR_RETURN(const std::string text, read_text_file(files, path, kMaxConfigBytes));
  Result<GenerationConfig> result = parse_generation_config(text, config);
  if (!result.ok()) return result.status().with_context(folder);
  return result;
}

}  // namespace tensorfold
