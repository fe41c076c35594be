// The `post_processor` of tokenizer.json: which special tokens go around an encoded text.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace tensorfold {

/// One piece of the result: the encoded text, or special tokens that appear only when asked for.
struct TemplatePiece {
  bool is_text = false;
  std::vector<int32_t> special_ids;
};

/// The template for a single text. Types ByteLevel (which moves offsets only), TemplateProcessing (its pair
/// template is not used) and Sequence of these; null gives the text alone. Errors name "tokenizer.json:
/// post_processor".
Result<std::vector<TemplatePiece>> parse_post_processor(const Json& json);

}  // namespace tensorfold
