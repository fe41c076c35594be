// Tokens to visible text (engine/text_stream.h).
#include "engine/text_stream.h"

#include <utility>

namespace tensorfold {

TextStream::TextStream(std::shared_ptr<const Tokenizer> tokenizer, std::span<const std::string> stop)
    : tokenizer_(std::move(tokenizer)), stop_strings_(stop) {
  if (tokenizer_ != nullptr) detokenizer_.emplace(*tokenizer_);
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
