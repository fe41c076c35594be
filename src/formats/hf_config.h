// The parts of config.json and generation_config.json that all families share: type, dtype, quantization,
// rotary embedding, end-of-sequence ids, sampling defaults. What a family alone has, it reads itself with
// ConfigReader. Facts: specs/llama.md §1 and §4, specs/mlx-quantization.md §6.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/json.h"
#include "base/status.h"
#include "formats/config_reader.h"
#include "formats/file.h"
#include "formats/quantization_config.h"

namespace tensorfold {

/// config.json. Immutable once read; copies share the JSON.
struct HfConfig {
  std::shared_ptr<const Json> json;
  std::string model_type;                  ///< Of the root: "llama", "qwen3_5".
  std::vector<std::string> architectures;  ///< May be empty.
  DType dtype = DType::kBF16;  ///< `dtype` or `torch_dtype`: kBF16 (also when absent), kF16 or kF32.
  QuantizationConfig quantization;
  std::vector<int64_t> eos_token_ids;  ///< May be empty.

  /// A fresh reader: `text_config` (where there is one) over the root.
  ConfigReader reader() const;
};

Result<HfConfig> parse_hf_config(std::string_view text);

/// FOLDER/config.json. kNotFound when there is none.
Result<HfConfig> read_hf_config(const std::string& folder, const FileSystem& files = posix_file_system());

/// The rule by which rotary frequencies are scaled (specs/llama.md §4).
enum class RopeKind { kDefault, kLinear, kDynamic, kLlama3, kYarn, kLongRope };

std::string_view rope_kind_name(RopeKind kind);

/// Rotary parameters as the file has them. Which fields count depends on `kind`; their meaning is
/// specs/llama.md §4's.
struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000.0;              ///< rope_theta.
  double partial_rotary_factor = 1.0;  ///< Share of head_dim that is rotated; in (0, 1].
  double factor = 1.0;                 ///< longrope: 0 when not given, then it follows from the two lengths.
  int64_t original_max_position_embeddings = 0;  ///< 0: not given; max_position_embeddings stands for it.
  double low_freq_factor = 1.0;                  ///< llama3.
  double high_freq_factor = 4.0;                 ///< llama3.
  double beta_fast = 32.0;                       ///< yarn.
  double beta_slow = 1.0;                        ///< yarn.
  std::optional<double> attention_factor = {};   ///< yarn, longrope.
  std::optional<double> mscale = {};             ///< yarn.
  std::optional<double> mscale_all_dim = {};     ///< yarn.
  bool truncate = true;                          ///< yarn: borders of the ramp rounded outwards.
  std::vector<double> short_factor = {};         ///< longrope.
  std::vector<double> long_factor = {};          ///< longrope.
  std::vector<int64_t> mrope_section = {};       ///< Multimodal positions; empty: none.
  bool mrope_interleaved = false;
};

/// What a family assumes where its files say nothing.
struct RopeDefaults {
  double theta = 10000.0;
  double partial_rotary_factor = 1.0;
  /// Key of the sub-object to read where `rope_parameters` holds one per kind of layer ("sliding_attention").
  std::string layer_type = "full_attention";
};

/// Reads `rope_scaling` and `rope_theta`, or `rope_parameters`, of either generation of files; errors go to
/// the reader's status. An unknown kind is kUnsupported, naming key and value.
RopeConfig read_rope_config(ConfigReader& config, const RopeDefaults& defaults = {});

/// generation_config.json: the sampling defaults that the maker of a model wishes. Absent fields are empty.
struct GenerationConfig {
  std::optional<bool> do_sample;
  std::optional<double> temperature;  ///< >= 0.
  std::optional<int64_t> top_k;       ///< 0: off.
  std::optional<double> top_p;        ///< In (0, 1].
  std::optional<double> min_p;        ///< In [0, 1].
  std::optional<int64_t> max_new_tokens;
  /// Ids that end a reply: the file's, or those of config.json where the file has none.
  std::vector<int64_t> eos_token_ids;
  /// Settings that would change the distribution and that this program does not apply, as `name = value`,
  /// neutral ones left out: to be reported.
  std::vector<std::string> ignored;
};

Result<GenerationConfig> parse_generation_config(std::string_view text, const HfConfig& config);

/// FOLDER/generation_config.json; where there is none, only config.json's ids.
Result<GenerationConfig> read_generation_config(const std::string& folder, const HfConfig& config,
                                                const FileSystem& files = posix_file_system());

}  // namespace tensorfold
