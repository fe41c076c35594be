// Python's character rules over utf8proc's tables.
#include "text/jinja_unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace tensorfold::jinja {
namespace {

/// Upper and title case of the code points whose mapping has several code points (Unicode 14, unconditional).
struct SpecialCase {
  char32_t code_point;
  const char16_t* upper;
  const char16_t* title;
};
constexpr SpecialCase kSpecialCases[] = {
    {0x00df, u"SS", u"Ss"},
    {0x0149, u"\u02bcN", u"\u02bcN"},
    {0x01f0, u"J\u030c", u"J\u030c"},
    {0x0390, u"\u0399\u0308\u0301", u"\u0399\u0308\u0301"},
    {0x03b0, u"\u03a5\u0308\u0301", u"\u03a5\u0308\u0301"},
    {0x0587, u"\u0535\u0552", u"\u0535\u0582"},
    {0x1e96, u"H\u0331", u"H\u0331"},
    {0x1e97, u"T\u0308", u"T\u0308"},
    {0x1e98, u"W\u030a", u"W\u030a"},
    {0x1e99, u"Y\u030a", u"Y\u030a"},
    {0x1e9a, u"A\u02be", u"A\u02be"},
    {0x1f50, u"\u03a5\u0313", u"\u03a5\u0313"},
    {0x1f52, u"\u03a5\u0313\u0300", u"\u03a5\u0313\u0300"},
    {0x1f54, u"\u03a5\u0313\u0301", u"\u03a5\u0313\u0301"},
    {0x1f56, u"\u03a5\u0313\u0342", u"\u03a5\u0313\u0342"},
    {0x1f80, u"\u1f08\u0399", u"\u1f88"},
    {0x1f81, u"\u1f09\u0399", u"\u1f89"},
    {0x1f82, u"\u1f0a\u0399", u"\u1f8a"},
    {0x1f83, u"\u1f0b\u0399", u"\u1f8b"},
    {0x1f84, u"\u1f0c\u0399", u"\u1f8c"},
    {0x1f85, u"\u1f0d\u0399", u"\u1f8d"},
    {0x1f86, u"\u1f0e\u0399", u"\u1f8e"},
    {0x1f87, u"\u1f0f\u0399", u"\u1f8f"},
    {0x1f88, u"\u1f08\u0399", u"\u1f88"},
    {0x1f89, u"\u1f09\u0399", u"\u1f89"},
    {0x1f8a, u"\u1f0a\u0399", u"\u1f8a"},
    {0x1f8b, u"\u1f0b\u0399", u"\u1f8b"},
    {0x1f8c, u"\u1f0c\u0399", u"\u1f8c"},
    {0x1f8d, u"\u1f0d\u0399", u"\u1f8d"},
    {0x1f8e, u"\u1f0e\u0399", u"\u1f8e"},
    {0x1f8f, u"\u1f0f\u0399", u"\u1f8f"},
    {0x1f90, u"\u1f28\u0399", u"\u1f98"},
    {0x1f91, u"\u1f29\u0399", u"\u1f99"},
    {0x1f92, u"\u1f2a\u0399", u"\u1f9a"},
    {0x1f93, u"\u1f2b\u0399", u"\u1f9b"},
    {0x1f94, u"\u1f2c\u0399", u"\u1f9c"},
    {0x1f95, u"\u1f2d\u0399", u"\u1f9d"},
    {0x1f96, u"\u1f2e\u0399", u"\u1f9e"},
    {0x1f97, u"\u1f2f\u0399", u"\u1f9f"},
    {0x1f98, u"\u1f28\u0399", u"\u1f98"},
    {0x1f99, u"\u1f29\u0399", u"\u1f99"},
    {0x1f9a, u"\u1f2a\u0399", u"\u1f9a"},
    {0x1f9b, u"\u1f2b\u0399", u"\u1f9b"},
    {0x1f9c, u"\u1f2c\u0399", u"\u1f9c"},
    {0x1f9d, u"\u1f2d\u0399", u"\u1f9d"},
    {0x1f9e, u"\u1f2e\u0399", u"\u1f9e"},
    {0x1f9f, u"\u1f2f\u0399", u"\u1f9f"},
    {0x1fa0, u"\u1f68\u0399", u"\u1fa8"},
    {0x1fa1, u"\u1f69\u0399", u"\u1fa9"},
    {0x1fa2, u"\u1f6a\u0399", u"\u1faa"},
    {0x1fa3, u"\u1f6b\u0399", u"\u1fab"},
    {0x1fa4, u"\u1f6c\u0399", u"\u1fac"},
    {0x1fa5, u"\u1f6d\u0399", u"\u1fad"},
    {0x1fa6, u"\u1f6e\u0399", u"\u1fae"},
    {0x1fa7, u"\u1f6f\u0399", u"\u1faf"},
    {0x1fa8, u"\u1f68\u0399", u"\u1fa8"},
    {0x1fa9, u"\u1f69\u0399", u"\u1fa9"},
    {0x1faa, u"\u1f6a\u0399", u"\u1faa"},
    {0x1fab, u"\u1f6b\u0399", u"\u1fab"},
    {0x1fac, u"\u1f6c\u0399", u"\u1fac"},
    {0x1fad, u"\u1f6d\u0399", u"\u1fad"},
    {0x1fae, u"\u1f6e\u0399", u"\u1fae"},
    {0x1faf, u"\u1f6f\u0399", u"\u1faf"},
    {0x1fb2, u"\u1fba\u0399", u"\u1fba\u0345"},
    {0x1fb3, u"\u0391\u0399", u"\u1fbc"},
    {0x1fb4, u"\u0386\u0399", u"\u0386\u0345"},
    {0x1fb6, u"\u0391\u0342", u"\u0391\u0342"},
    {0x1fb7, u"\u0391\u0342\u0399", u"\u0391\u0342\u0345"},
    {0x1fbc, u"\u0391\u0399", u"\u1fbc"},
    {0x1fc2, u"\u1fca\u0399", u"\u1fca\u0345"},
    {0x1fc3, u"\u0397\u0399", u"\u1fcc"},
    {0x1fc4, u"\u0389\u0399", u"\u0389\u0345"},
    {0x1fc6, u"\u0397\u0342", u"\u0397\u0342"},
    {0x1fc7, u"\u0397\u0342\u0399", u"\u0397\u0342\u0345"},
    {0x1fcc, u"\u0397\u0399", u"\u1fcc"},
    {0x1fd2, u"\u0399\u0308\u0300", u"\u0399\u0308\u0300"},
    {0x1fd3, u"\u0399\u0308\u0301", u"\u0399\u0308\u0301"},
    {0x1fd6, u"\u0399\u0342", u"\u0399\u0342"},
    {0x1fd7, u"\u0399\u0308\u0342", u"\u0399\u0308\u0342"},
    {0x1fe2, u"\u03a5\u0308\u0300", u"\u03a5\u0308\u0300"},
    {0x1fe3, u"\u03a5\u0308\u0301", u"\u03a5\u0308\u0301"},
    {0x1fe4, u"\u03a1\u0313", u"\u03a1\u0313"},
    {0x1fe6, u"\u03a5\u0342", u"\u03a5\u0342"},
    {0x1fe7, u"\u03a5\u0308\u0342", u"\u03a5\u0308\u0342"},
    {0x1ff2, u"\u1ffa\u0399", u"\u1ffa\u0345"},
    {0x1ff3, u"\u03a9\u0399", u"\u1ffc"},
    {0x1ff4, u"\u038f\u0399", u"\u038f\u0345"},
    {0x1ff6, u"\u03a9\u0342", u"\u03a9\u0342"},
    {0x1ff7, u"\u03a9\u0342\u0399", u"\u03a9\u0342\u0345"},
    {0x1ffc, u"\u03a9\u0399", u"\u1ffc"},
    {0xfb00, u"FF", u"Ff"},
    {0xfb01, u"FI", u"Fi"},
    {0xfb02, u"FL", u"Fl"},
    {0xfb03, u"FFI", u"Ffi"},
    {0xfb04, u"FFL", u"Ffl"},
    {0xfb05, u"ST", u"St"},
    {0xfb06, u"ST", u"St"},
    {0xfb13, u"\u0544\u0546", u"\u0544\u0576"},
    {0xfb14, u"\u0544\u0535", u"\u0544\u0565"},
    {0xfb15, u"\u0544\u053b", u"\u0544\u056b"},
    {0xfb16, u"\u054e\u0546", u"\u054e\u0576"},
    {0xfb17, u"\u0544\u053d", u"\u0544\u056d"},
};

const SpecialCase* find_special_case(char32_t c) {
  const auto* end = std::end(kSpecialCases);
  const auto* at =
      std::lower_bound(std::begin(kSpecialCases), end, c,
                       [](const SpecialCase& entry, char32_t value) { return entry.code_point < value; });
  return at != end && at->code_point == c ? at : nullptr;
}

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }
char32_t simple_upper(char32_t c) { return static_cast<char32_t>(utf8proc_toupper(static_cast<int32_t>(c))); }
char32_t simple_lower(char32_t c) { return static_cast<char32_t>(utf8proc_tolower(static_cast<int32_t>(c))); }
char32_t simple_title(char32_t c) { return static_cast<char32_t>(utf8proc_totitle(static_cast<int32_t>(c))); }

