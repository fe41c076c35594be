// A single pass over the pattern; character classes, which may nest and intersect, recurse.
#include "text/tokenizer_oniguruma.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>
#include <vector>

#include "text/tokenizer_char_property.h"
#include "text/unicode.h"

namespace tensorfold {
namespace {

std::string as_class(const CharProperty& property, bool negated) {
  std::string out = negated ? "[^" : "[";
  append_class_items(out, property);
  return out + ']';
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  Result<std::string> run() {
    while (pos_ < in_.size() && status_.ok()) {
      translate_one();
      if (out_.size() > kMaxOutput) fail_unsupported("is too long");
    }
    if (status_.ok() && depth_ != 0) fail_corrupt("has an unclosed group");
    if (!status_.ok()) return status_;
    return std::move(out_);
  }

 private:
  static constexpr int kMaxClassDepth = 16;
  static constexpr size_t kMaxOutput = 1 << 20;  // far beyond what PCRE2 compiles

  bool at_end() const { return pos_ >= in_.size(); }
  bool looking_at(std::string_view text) const { return in_.substr(pos_).starts_with(text); }
  bool skip(std::string_view text) {
    if (!looking_at(text)) return false;
    pos_ += text.size();
    return true;
  }
  void fail_unsupported(std::string_view what) {
    if (status_.ok()) status_ = unsupported("pattern '{}' {}, which is not supported", in_, what);
  }
  void fail_corrupt(std::string_view what) {
    if (status_.ok()) status_ = corrupt("pattern '{}' {}", in_, what);
  }

  /// The next character of the pattern, which is valid UTF-8.
  char32_t take_char() {
    const int length = utf8_length(in_[pos_]);
    const char32_t c = decode_utf8(in_.data() + pos_, length);
    pos_ += length;
    return c;
  }

  void append_literal(char32_t c) {
    const bool is_plain =
        c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (is_plain) {
      append_utf8(out_, c);
    } else {
      append_class_range(out_, c, c);
    }
  }

  void translate_one() {
    switch (in_[pos_]) {
      case '\\':
        ++pos_;
        return escape();
      case '[':
        ++pos_;
        out_ += char_class(0);
        return;
      case '(':
        ++pos_;
        return group();
      case ')':
        ++pos_;
        if (--depth_ < 0) return fail_corrupt("has an unmatched ')'");
        out_ += ')';
        return;
      case '{':
        return interval();
      case '^':
        ++pos_;
        out_ += "(?m:^)";
        return;
      case '$':
        ++pos_;
        out_ += "(?m:$)";
        return;
      case '*':
      case '+':
      case '?':
      case '|':
      case '.':
        out_ += in_[pos_++];
        return;
      default:
        append_literal(take_char());
    }
  }

  /// After "(". Plain groups become non-capturing: nothing reads captures.
  void group() {
    ++depth_;
    if (!skip("?")) {
      out_ += "(?:";
      return;
    }
    for (const char* kind : {":", "=", "!", "<=", "<!", ">"}) {
      if (skip(kind)) {
        out_ += fmt::format("(?{}", kind);
        return;
      }
    }
    inline_options();
  }

  /// After "(?": options as in "i:", "m-i:" or, only at the start of the pattern, "i)". Ruby's m is PCRE2's
  /// s.
  void inline_options() {
    const bool is_at_start = pos_ == 2;
    std::string options;
    while (!at_end() && (in_[pos_] == 'i' || in_[pos_] == 'm' || in_[pos_] == '-')) {
      options += in_[pos_] == 'm' ? 's' : in_[pos_];
      ++pos_;
    }
    if (skip(":")) {
      out_ += fmt::format("(?{}:", options);
    } else if (!options.empty() && is_at_start && skip(")")) {
      --depth_;
      out_ += fmt::format("(?{})", options);
    } else {
      fail_unsupported(
          "has a group of another kind than (...), (?:...), (?=...), (?!...), (?<=...), (?<!...), (?>...)");
    }
  }

  std::string_view take_digits() {
    const size_t start = pos_;
    while (!at_end() && in_[pos_] >= '0' && in_[pos_] <= '9') ++pos_;
    return in_.substr(start, pos_ - start);
  }

  /// At "{": an interval, or the literal character where what follows is none.
  void interval() {
    const size_t start = pos_++;
    const std::string_view least = take_digits();
    const bool has_comma = skip(",");
    const std::string_view most = has_comma ? take_digits() : least;
    if (!skip("}") || (least.empty() && most.empty())) {
      pos_ = start + 1;
      append_literal('{');
      return;
    }
    out_ +=
        fmt::format("{{{}{}{}}}", least.empty() ? "0" : least, has_comma ? "," : "", has_comma ? most : "");
    // Ruby reads {n}? as optional and {n,m}+ as repeated; PCRE2 as reluctant and possessive.
    if (looking_at("+") || (looking_at("?") && !has_comma))
      fail_unsupported("has a suffix after an interval");
  }

  /// After "\", outside a class.
  void escape() {
    if (at_end()) return fail_corrupt("ends in a backslash");
    if (std::optional<CharProperty> property = class_escape(false)) {
      out_ += as_class(*property, negated_);
      return;
    }
    if (!status_.ok()) return;
    const std::string word = as_class(*class_escape_property('w', false), false);
    if (skip("b")) {
      out_ += fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word);
    } else if (skip("B")) {
      out_ += fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", word);
    } else if (looking_at("A") || looking_at("z") || looking_at("Z") || looking_at("G")) {
      out_ += fmt::format("\\{}", in_[pos_++]);
    } else if (const std::optional<char32_t> c = char_escape()) {
      append_literal(*c);
    }
  }

