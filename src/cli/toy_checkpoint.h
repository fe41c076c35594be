// Checkpoints with random weights, of any supported family and any size, or of the shapes of a published
// model: for trying a size on a machine, for benchmarks and tests. Which tensors there are the family itself
// says (memory/weight_table.h, DeclaredWeight). They are complete model folders (config, tokenizer, chat
// template, weights) that any reader of Hugging Face or MLX folders loads; what such a model says is
// nonsense.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/json.h"
#include "base/status.h"

namespace tensorfold {

struct ToyOptions {
  std::string like;  ///< A name of cli/model_presets.h: its config; of the fields below only num_layers
                     ///< (0: all), is_quantized and seed count.
  std::string family = "llama";  ///< One of toy_families().
  int64_t num_layers = 0;        ///< 0: 4, or all of `like`.
  int64_t hidden_size = 256;
  int64_t intermediate_size = 0;  ///< 0: 3 * hidden_size (of one expert: hidden_size / 2), a multiple of 64.
  int64_t num_heads = 0;          ///< 0: hidden_size / head_dim.
  int64_t num_kv_heads = 0;       ///< 0: a quarter of num_heads, at least one that divides it.
  int64_t head_dim = 64;
  int64_t vocab_size = 512;  ///< At least kMinToyVocab.
  int64_t num_experts = 8;   ///< Of families with experts.
  int64_t num_experts_per_tok = 2;
  int64_t max_position_embeddings = 4096;
  bool tie_word_embeddings = false;
  bool is_quantized = false;  ///< MLX affine, 4 bits, groups of 64 (GPT-OSS's experts MXFP4); else bf16.
  uint64_t seed = 0;
};

/// 256 bytes and three special tokens.
inline constexpr int64_t kMinToyVocab = 259;

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

/// Fills in what is 0 and checks the rest; kInvalidArgument names the option.
Result<ToyOptions> complete_toy_options(ToyOptions options);

/// hidden_size, layers and intermediate_size for about `num_params` weights. Fields other than these are
/// kept.
ToyOptions toy_options_of_size(ToyOptions options, int64_t num_params);

/// The model of complete options, or of `like`. Errors name the preset, or the key that the family refuses.
Result<ToyModel> make_toy_model(const ToyOptions& options);

/// config.json, tokenizer.json, ... : file name -> content.
std::vector<std::pair<std::string, std::string>> toy_text_files(const ToyModel& model);

/// Writes the folder, which must not exist or be empty. It appears complete or not at all. `progress` (done,
/// total bytes) may be empty.
Status write_toy_checkpoint(const std::string& folder, const ToyModel& model, uint64_t seed,
                            const std::function<void(int64_t, int64_t)>& progress);

}  // namespace tensorfold
