// From a sequence's tokens to its visible text: detokenizer, then stop strings.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/stop_strings.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace tensorfold {

/// The visible text of one sequence as it grows. Special tokens have no text. Owned by the sequence. One
/// thread.
class TextStream {
 public:
  /// Without a tokenizer (null) no token has text. Shares the tokenizer.
  TextStream(std::shared_ptr<const Tokenizer> tokenizer, std::span<const std::string> stop);

  /// The text that became visible with this token: none while a character or a possible stop string is
  /// incomplete.
  std::string push(int32_t token);

  /// The text that was held back, now that the reply ends: an incomplete character becomes U+FFFD, and a stop
  /// string that this completes still cuts. Empty once stopped.
  std::string finish();

  /// Whether a stop string was found; the visible text ended before it.
  bool stopped() const { return stop_strings_.matched(); }

 private:
  std::optional<Detokenizer> detokenizer_;
  StopStrings stop_strings_;
};

}  // namespace tensorfold
