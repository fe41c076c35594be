// Hand-written matchers of the split patterns that most byte-level checkpoints share. They give the pieces
// that the pattern itself gives (tests compare them with TokenizerRegex) at several times the speed.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "text/tokenizer_regex.h"

namespace tensorfold {

/// The pattern of the ByteLevel pre-tokenizer (use_regex), from GPT-2.
extern const std::string_view kGpt2Pattern;

/// Cuts text like Split(pattern, Isolated). Stateless; any number of threads.
class Scanner {
 public:
  virtual ~Scanner() = default;

  /// Appends the pieces of text[range]: matches and the gaps between them, in order, none empty. The range is
  /// a subject of its own: nothing outside it is looked at. Valid UTF-8.
  virtual void scan(std::string_view text, TextRange range, std::vector<TextRange>& pieces) const = 0;
};

/// The scanner of `pattern` (compared as a string), or null when it has none.
std::unique_ptr<const Scanner> find_scanner(std::string_view pattern);

/// Every pattern that find_scanner knows; for tests.
std::vector<std::string> scanner_patterns();

}  // namespace tensorfold