struct Range {
  char32_t first, last;
};
template <size_t N>
bool in_ranges(const Range (&ranges)[N], char32_t c) {
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [c](Range r) { return r.first <= c && c <= r.last; });
}

/// Numeric_Type=Digit without being decimal: superscripts, subscripts, circled digits.
constexpr Range kDigits[] = {{0xb2, 0xb3},       {0xb9, 0xb9},       {0x1369, 0x1371},   {0x19da, 0x19da},
                             {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
                             {0x2474, 0x247c},   {0x2488, 0x2490},   {0x24ea, 0x24ea},   {0x24f5, 0x24fd},
                             {0x24ff, 0x24ff},   {0x2776, 0x277e},   {0x2780, 0x2788},   {0x278a, 0x2792},
                             {0x10a40, 0x10a43}, {0x10e60, 0x10e68}, {0x11052, 0x1105a}, {0x1f100, 0x1f10a}};
/// Other_Lowercase and Other_Uppercase.
constexpr Range kOtherLower[] = {
    {0xaa, 0xaa},       {0xba, 0xba},       {0x2b0, 0x2b8},     {0x2c0, 0x2c1},    {0x2e0, 0x2e4},
    {0x345, 0x345},     {0x37a, 0x37a},     {0x1d2c, 0x1d6a},   {0x1d78, 0x1d78},  {0x1d9b, 0x1dbf},
    {0x2071, 0x2071},   {0x207f, 0x207f},   {0x2090, 0x209c},   {0x2170, 0x217f},  {0x24d0, 0x24e9},
    {0x2c7c, 0x2c7d},   {0xa69c, 0xa69d},   {0xa770, 0xa770},   {0xa7f8, 0xa7f9},  {0xab5c, 0xab5f},
    {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107b0}, {0x107b2, 0x107ba}};
constexpr Range kOtherUpper[] = {
    {0x2160, 0x216f}, {0x24b6, 0x24cf}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};

bool is_cased(char32_t c) { return is_lower(c) || is_upper(c) || is_title(c); }

/// Case_Ignorable, for the rule of the final sigma.
bool is_case_ignorable(char32_t c) {
  constexpr std::u32string_view kPunctuation =
      U"'.:^`\u00a8\u00ad\u00af\u00b4\u00b7\u00b8\u2018\u2019\u2024\u2027";
  if (kPunctuation.find(c) != std::u32string_view::npos) return true;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return false;
  }
}

