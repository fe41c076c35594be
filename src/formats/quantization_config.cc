// Reading of formats/quantization_config.h.
#include "formats/quantization_config.h"

namespace tensorfold {
namespace {

struct ModeInfo {
  std::string_view name;
  QuantMode mode;
  int default_group_size;
  int default_bits;
};
constexpr ModeInfo kModes[] = {
    {"affine", QuantMode::kAffine, 64, 4},
    {"mxfp4", QuantMode::kMxfp4, 32, 4},
    {"nvfp4", QuantMode::kNvfp4, 16, 4},
    {"mxfp8", QuantMode::kMxfp8, 32, 8},
};

const ModeInfo& mode_info(QuantMode mode) {
  for (const ModeInfo& info : kModes) {
    if (info.mode == mode) return info;
  }
  check_failed(__FILE__, __LINE__, "unknown QuantMode");
}

constexpr std::pair<std::string_view, QuantMode> kModeChoices[] = {{"affine", QuantMode::kAffine},
                                                                   {"mxfp4", QuantMode::kMxfp4},
                                                                   {"nvfp4", QuantMode::kNvfp4},
                                                                   {"mxfp8", QuantMode::kMxfp8}};

/// Only these pairs exist (specs/mlx-quantization.md §1).
void check_sizes(ConfigReader& object, const ModuleQuantization& packing) {
  const ModeInfo& info = mode_info(packing.mode);
  if (packing.mode == QuantMode::kAffine) {
    const bool has_bits = (packing.bits >= 2 && packing.bits <= 6) || packing.bits == 8;
    const bool has_group = packing.group_size == 32 || packing.group_size == 64 || packing.group_size == 128;
    if (!has_bits) object.fail(StatusCode::kUnsupported, "bits", "affine has 2, 3, 4, 5, 6 or 8");
    if (!has_group) object.fail(StatusCode::kUnsupported, "group_size", "affine has 32, 64 or 128");
    return;
  }
  if (packing.bits != info.default_bits) {
    object.fail(StatusCode::kUnsupported, "bits", fmt::format("{} has {}", info.name, info.default_bits));
  }
  if (packing.group_size != info.default_group_size) {
    object.fail(StatusCode::kUnsupported, "group_size",
                fmt::format("{} has {}", info.name, info.default_group_size));
  }
}

/// `mode`, `group_size` and `bits`; what is missing comes from the mode, never from an enclosing object.
ModuleQuantization read_packing(ConfigReader& object) {
  ModuleQuantization packing;
  packing.mode = object.choice("mode", QuantMode::kAffine, kModeChoices);
  const ModeInfo& info = mode_info(packing.mode);
  packing.group_size = static_cast<int>(object.positive_int("group_size", info.default_group_size));
  packing.bits = static_cast<int>(object.positive_int("bits", info.default_bits));
  check_sizes(object, packing);
  return packing;
}

bool is_setting(std::string_view key) {
  constexpr std::string_view kSettings[] = {"mode",         "group_size",           "bits",
                                            "quant_method", "quantize_activations", "modules_to_not_convert"};
  for (std::string_view setting : kSettings) {
    if (key == setting) return true;
  }
  return false;
}

/// MLX's section: defaults, and every other key a module path.
QuantizationConfig read_mlx(ConfigReader& section) {
  QuantizationConfig config;
  config.is_present = true;
  config.defaults = read_packing(section);
  for (const auto& [key, value] : section.members()) {
    if (is_setting(key)) continue;
    if (value.is_bool()) {
      config.modules[key] = value.as_bool() ? std::optional(config.defaults) : std::nullopt;
    } else if (std::optional<ConfigReader> entry = section.object(key)) {
      config.modules[key] = read_packing(*entry);
    } else {
      section.fail(StatusCode::kCorrupt, key, "expected a module's settings, true or false");
    }
  }
  return config;
}

/// `quantization_config` of Hugging Face: a copy of MLX's section, or mxfp4 as gpt-oss is published.
QuantizationConfig read_hugging_face(ConfigReader& section) {
  const std::string method = section.string("quant_method", "");
  if (method.empty()) {
    if (section.has("bits") || section.has("group_size") || section.has("mode")) return read_mlx(section);
    section.fail(StatusCode::kUnsupported, "quant_method", "expected mxfp4, or MLX's group_size and bits");
    return {};
  }
  if (method != "mxfp4") {
    section.fail(StatusCode::kUnsupported, "quant_method", "expected mxfp4 or none (MLX)");
    return {};
  }
  QuantizationConfig config;
  config.is_present = true;
  config.quant_method = method;
  config.defaults = {.mode = QuantMode::kMxfp4, .group_size = 32, .bits = 4};
  config.modules_to_not_convert = section.string_list("modules_to_not_convert");
  return config;
}

}  // namespace

std::string_view quant_mode_name(QuantMode mode) { return mode_info(mode).name; }

std::string_view canonical_module_name(std::string_view path) {
  // Longest first.
  for (std::string_view prefix :
       {"model.language_model.", "language_model.model.", "language_model.", "model.", "backbone."}) {
    if (path.starts_with(prefix)) return path.substr(prefix.size());
  }
  return path;
}

std::optional<ModuleQuantization> QuantizationConfig::module(std::string_view path) const {
  if (!is_present) return std::nullopt;
  if (const auto exact = modules.find(path); exact != modules.end()) return exact->second;
  for (const auto& [name, packing] : modules) {
    if (canonical_module_name(name) == canonical_module_name(path)) return packing;
  }
  return defaults;
}

Result<QuantizationConfig> read_quantization_config(ConfigReader config) {
  QuantizationConfig result;
  if (std::optional<ConfigReader> mlx = config.object("quantization")) {
    result = read_mlx(*mlx);
  } else if (std::optional<ConfigReader> hugging_face = config.object("quantization_config")) {
    result = read_hugging_face(*hugging_face);
  }
  if (!config.status().ok()) return config.status();
  return result;
}

}  // namespace tensorfold
