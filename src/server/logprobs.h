// Log-probabilities in the two spellings of OpenAI's API.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/json.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

namespace tensorfold {

/// Chat: {"content":[{"token","logprob","bytes","top_logprobs":[...]}],"refusal":null}. A token that is no
/// valid UTF-8 by itself shows U+FFFD in "token" and its bytes in "bytes".
Json chat_logprobs(const Tokenizer& tokenizer, std::span<const GeneratedToken> tokens);

/// Text: {"tokens","token_logprobs","top_logprobs":[{token: logprob}],"text_offset"}. `text_offset` is the
/// number of characters of the reply before these tokens, and is moved on by them.
Json completion_logprobs(const Tokenizer& tokenizer, std::span<const GeneratedToken> tokens,
                         int64_t& text_offset);

}  // namespace tensorfold
