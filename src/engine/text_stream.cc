// Tokens to visible text (engine/text_stream.h).
#include "engine/text_stream.h"

#include <utility>

namespace tensorfold {

TextStream::TextStream(std::shared_ptr<const Tokenizer> tokenizer, std::span<const std::string> stop,
                       std::shared_ptr<const OutputFormat> format)
    : tokenizer_(std::move(tokenizer)), stop_strings_(stop) {
  if (tokenizer_ == nullptr) return;
  detokenizer_.emplace(tokenizer_, /*skip_special_tokens=*/format == nullptr);
  if (format == nullptr) return;
  for (const OutputMarker& marker : output_markers(format->syntax))
    if (const auto token = tokenizer_->token_to_id(marker.text)) markers_.push_back({*token, marker});
  parser_ = make_output_parser(std::move(format));
}

const TextStream::Marker* TextStream::find_marker(int32_t token) const {
  for (const Marker& marker : markers_)
    if (marker.token == token) return &marker;
  return nullptr;
}

bool TextStream::ends_reply(int32_t token) const {
  const Marker* marker = find_marker(token);
  return marker != nullptr && marker->marker.ends_reply;
}

std::string TextStream::push(int32_t token) {
  if (!detokenizer_ || stopped()) return {};
  if (parser_ == nullptr) return stop_strings_.push(detokenizer_->push(token));
  const Marker* marker = find_marker(token);
  // Special tokens that are no markers have no text.
  if (marker == nullptr && !tokenizer_->decoder_input(token, /*skip_special_tokens=*/true)) return {};
  parse(detokenizer_->push(token), marker == nullptr ? nullptr : &marker->marker);
  return {};
}

/// `text` ends with the marker's own, after what the detokenizer had held back. A decoder that spells it in
/// another way leaves it text.
void TextStream::parse(std::string_view text, const OutputMarker* marker) {
  std::vector<OutputPiece> pieces;
  const bool is_marker = marker != nullptr && text.ends_with(marker->text);
  if (is_marker) text.remove_suffix(marker->text.size());
  if (!text.empty()) parser_->push(text, pieces);
  if (is_marker) parser_->push_marker(marker->text, pieces);
  add_output(std::move(pieces));
}

void TextStream::add_output(std::vector<OutputPiece> pieces) {
  for (OutputPiece& piece : pieces) {
    if (stop_strings_.matched()) return;
    if (piece.kind == OutputPiece::Kind::kContent) {
      append_output(output_, piece.kind, stop_strings_.push(piece.text));
    } else if (piece.kind == OutputPiece::Kind::kReasoning) {
      append_output(output_, piece.kind, piece.text);
    } else {
      // No content follows the last call, so what may have begun a stop string is none.
      if (parser_->is_done() && &piece == &pieces.back())
        append_output(output_, OutputPiece::Kind::kContent, stop_strings_.finish());
      output_.push_back(std::move(piece));
    }
  }
}

std::string TextStream::finish(bool is_complete) {
  if (!detokenizer_ || stopped()) return {};
  if (parser_ == nullptr) {
    std::string text = stop_strings_.push(detokenizer_->finish());
    return text + stop_strings_.finish();
  }
  std::vector<OutputPiece> pieces;
  if (const std::string text = detokenizer_->finish(); !text.empty()) parser_->push(text, pieces);
  parser_->finish(is_complete, pieces);
  add_output(std::move(pieces));
  append_output(output_, OutputPiece::Kind::kContent, stop_strings_.finish());
  return {};
}

}  // namespace tensorfold
