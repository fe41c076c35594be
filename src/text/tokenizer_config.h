// The part of tokenizer_config.json that is about special tokens. Its chat template is
// text/chat_template.h's.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tensorfold {

/// Absent: the file has no such member, or null.
struct TokenizerConfig {
  std::optional<std::string> bos_token, eos_token, pad_token, unk_token;
  std::optional<bool> add_bos_token, add_eos_token;
};

/// An empty text gives the empty config. Errors name "tokenizer_config.json".
Result<TokenizerConfig> parse_tokenizer_config(std::string_view text);

}  // namespace tensorfold
