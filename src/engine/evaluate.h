// What `eval` computes: how well a model predicts a text, and its logits, for comparison with other
// implementations.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/loaded_model.h"

namespace tensorfold {

struct EvaluateOptions {
  /// Tokens of a window. The text is cut into windows, each run from an empty context, so a window's first
  /// token is not scored. 0: as many as the model was made for, at most 2048. More than the model was made
  /// for is refused.
  int64_t window_tokens = 0;
  /// Where logits f32 [T, V] go, one row per position, as the tensor `logits` of a safetensors file, together
  /// with `input_ids` i32 [T]. Empty: nowhere. All positions then are one window.
  std::string logits_path = {};
  /// May be empty: called with positions done and in total after each pass.
  std::function<void(int64_t done, int64_t total)> progress = {};
};

struct Evaluation {
  int64_t num_tokens = 0;
  int64_t num_scored = 0;  ///< Tokens that were predicted: num_tokens less one per window.
  double mean_nll = 0;     ///< Mean of -ln p(token | window so far) over them; 0 where there are none.
  double perplexity = 0;   ///< exp(mean_nll); 0 where no token was scored.
};

/// Not while an engine runs the model. Empty ids and ids outside the vocabulary are kInvalidArgument; a logit
/// that is NaN fails the evaluation (kInternal), naming its position. On failure no file is left at
/// logits_path.
Result<Evaluation> evaluate(const LoadedModel& model, std::span<const int32_t> ids,
                            const EvaluateOptions& options);

/// Token ids as integers between white space. Errors say which word is wrong.
Result<std::vector<int32_t>> parse_token_ids(std::string_view text);

}  // namespace tensorfold
