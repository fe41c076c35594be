// Strings as Python sees them: sequences of code points with Python's rules for white space, case and
// printability. Text is UTF-8; surrogates (which only an escape in a template can make) are kept as three
// bytes until the end. Character data comes from utf8proc; the few mappings to several code points are
// Unicode's SpecialCasing.txt.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tensorfold::jinja {

/// Reads the code point at text[i] and advances i past it. `text` is valid (find_invalid_utf8), i <
/// text.size().
char32_t next_code_point(std::string_view text, size_t& i);
void append_code_point(std::string& out, char32_t c);

/// Offset of the first byte that is not UTF-8, or npos. Surrogates count as invalid unless allowed.
size_t find_invalid_utf8(std::string_view text, bool allow_surrogates = false);

/// Number of code points of valid text.
size_t count_code_points(std::string_view text);
/// Byte offset of code point `index`; text.size() when index is past the end.
size_t code_point_offset(std::string_view text, size_t index);

// Predicates of one code point, named as Python's str methods.
bool is_space(char32_t c);
bool is_line_break(char32_t c);  ///< What str.splitlines splits at, besides \r\n.
bool is_alpha(char32_t c);
bool is_decimal(char32_t c);
bool is_digit(char32_t c);
bool is_numeric(char32_t c);
bool is_alnum(char32_t c);
bool is_lower(char32_t c);
bool is_upper(char32_t c);
bool is_title(char32_t c);
bool is_printable(char32_t c);
bool is_identifier_start(char32_t c);
bool is_identifier_part(char32_t c);

// Whole strings, as Python's methods of the same name (full case mappings).
std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_title(std::string_view text);
std::string to_capitalized(std::string_view text);
std::string swap_case(std::string_view text);
std::string case_fold(std::string_view text);

/// Length in bytes of the white space at the start, or at the end, of text.
size_t leading_space(std::string_view text);
size_t trailing_space(std::string_view text);

/// str.splitlines(): lines without their ends, or with them.
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends = false);

}  // namespace tensorfold::jinja
