// Character properties of regular expressions (\w, \p{Lu}, \p{Han}) as items of a PCRE2 class, in Unicode 16.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/unicode.h"

namespace tensorfold {

/// What a class escape or a property matches: whole categories, and ranges besides.
struct CharProperty {
  uint32_t categories = 0;             ///< Bit i: Category i.
  std::vector<CodePointRange> ranges;  ///< What no category holds.
  std::string script;  ///< PCRE2's name of a script, or empty; what newer Unicode added is in `ranges`.
};

/// \s, \d, \w and \h of Oniguruma, by letter; nullopt for other letters. Its \w differs inside a class [...].
std::optional<CharProperty> class_escape_property(char letter, bool is_in_class);
/// \p{name}: a general category or its first letter, or one of the scripts that patterns name in practice.
std::optional<CharProperty> named_property(std::string_view name);

/// Appends "\x{..}" or "\x{..}-\x{..}".
void append_class_range(std::string& items, char32_t first, char32_t last);
/// Appends the property as items of a class. Categories get what Unicode 15 and 16 added to them.
void append_class_items(std::string& items, const CharProperty& property);
/// Appends the ranges of all other characters; requires no script. PCRE2 has no negated item that could carry
/// additions.
void append_class_complement(std::string& items, const CharProperty& property);

}  // namespace tensorfold
