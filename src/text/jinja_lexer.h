// Template source to tokens: delimiters, white space control (trim_blocks, lstrip_blocks), literals.
// Follows the lexer of Jinja 3.1 rule by rule, its error texts included.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_value.h"

namespace tensorfold::jinja {

enum class TokenKind : uint8_t {
  kData,           ///< Text outside of tags; `value` is the string.
  kBlockBegin,     ///< {%
  kBlockEnd,       ///< %}
  kVariableBegin,  ///< {{
  kVariableEnd,    ///< }}
  kName,           ///< `text`
  kString,         ///< `value`
  kInteger,        ///< `value`
  kFloat,          ///< `value`
  kOperator,       ///< `text`
  kEnd,            ///< End of the template.
  kError,          ///< The source is not a template from here on; `text` is the reason.
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;
  Value value;

  bool is_name(std::string_view name) const { return kind == TokenKind::kName && text == name; }
  bool is_operator(std::string_view op) const { return kind == TokenKind::kOperator && text == op; }
};

/// The tokens of valid UTF-8 source, ending with kEnd or kError. An error is a token so that the parser,
/// which may find an earlier one, reports the first.
std::vector<Token> tokenize(std::string_view source);

}  // namespace tensorfold::jinja
