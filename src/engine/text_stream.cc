// Tokens to visible text (engine/text_stream.h).
#include "engine/text_stream.h"

#include <utility>

namespace tensorfold {

TextStream::TextStream(std::shared_ptr<const Tokenizer> tokenizer, std::span<const std::string> stop)
    : stop_strings_(stop) {
  if (tokenizer != nullptr) detokenizer_.emplace(std::move(tokenizer), /*skip_special_tokens=*/true);
}

std::string TextStream::push(int32_t token) {
  if (!detokenizer_ || stopped()) return {};
  return stop_strings_.push(detokenizer_->push(token));
}

std::string TextStream::finish() {
  if (!detokenizer_ || stopped()) return {};
  std::string text = stop_strings_.push(detokenizer_->finish());
  return text + stop_strings_.finish();
}

}  // namespace tensorfold
