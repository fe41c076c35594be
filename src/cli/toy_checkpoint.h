// Checkpoints with random weights, of any supported family and any size, or of the shapes of a published
// model: for trying a size on a machine, for benchmarks and tests. Which tensors there are the family itself
// says (memory/weight_table.h, DeclaredWeight). They are complete model folders (config, tokenizer, chat
// template, weights) that any reader of Hugging Face or MLX folders loads; what such a model says is
// nonsense.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/json.h"
#include "base/status.h"

namespace tensorfold {

/// A size that is 0, and whatever else is left out, has its default, or is that of `like`.
struct ToyOptions {
  std::string like;         ///< A name of cli/model_presets.h, whose config is taken.
  std::string family;       ///< As toy_family_name() takes it. Default llama; must be empty with `like`.
  int64_t num_layers = 0;   ///< Default 4. Of `like` the first ones.
  int64_t hidden_size = 0;  ///< Default 256.
  int64_t intermediate_size = 0;        ///< Of an expert where there are some. Default 3 * hidden_size (of an
                                        ///< expert: hidden_size / 2), up to a multiple of 64.
  int64_t num_heads = 0;                ///< Default hidden_size / head_dim.
  int64_t num_kv_heads = 0;             ///< Default a quarter of num_heads, at least one that divides it.
  int64_t head_dim = 0;                 ///< Default 64.
  int64_t vocab_size = 0;               ///< Default 512, at least kMinToyVocab.
  int64_t num_experts = 0;              ///< Default 8; only of families with experts.
  int64_t num_experts_per_tok = 0;      ///< Default 2; the same.
  int64_t max_position_embeddings = 0;  ///< Default 4096.
  std::optional<bool> tie_word_embeddings = {};  ///< Default false.
  bool is_quantized = false;  ///< MLX affine, 4 bits, groups of 64 (GPT-OSS's experts MXFP4); else bf16.
  uint64_t seed = 0;
};

/// Tokens of the toy tokenizer: 256 bytes, three special tokens, the two tags of thinking in families that
/// think, and words up to the size of the vocabulary.
inline constexpr int64_t kToyStartId = 256, kToyEndId = 257, kToyPadId = 258;
inline constexpr int64_t kMinToyVocab = 261;

/// One tensor, and how its random values are spread (not at all: all of them the mean).
struct ToyTensor {
  enum class Form : uint8_t { kFloats, kAffine, kMxfp4 };
  std::string name;  ///< Of a packed one the module, whose `.weight`, `.scales` and `.biases` are written.
  std::vector<int64_t> shape;
  double mean = 0;
  double stddev = 0;
  Form form = Form::kFloats;
};

/// What a toy checkpoint is to hold.
struct ToyModel {
  Json config;                     ///< config.json.
  std::vector<ToyTensor> tensors;  ///< In file order.
  int64_t num_params = 0;
};

/// The families that options know sizes for.
std::span<const std::string_view> toy_families();

/// The name among toy_families() that `name` means: itself, one in other case or with '-' or '.' for '_', or
/// the model_type that published configs have outside ("qwen3_5_moe" for "qwen3_5_moe_text"). "" is llama.
/// kInvalidArgument names all, and the nearest.
Result<std::string> toy_family_name(std::string_view name);

/// Checks options, and without `like` fills in what is left out. kInvalidArgument names the flag.
Result<ToyOptions> complete_toy_options(ToyOptions options);

/// hidden_size, layers and intermediate_size for about `num_params` weights. Fields other than these are
/// kept.
ToyOptions toy_options_of_size(ToyOptions options, int64_t num_params);

/// The model of complete options. Errors name the preset, the size that it does not have, or the key that the
/// family refuses.
Result<ToyModel> make_toy_model(const ToyOptions& options);

/// config.json, tokenizer.json, ... : file name -> content.
std::vector<std::pair<std::string, std::string>> toy_text_files(const ToyModel& model);

/// Called with the bytes done so far and those in all; an error ends the writing with it.
using ToyProgress = std::function<Status(int64_t done_bytes, int64_t total_bytes)>;

/// Writes the folder, which must not exist or be empty. It appears complete or not at all, and an error
/// leaves nothing behind. `progress` may be empty.
Status write_toy_checkpoint(const std::string& folder, const ToyModel& model, uint64_t seed,
                            const ToyProgress& progress);

}  // namespace tensorfold