void append_utf16(std::string& out, const char16_t* text) {
  for (; *text != 0; ++text) append_code_point(out, *text);
}

void append_upper(std::string& out, char32_t c) {
  if (const SpecialCase* special = find_special_case(c)) {
    append_utf16(out, special->upper);
  } else {
    append_code_point(out, simple_upper(c));
  }
}

void append_title(std::string& out, char32_t c) {
  if (const SpecialCase* special = find_special_case(c)) {
    append_utf16(out, special->title);
  } else {
    append_code_point(out, simple_title(c));
  }
}

std::u32string decode(std::string_view text) {
  std::u32string out;
  for (size_t i = 0; i < text.size();) out += next_code_point(text, i);
  return out;
}

/// A capital sigma ends a word when a cased letter stands before it and none after, ignorable characters
/// aside.
bool is_final_sigma(const std::u32string& text, size_t at) {
  size_t before = at;
  while (before > 0 && is_case_ignorable(text[before - 1])) --before;
  if (before == 0 || !is_cased(text[before - 1])) return false;
  size_t after = at + 1;
  while (after < text.size() && is_case_ignorable(text[after])) ++after;
  return after == text.size() || !is_cased(text[after]);
}

void append_lower(std::string& out, const std::u32string& text, size_t at) {
  const char32_t c = text[at];
  if (c == U'\u0130') {
    out += "i\u0307";
  } else if (c == U'\u03a3') {
    append_code_point(out, is_final_sigma(text, at) ? U'\u03c2' : U'\u03c3');
  } else {
    append_code_point(out, simple_lower(c));
  }
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}
char ascii_upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; }
char ascii_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

}  // namespace

