// Checkpoints with random weights, of any supported family and any size: for trying a size on a machine, for
// benchmarks and tests. They are complete model folders (config, tokenizer, chat template, weights) that any
// reader of Hugging Face or MLX folders loads; what such a model says is nonsense.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/json.h"
#include "base/status.h"

namespace tensorfold {

struct ToyOptions {
  std::string family = "llama";  ///< llama, qwen2, qwen3 or qwen3_moe.
  int64_t num_layers = 4;
  int64_t hidden_size = 256;
  int64_t intermediate_size = 0;  ///< 0: 3 * hidden_size (of one expert: hidden_size / 2), a multiple of 64.
  int64_t num_heads = 0;          ///< 0: hidden_size / head_dim.
  int64_t num_kv_heads = 0;       ///< 0: a quarter of num_heads, at least one that divides it.
  int64_t head_dim = 64;
  int64_t vocab_size = 512;  ///< At least kMinToyVocab.
  int64_t num_experts = 8;   ///< qwen3_moe.
  int64_t num_experts_per_tok = 2;
  int64_t max_position_embeddings = 4096;
  bool tie_word_embeddings = false;
  bool is_quantized = false;  ///< MLX affine, 4 bits, groups of 64; else bf16.
  uint64_t seed = 0;
};

/// 256 bytes and three special tokens.
inline constexpr int64_t kMinToyVocab = 259;

/// One tensor, and the spread of its random values (0: all of them 1, a norm).
struct ToyTensor {
  std::string name;  ///< Of the module, without ".weight".
  std::vector<int64_t> shape;
  double stddev = 0;
  bool is_matrix = true;  ///< Quantized if the checkpoint is.
  bool is_bias = false;   ///< Named ".bias".
};

/// Fills in what is 0 and checks the rest; kInvalidArgument names the option.
Result<ToyOptions> complete_toy_options(ToyOptions options);

/// hidden_size, layers and intermediate_size for about `num_params` weights. Fields other than these are
/// kept.
ToyOptions toy_options_of_size(ToyOptions options, int64_t num_params);

/// All tensors of complete options, in file order.
std::vector<ToyTensor> toy_tensors(const ToyOptions& options);

int64_t toy_num_params(const ToyOptions& options);

/// config.json, tokenizer.json, ... : file name -> content.
std::vector<std::pair<std::string, std::string>> toy_text_files(const ToyOptions& options);

/// Writes the folder, which must not exist or be empty. It appears complete or not at all. `progress` (done,
/// total bytes) may be empty.
Status write_toy_checkpoint(const std::string& folder, const ToyOptions& options,
                            const std::function<void(int64_t, int64_t)>& progress);

}  // namespace tensorfold
