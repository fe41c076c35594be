// From a sequence's tokens to its visible text: detokenizer, output parser, stop strings.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/stop_strings.h"
#include "text/detokenizer.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace tensorfold {

/// The visible text of one sequence as it grows. Special tokens have no text, unless they are markers of the
/// output format. Stop strings are looked for in the content alone, as OpenAI's hosted models do: reasoning
/// that quotes a stop string must not end the reply before its answer. Owned by the sequence. One thread.
class TextStream {
 public:
  /// Without a tokenizer (null) no token has text. Shares the tokenizer and the format; without a format all
  /// text is content.
  TextStream(std::shared_ptr<const Tokenizer> tokenizer, std::span<const std::string> stop,
             std::shared_ptr<const OutputFormat> format = nullptr);

  /// The text that became visible with this token: none while a character or a possible stop string is
  /// incomplete. With a format none at all: what the token gave is with take_output().
  std::string push(int32_t token);

  /// The text that was held back, now that the reply ends: an incomplete character becomes U+FFFD, and a stop
  /// string that this completes still cuts. Empty once stopped. `is_complete`: the model ended it.
  std::string finish(bool is_complete = true);

  /// With a format: the parts of the reply since the last call.
  std::vector<OutputPiece> take_output() { return std::exchange(output_, {}); }

  /// Whether a stop string was found, before which the visible text ended, or the format allows nothing more.
  bool stopped() const { return stop_strings_.matched() || (parser_ != nullptr && parser_->is_done()); }

  /// Whether the format ends a reply with this token, as an end-of-sequence token does.
  bool ends_reply(int32_t token) const;

 private:
  struct Marker {
    int32_t token = 0;
    OutputMarker marker;
  };
  const Marker* find_marker(int32_t token) const;
  void parse(std::string_view text, const OutputMarker* marker);
  void add_output(std::vector<OutputPiece> pieces);

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::optional<Detokenizer> detokenizer_;
  StopStrings stop_strings_;
  std::unique_ptr<OutputParser> parser_;  ///< Null without a format.
  std::vector<Marker> markers_;
  std::vector<OutputPiece> output_;
};

}  // namespace tensorfold