char32_t next_code_point(std::string_view text, size_t& i) {
  const auto byte = [&](size_t k) { return static_cast<char32_t>(static_cast<uint8_t>(text[k])); };
  const char32_t lead = byte(i);
  if (lead < 0x80) return ++i, lead;
  if (lead < 0xe0) return i += 2, (lead & 0x1f) << 6 | (byte(i - 1) & 0x3f);
  if (lead < 0xf0) return i += 3, (lead & 0x0f) << 12 | (byte(i - 2) & 0x3f) << 6 | (byte(i - 1) & 0x3f);
  i += 4;
  return (lead & 0x07) << 18 | (byte(i - 3) & 0x3f) << 12 | (byte(i - 2) & 0x3f) << 6 | (byte(i - 1) & 0x3f);
}

void append_code_point(std::string& out, char32_t c) {
  const auto put = [&out](char32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | c >> 6), put(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12), put(0x80 | (c >> 6 & 0x3f)), put(0x80 | (c & 0x3f));
  } else {
    put(0xf0 | c >> 18), put(0x80 | (c >> 12 & 0x3f)), put(0x80 | (c >> 6 & 0x3f)), put(0x80 | (c & 0x3f));
  }
}

size_t find_invalid_utf8(std::string_view text, bool allow_surrogates) {
  for (size_t i = 0; i < text.size();) {
    const uint8_t lead = static_cast<uint8_t>(text[i]);
    const size_t length = lead < 0x80   ? 1
                          : lead < 0xc2 ? 0
                          : lead < 0xe0 ? 2
                          : lead < 0xf0 ? 3
                          : lead < 0xf5 ? 4
                                        : 0;
    if (length == 0 || i + length > text.size()) return i;
    for (size_t k = 1; k < length; ++k) {
      if ((static_cast<uint8_t>(text[i + k]) & 0xc0) != 0x80) return i;
    }
    size_t next = i;
    const char32_t c = next_code_point(text, next);
    constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    if (c < kLeast[length] || c > 0x10ffff || (!allow_surrogates && c >= 0xd800 && c < 0xe000)) return i;
    i = next;
  }
  return std::string_view::npos;
}

size_t count_code_points(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(),
                                           [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; }));
}

