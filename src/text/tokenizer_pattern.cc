// text/tokenizer_pattern.h
#include "text/tokenizer_pattern.h"

namespace tensorfold {

Result<TokenizerPattern> parse_pattern(TokenizerFields& fields) {
  TokenizerFields pattern(fields.required("pattern"), fields.component() + ": pattern");
  TF_RETURN_IF_ERROR(fields.status());
  TF_RETURN_IF_ERROR(pattern.status());
  if (std::optional<std::string> text = pattern.optional_text("String")) {
    return TokenizerPattern{TokenizerRegex::literal(*text), std::string()};
  }
  std::string source = pattern.text("Regex");
  TF_RETURN_IF_ERROR(pattern.status());
  Result<TokenizerRegex> regex = TokenizerRegex::compile(source);
  if (!regex.ok()) return regex.status().with_context(fields.component());
  return TokenizerPattern{std::move(regex).value(), std::move(source)};
}

}  // namespace tensorfold
