// The `quantization` section of config.json: how packed modules were packed (specs/mlx-quantization.md §6).
// The data decide whether a module is packed (its `.scales` exist); this decides how to read it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "formats/config_reader.h"

namespace tensorfold {

enum class QuantMode { kAffine, kMxfp4, kNvfp4, kMxfp8 };

/// "affine", "mxfp4", ...
std::string_view quant_mode_name(QuantMode mode);

/// How one module's weight is packed.
struct ModuleQuantization {
  QuantMode mode = QuantMode::kAffine;
  int group_size = 64;  ///< Weights per scale, along the input.
  int bits = 4;         ///< Of one weight.
  friend bool operator==(const ModuleQuantization&, const ModuleQuantization&) = default;
};

struct QuantizationConfig {
  bool is_present = false;      ///< false: no section, or null; nothing is packed.
  ModuleQuantization defaults;  ///< Of modules without an entry.
  /// Module path as written -> its packing, or nothing where the file says `false`. `true` is the defaults.
  std::map<std::string, std::optional<ModuleQuantization>, std::less<>> modules;
  std::string quant_method;  ///< Of `quantization_config`, where given: "mxfp4". Else empty.
  std::vector<std::string>
      modules_to_not_convert;  ///< Patterns of gpt-oss's published files, `*` for a layer.

  /// What applies to a module if it has scales: its entry, else the defaults; nothing where it is declared
  /// unpacked. Entries and `path` are compared after canonical_module_name, an exact match first.
  std::optional<ModuleQuantization> module(std::string_view path) const;
};

/// A module path without what Hugging Face and MLX put before it differently: the longest of
/// `model.language_model.`, `language_model.model.`, `language_model.`, `model.`, `backbone.` is dropped.
std::string_view canonical_module_name(std::string_view path);

/// Reads `quantization`, or else a usable `quantization_config`, of the root. Unknown methods, modes, and
/// sizes that no kernel reads are kUnsupported, with key and value.
Result<QuantizationConfig> read_quantization_config(ConfigReader config);

}  // namespace tensorfold
