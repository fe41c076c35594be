// Tiny random checkpoints with a tokenizer, written to a folder as a maker would publish them: for tests that
// need whole models of a given shape and format and no reference implementation.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace tensorfold {

/// What to write. Names as in config.json.
struct ToyModel {
  std::string model_type = "llama";  ///< "llama", "qwen2", "qwen3" or "qwen3_moe".
  int64_t num_layers = 2;
  int64_t hidden_size = 128;
  int64_t intermediate_size = 192;
  int64_t num_heads = 4;
  int64_t num_kv_heads = 2;
  int64_t head_dim = 32;
  int64_t vocab_size = 320;  ///< At least kToyVocabSize; the ids above have no text.
  int64_t max_position_embeddings = 1024;
  int bits = 0;  ///< 0: bf16; else an MLX affine width.
  int group_size = 64;
  bool is_tied = false;
  int64_t num_experts = 8;          ///< qwen3_moe.
  int64_t num_experts_per_tok = 3;  ///< qwen3_moe.
  uint64_t seed = 1;
};

/// Tokens of the toy tokenizer: 256 bytes, some merges, and one special token, which ends replies.
inline constexpr int64_t kToyVocabSize = 264;
inline constexpr int32_t kToyEndToken = 263;

/// tokenizer.json of the toy tokenizer: a byte-level BPE.
std::string toy_tokenizer_json();

/// Writes config.json, generation_config.json, tokenizer.json, tokenizer_config.json and model.safetensors
/// into an existing folder. The same bytes for the same description on every machine.
Status write_toy_model(const ToyModel& toy, const std::string& folder);

}  // namespace tensorfold