  /// After "\": \s \d \w \h \p{..} and their negations (then negated_ is set); nullopt, without moving, for
  /// others.
  std::optional<CharProperty> class_escape(bool is_in_class) {
    const char kind = in_[pos_];
    if (kind == 'p' || kind == 'P') return property_escape();
    const bool is_upper = kind >= 'A' && kind <= 'Z';
    std::optional<CharProperty> property =
        class_escape_property(static_cast<char>(is_upper ? kind | 0x20 : kind), is_in_class);
    if (!property) return std::nullopt;
    ++pos_;
    negated_ = is_upper;
    return property;
  }

  /// At the p of "\p{Name}", "\p{^Name}" or "\P{Name}".
  std::optional<CharProperty> property_escape() {
    negated_ = in_[pos_++] == 'P';
    const size_t close = in_.find('}', pos_);
    if (!skip("{") || close == std::string_view::npos) {
      fail_corrupt("has a property without {name}");
      return std::nullopt;
    }
    if (skip("^")) negated_ = !negated_;
    const std::string_view name = in_.substr(pos_, close - pos_);
    pos_ = close + 1;
    std::optional<CharProperty> property = named_property(name);
    if (!property) fail_unsupported(fmt::format("names the property '{}'", name));
    return property;
  }

  /// After "\": the character that the escape stands for. Sets the status and returns nullopt where it is no
  /// character.
  std::optional<char32_t> char_escape() {
    constexpr std::string_view kLetters = "ntrfvae";
    constexpr std::string_view kValues = "\n\t\r\f\v\a\x1b";
    const char32_t c = take_char();
    if (c < 0x80) {
      if (const size_t i = kLetters.find(static_cast<char>(c)); i != std::string_view::npos)
        return kValues[i];
    }
    if (c == 'x' || c == 'u') return hex_escape(c == 'u');
    const bool is_letter_or_digit =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!is_letter_or_digit) return c;
    fail_unsupported(fmt::format("has the escape '\\{}'", static_cast<char>(c)));
    return std::nullopt;
  }

