// text/tokenizer_char_property.h
#include "text/tokenizer_char_property.h"

#include <fmt/format.h>

#include <iterator>

namespace tensorfold {
namespace {

using CategorySet = uint32_t;
constexpr CategorySet bit(Category category) { return CategorySet{1} << static_cast<int>(category); }

/// The categories that a one- or two-letter property name stands for; 0 when it is none.
CategorySet categories_named(std::string_view name) {
  CategorySet set = 0;
  for (int i = 0; i <= static_cast<int>(Category::kCo); ++i) {
    const std::string_view candidate = category_name(static_cast<Category>(i));
    if (name == candidate || name == candidate.substr(0, 1)) set |= CategorySet{1} << i;
  }
  return set;
}

const std::vector<CodePointRange>& white_space_ranges() {
  static const std::vector<CodePointRange> kRanges = {
      {0x9, 0xd},       {0x20, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680},
      {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}};
  return kRanges;
}

/// Oniguruma's \w: Alphabetic (Nl and the circled letters included), M, Nd, Pc; outside a class also the No
/// of Latin-1, for which it has a table of its own.
CharProperty word_property(bool is_in_class) {
  using enum Category;
  CharProperty word;
  for (const Category category : {kLu, kLl, kLt, kLm, kLo, kMn, kMc, kMe, kNd, kNl, kPc})
    word.categories |= bit(category);
  word.ranges = {{0x24b6, 0x24e9}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};
  if (!is_in_class) word.ranges.insert(word.ranges.begin(), {{0xb2, 0xb3}, {0xb9, 0xb9}, {0xbc, 0xbe}});
  return word;
}

/// Scripts that patterns name in practice, with what Unicode 15 to 16 added to them.
std::optional<CharProperty> script_property(std::string_view name) {
  if (name == "Han")
    return CharProperty{0, {{0x2b739, 0x2b739}, {0x2ebf0, 0x2ee5d}, {0x31350, 0x323af}}, "Han"};
  if (name == "Hiragana") return CharProperty{0, {{0x1b132, 0x1b132}}, "Hiragana"};
  if (name == "Katakana") return CharProperty{0, {{0x1b155, 0x1b155}}, "Katakana"};
  for (const char* complete : {"Hangul", "Thai", "Greek", "Hebrew", "Armenian"}) {
    if (name == complete) return CharProperty{0, {}, complete};
  }
  return std::nullopt;
}

/// Appends the ranges of all characters for which is_member(c) holds.
template <class Predicate>
void append_ranges_where(std::string& out, const Predicate& is_member) {
  char32_t start = 0;
  bool inside = false;
  for (char32_t c = 0; c <= 0x110000; ++c) {
    const bool is_surrogate = c >= 0xd800 && c < 0xe000;
    const bool member = c <= 0x10ffff && !is_surrogate && is_member(c);
    if (member && !inside) start = c;
    if (!member && inside) append_class_range(out, start, c - 1);
    inside = member;
  }
}

}  // namespace

std::optional<CharProperty> class_escape_property(char letter, bool is_in_class) {
  switch (letter) {
    case 's':
      return CharProperty{0, white_space_ranges(), {}};
    case 'd':
      return CharProperty{bit(Category::kNd), {}, {}};
    case 'w':
      return word_property(is_in_class);
    case 'h':
      return CharProperty{0, {{'0', '9'}, {'A', 'F'}, {'a', 'f'}}, {}};
    default:
      return std::nullopt;
  }
}

std::optional<CharProperty> named_property(std::string_view name) {
  if (const CategorySet categories = categories_named(name)) return CharProperty{categories, {}, {}};
  return script_property(name);
}

void append_class_range(std::string& items, char32_t first, char32_t last) {
  fmt::format_to(std::back_inserter(items), "\\x{{{:x}}}", static_cast<uint32_t>(first));
  if (last != first) fmt::format_to(std::back_inserter(items), "-\\x{{{:x}}}", static_cast<uint32_t>(last));
}

void append_class_items(std::string& items, const CharProperty& property) {
  for (int i = 1; i <= static_cast<int>(Category::kCo); ++i) {
    if (property.categories >> i & 1) {
      fmt::format_to(std::back_inserter(items), "\\p{{{}}}", category_name(static_cast<Category>(i)));
    }
  }
  // Newer versions took from Cn what they assigned.
  if (property.categories & bit(Category::kCn)) {
    append_ranges_where(items, [](char32_t c) { return general_category(c) == Category::kCn; });
  }
  for (const CategoryPatch& patch : category_patches()) {
    if (property.categories & bit(patch.category)) append_class_range(items, patch.first, patch.last);
  }
  if (!property.script.empty()) fmt::format_to(std::back_inserter(items), "\\p{{{}}}", property.script);
  for (const CodePointRange& range : property.ranges) append_class_range(items, range.first, range.last);
}

void append_class_complement(std::string& items, const CharProperty& property) {
  append_ranges_where(items, [&property](char32_t c) {
    return !(property.categories & bit(general_category(c))) && !contains(property.ranges, c);
  });
}

}  // namespace tensorfold