size_t code_point_offset(std::string_view text, size_t index) {
  size_t i = 0;
  for (; index > 0 && i < text.size(); --index) next_code_point(text, i);
  return i;
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}
bool is_line_break(char32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}
bool is_alpha(char32_t c) {
  const utf8proc_category_t kind = category(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
bool is_digit(char32_t c) { return is_decimal(c) || in_ranges(kDigits, c); }
bool is_numeric(char32_t c) {
  const utf8proc_category_t kind = category(c);
  // Ideographs with a numeric value that text really uses: 0-10, hundred, thousand, ten thousand.
  constexpr std::u32string_view kIdeographs = U"〇一二三四五六七八九十百千万億兆壹貳參肆伍陸柒捌玖拾零两兩亿";
  return (kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO) ||
         kIdeographs.find(c) != std::u32string_view::npos;
}
bool is_alnum(char32_t c) { return is_alpha(c) || is_numeric(c); }
bool is_lower(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LL || in_ranges(kOtherLower, c); }
bool is_upper(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LU || in_ranges(kOtherUpper, c); }
bool is_title(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LT; }
bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}
bool is_identifier_start(char32_t c) {
  return c == '_' || is_alpha(c) || category(c) == UTF8PROC_CATEGORY_NL;
}
bool is_identifier_part(char32_t c) {
  const utf8proc_category_t kind = category(c);
  return is_identifier_start(c) || kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_MC ||
         kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_PC;
}

std::string to_upper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    if (static_cast<uint8_t>(text[i]) < 0x80) {
      out += ascii_upper(text[i++]);
    } else {
      append_upper(out, next_code_point(text, i));
    }
  }
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  if (is_ascii(text)) {
    for (char c : text) out += ascii_lower(c);
    return out;
  }
  const std::u32string points = decode(text);
  for (size_t i = 0; i < points.size(); ++i) append_lower(out, points, i);
  return out;
}

std::string to_title(std::string_view text) {
  std::string out;
  const std::u32string points = decode(text);
  bool after_cased = false;
  for (size_t i = 0; i < points.size(); ++i) {
    if (after_cased) {
      append_lower(out, points, i);
    } else {
      append_title(out, points[i]);
    }
    after_cased = is_cased(points[i]);
  }
  return out;
}

std::string to_capitalized(std::string_view text) {
  std::string out;
  const std::u32string points = decode(text);
  for (size_t i = 0; i < points.size(); ++i) {
    if (i == 0) {
      append_title(out, points[i]);
    } else {
      append_lower(out, points, i);
    }
  }
  return out;
}

std::string swap_case(std::string_view text) {
  std::string out;
  const std::u32string points = decode(text);
  for (size_t i = 0; i < points.size(); ++i) {
    if (is_upper(points[i])) {
      append_lower(out, points, i);
    } else if (is_lower(points[i])) {
      append_upper(out, points[i]);
    } else {
      append_code_point(out, points[i]);
    }
  }
  return out;
}

std::string case_fold(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    std::array<utf8proc_int32_t, 8> folded{};
    int boundary = 0;
    const char32_t c = next_code_point(text, i);
    const auto count = utf8proc_decompose_char(static_cast<int32_t>(c), folded.data(), folded.size(),
                                               UTF8PROC_CASEFOLD, &boundary);
    for (utf8proc_ssize_t k = 0; k < count; ++k) append_code_point(out, static_cast<char32_t>(folded[k]));
  }
  return out;
}

size_t leading_space(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    size_t next = i;
    if (!is_space(next_code_point(text, next))) break;
    i = next;
  }
  return i;
}

size_t trailing_space(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t start = end - 1;
    while (start > 0 && (static_cast<uint8_t>(text[start]) & 0xc0) == 0x80) --start;
    size_t next = start;
    if (!is_space(next_code_point(text, next))) break;
    end = start;
  }
  return text.size() - end;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t start = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t line_end = i;
    const char32_t c = next_code_point(text, i);
    if (!is_line_break(c)) continue;
    if (c == '\r' && i < text.size() && text[i] == '\n') ++i;
    lines.push_back(text.substr(start, (keep_ends ? i : line_end) - start));
    start = i;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

}  // namespace tensorfold::jinja