  /// After "\x" (one or two digits, or any number in braces) or "\u" (four).
  std::optional<char32_t> hex_escape(bool is_u) {
    const bool braced = !is_u && skip("{");
    const size_t most = braced ? 8 : is_u ? 4 : 2;
    char32_t value = 0;
    size_t num_digits = 0;
    for (; num_digits < most && !at_end() && std::isxdigit(static_cast<unsigned char>(in_[pos_]));
         ++num_digits) {
      const char digit = in_[pos_++];
      value = value << 4 | static_cast<char32_t>(digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10);
    }
    const bool is_surrogate = value >= 0xd800 && value < 0xe000;
    if (num_digits == 0 || (is_u && num_digits < 4) || (braced && !skip("}")) || value > 0x10ffff ||
        is_surrogate) {
      fail_unsupported("has an \\x or \\u that is no character");
      return std::nullopt;
    }
    return value;
  }

  /// After "[": an expression that matches the one character which the class matches. Unions with nested
  /// classes become alternatives, intersections look ahead.
  std::string char_class(int depth) {
    if (depth > kMaxClassDepth) fail_unsupported("nests character classes too deeply");
    const bool negated = skip("^");
    std::vector<std::string> operands;  // of &&
    std::vector<std::string> nested;    // of the operand being read
    std::string items;
    while (status_.ok() && !skip("]")) {
      if (at_end()) {
        fail_corrupt("has an unclosed character class");
      } else if (skip("&&")) {
        operands.push_back(class_operand(std::exchange(items, {}), std::exchange(nested, {})));
      } else if (looking_at("[:")) {
        fail_unsupported("has a POSIX bracket");
      } else if (skip("[")) {
        nested.push_back(char_class(depth + 1));
      } else {
        class_item(items);
      }
      if (items.size() > kMaxOutput) fail_unsupported("is too long");
    }
    if (operands.empty() && nested.empty() && !items.empty())
      return fmt::format("[{}{}]", negated ? "^" : "", items);
    operands.push_back(class_operand(std::move(items), std::move(nested)));
    std::string all = operands.back();
    for (size_t i = 0; i + 1 < operands.size(); ++i) all = fmt::format("(?:(?={}){})", operands[i], all);
    return negated ? fmt::format("(?:(?!{})(?s:.))", all) : all;
  }

  std::string class_operand(std::string items, std::vector<std::string> nested) {
    if (!items.empty()) nested.push_back(fmt::format("[{}]", items));
    if (nested.empty()) fail_unsupported("has an empty character class or operand");
    return fmt::format("(?:{})", fmt::join(nested, "|"));
  }

  /// One member of a class: a character, a range, or a class escape.
  void class_item(std::string& items) {
    if (skip("\\")) {
      if (at_end()) return fail_corrupt("ends in a backslash");
      if (const std::optional<CharProperty> property = class_escape(true)) {
        return negated_ ? append_complement(items, *property) : append_class_items(items, *property);
      }
      --pos_;
    }
    if (!status_.ok()) return;
    const std::optional<char32_t> first = class_char();
    if (!first) return;
    std::optional<char32_t> last = first;
    const bool is_range = looking_at("-") && pos_ + 1 < in_.size() && in_[pos_ + 1] != ']';
    if (is_range) {
      ++pos_;
      if (looking_at("[") || looking_at("&&")) return fail_unsupported("has a '-' before a nested class");
      last = class_char();
      if (last && *last < *first) fail_corrupt("has an empty range");
    }
    if (last && status_.ok()) append_class_range(items, *first, *last);
  }

  std::optional<char32_t> class_char() {
    if (!skip("\\")) return take_char();
    if (at_end()) {
      fail_corrupt("ends in a backslash");
      return std::nullopt;
    }
    if (skip("b")) return 0x08;
    return char_escape();
  }

  void append_complement(std::string& items, const CharProperty& property) {
    if (!property.script.empty()) return fail_unsupported("negates a script inside a character class");
    append_class_complement(items, property);
  }

  std::string_view in_;
  size_t pos_ = 0;
  std::string out_;
  int depth_ = 0;         // of open groups
  bool negated_ = false;  // set by class_escape
  Status status_;
};

}  // namespace

Result<std::string> oniguruma_to_pcre2(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace tensorfold
