// The `pattern` member of Split and Replace: {"String": s} or {"Regex": r}.
#pragma once

#include "text/tokenizer_fields.h"
#include "text/tokenizer_regex.h"

namespace tensorfold {

/// What `pattern` searches for. `source` is the regular expression, or empty for a literal (which cannot be
/// empty).
struct TokenizerPattern {
  TokenizerRegex regex;
  std::string source;
};

/// Reads and compiles the member "pattern" of a component.
Result<TokenizerPattern> parse_pattern(TokenizerFields& fields);

}  // namespace tensorfold
