// The scanner. Positions are bytes of the normalized source; lines are counted from it.
#include "text/jinja_lexer.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "text/jinja_text.h"
#include "text/jinja_unicode.h"

namespace tensorfold::jinja {
namespace {

/// Line ends become LF; one at the end of the source goes.
std::string normalize(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_digit_char(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string source) : text_(std::move(source)) {}

  std::vector<Token> run() {
    while (pos_ < text_.size() && !failed_) lex_data();
    if (!failed_) add(TokenKind::kEnd);
    return std::move(tokens_);
  }

 private:
  // ---- Data and delimiters ----

  /// Data up to the next opening delimiter, then the tag that it opens.
  void lex_data() {
    const size_t open = find_delimiter(pos_);
    if (open == std::string::npos) {
      add_data(std::string_view(text_).substr(pos_));
      pos_ = text_.size();
      return;
    }
    const std::string_view data = std::string_view(text_).substr(pos_, open - pos_);
    const char kind = text_[open + 1];
    const char sign = sign_at(open + 2);
    add_data(strip_data(data, sign, kind != '{'));
    pos_ = open + 2 + (sign != 0 ? 1 : 0);
    line_starts_ = false;
    if (kind == '#') {
      lex_comment();
    } else if (kind == '%' && lex_raw(open)) {
      return;
    } else {
      add(kind == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin);
      lex_tag(kind == '{' ? "}}" : "%}");
    }
  }

  size_t find_delimiter(size_t from) const {
    for (size_t at = from; (at = text_.find('{', at)) != std::string::npos; ++at) {
      if (at + 1 < text_.size() && std::string_view("{%#").find(text_[at + 1]) != std::string_view::npos)
        return at;
    }
    return std::string::npos;
  }

  char sign_at(size_t at) const {
    return at < text_.size() && (text_[at] == '-' || text_[at] == '+') ? text_[at] : 0;
  }

  /// The data before a tag: `-` removes all white space at its end, lstrip_blocks (blocks and comments
  /// without sign) the white space of the line that the tag begins.
  std::string_view strip_data(std::string_view data, char sign, bool can_lstrip) const {
    if (sign == '-') return data.substr(0, data.size() - trailing_space(data));
    if (sign == '+' || !can_lstrip) return data;
    const size_t line_start = data.rfind('\n') + 1;  // npos + 1 is 0
    if (line_start == 0 && !line_starts_) return data;
    const std::string_view head = data.substr(line_start);
    return leading_space(head) == head.size() ? data.substr(0, line_start) : data;
  }

  void add_data(std::string_view data) {
    if (data.empty()) return;
    Token& token = add(TokenKind::kData);
    token.line = line_at(pos_);
    token.value = constant_string(std::string(data));
  }

  /// After a closing delimiter: `-` skips all white space, trim_blocks one LF.
  void close_tag(char sign, bool trims_line) {
    const size_t start = pos_;
    if (sign == '-') {
      pos_ += leading_space(std::string_view(text_).substr(pos_));
    } else if (sign == 0 && trims_line && pos_ < text_.size() && text_[pos_] == '\n') {
      ++pos_;
    }
    line_starts_ = pos_ > start && text_[pos_ - 1] == '\n';
  }

  void lex_comment() {
    const size_t end = text_.find("#}", pos_);
    if (end == std::string::npos) {
      // Like Jinja, which tries to match one more character: an unclosed comment of no characters is none.
      if (pos_ < text_.size()) fail("Missing end of comment tag");
      return;
    }
    const char sign = end > pos_ ? sign_at(end - 1) : 0;
    pos_ = end + 2;
    close_tag(sign, true);
  }

  /// True when the tag at `open` is {% raw %}; its contents become data.
  bool lex_raw(size_t open) {
    size_t at = skip_space(pos_);
    if (!match("raw", at)) return false;
    at = skip_space(at);
    const bool strips = at < text_.size() && text_[at] == '-';
    if (strips) ++at;
    if (!match("%}", at)) return false;
    pos_ = at;
    close_tag(strips ? '-' : '+', false);
    for (size_t end = pos_; (end = text_.find("{%", end)) != std::string::npos; end += 2) {
      const char sign = sign_at(end + 2);
      size_t after = skip_space(end + 2 + (sign != 0 ? 1 : 0));
      if (!match("endraw", after)) continue;
      after = skip_space(after);
      const char close_sign = sign_at(after);
      if (close_sign != 0) ++after;
      if (!match("%}", after)) continue;
      add_data(strip_data(std::string_view(text_).substr(pos_, end - pos_), sign, true));
      pos_ = after;
      close_tag(close_sign, true);
      return true;
    }
    if (pos_ < text_.size()) {
      pos_ = open;
      fail("Missing end of raw directive");
    }
    return true;
  }

  size_t skip_space(size_t at) const { return at + leading_space(std::string_view(text_).substr(at)); }
  bool match(std::string_view word, size_t& at) const {
    if (!std::string_view(text_).substr(at).starts_with(word)) return false;
    at += word.size();
    return true;
  }

  // ---- Inside of tags ----

  /// Tokens up to the closing delimiter, which counts only when no bracket is open.
  void lex_tag(std::string_view close) {
    brackets_.clear();
    while (!failed_) {
      if (brackets_.empty() && lex_close(close)) return;
      if (pos_ >= text_.size()) return;
      const size_t space = leading_space(std::string_view(text_).substr(pos_));
      if (space > 0) {
        pos_ += space;
      } else {
        lex_token();
      }
    }
  }

  bool lex_close(std::string_view close) {
    const bool is_block = close == "%}";
    char sign = sign_at(pos_);
    if (sign == '+' && !is_block) sign = 0;
    size_t at = pos_ + (sign != 0 ? 1 : 0);
    if (!match(close, at)) return false;
    add(is_block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd);
    pos_ = at;
    close_tag(sign, is_block);
    return true;
  }

  void lex_token() {
    const char c = text_[pos_];
    if (is_digit_char(c)) {
      if (!lex_float()) lex_integer();
    } else if (c == '"' || c == '\'') {
      lex_string();
    } else if (!lex_name()) {
      lex_operator();
    }
  }

  /// `digits` with single underscores between them; returns the end, or `at` when there are none.
  size_t digits_end(size_t at) const {
    size_t end = at;
    while (end < text_.size() &&
           (is_digit_char(text_[end]) || (text_[end] == '_' && end > at && is_digit_char(text_[end - 1]) &&
                                          end + 1 < text_.size() && is_digit_char(text_[end + 1])))) {
      ++end;
    }
    return end;
  }

  /// A number with a fraction or an exponent; not after a dot, so that `x.0.1` is two indexes.
  bool lex_float() {
    if (pos_ > 0 && text_[pos_ - 1] == '.') return false;
    size_t end = digits_end(pos_);
    const size_t whole = end;
    if (end < text_.size() && text_[end] == '.' && digits_end(end + 1) > end + 1) end = digits_end(end + 1);
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      const size_t digits = end + 1 + (sign_at(end + 1) != 0 ? 1 : 0);
      if (digits_end(digits) > digits) end = digits_end(digits);
    }
    if (end == whole) return false;
    std::string number = text_.substr(pos_, end - pos_);
    std::erase(number, '_');
    double value = 0;
    if (std::from_chars(number.data(), number.data() + number.size(), value).ec ==
        std::errc::result_out_of_range) {
      value =
          number.find("e-") != std::string::npos || number.find("E-") != std::string::npos ? 0.0 : HUGE_VAL;
    }
    add(TokenKind::kFloat).value = Value::real(value);
    pos_ = end;
    return true;
  }

  void lex_integer() {
    int base = 10;
    size_t end = pos_;
    if (text_[pos_] == '0' && pos_ + 1 < text_.size()) {
      const char mark = static_cast<char>(text_[pos_ + 1] | 0x20);
      base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
      if (base != 10 && based_digits_end(pos_ + 2, base) == pos_ + 2) base = 10;
    }
    std::string digits;
    if (base != 10) {
      end = based_digits_end(pos_ + 2, base);
      digits = text_.substr(pos_ + 2, end - pos_ - 2);
    } else if (text_[pos_] == '0') {
      while (end < text_.size() &&
             (text_[end] == '0' || (text_[end] == '_' && end + 1 < text_.size() && text_[end + 1] == '0')))
        ++end;
      digits = "0";
    } else {
      end = digits_end(pos_);
      digits = text_.substr(pos_, end - pos_);
    }
    std::erase(digits, '_');
    Int value = 0;
    for (const char c : digits) {
      const int digit = is_digit_char(c) ? c - '0' : (c | 0x20) - 'a' + 10;
      if (__builtin_mul_overflow(value, Int{base}, &value) ||
          __builtin_add_overflow(value, Int{digit}, &value)) {
        fail("integer literal does not fit in 128 bits");
        return;
      }
    }
    add(TokenKind::kInteger).value = Value::integer(value);
    pos_ = end;
  }

  size_t based_digits_end(size_t at, int base) const {
    const auto is_digit_of_base = [&](size_t i) {
      if (i >= text_.size()) return false;
      const char c = static_cast<char>(text_[i] | 0x20);
      return base == 16 ? is_digit_char(text_[i]) || (c >= 'a' && c <= 'f')
                        : text_[i] >= '0' && text_[i] < '0' + base;
    };
    while (is_digit_of_base(at) || (at < text_.size() && text_[at] == '_' && is_digit_of_base(at + 1))) ++at;
    return at;
  }

  bool lex_name() {
    size_t end = pos_;
    while (end < text_.size()) {
      size_t next = end;
      if (!is_identifier_part(next_code_point(text_, next))) break;
      end = next;
    }
    if (end == pos_) return false;
    size_t first = pos_;
    if (!is_identifier_start(next_code_point(text_, first))) {
      fail("Invalid character in identifier");
      return true;
    }
    add(TokenKind::kName).text = text_.substr(pos_, end - pos_);
    pos_ = end;
    return true;
  }

  void lex_operator() {
    constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                               "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                               ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    const std::string_view rest = std::string_view(text_).substr(pos_);
    const auto* op = std::find_if(std::begin(kOperators), std::end(kOperators),
                                  [&](std::string_view candidate) { return rest.starts_with(candidate); });
    if (op == std::end(kOperators)) {
      size_t end = pos_;
      next_code_point(text_, end);
      fail(fmt::format("unexpected char {} at {}", string_repr(text_.substr(pos_, end - pos_)),
                       count_code_points(std::string_view(text_).substr(0, pos_))));
      return;
    }
    if (!balance(*op)) return;
    add(TokenKind::kOperator).text = *op;
    pos_ += op->size();
  }

  bool balance(std::string_view op) {
    constexpr std::string_view kOpen = "{([", kClose = "})]";
    if (const size_t open = kOpen.find(op); op.size() == 1 && open != std::string_view::npos) {
      brackets_ += kClose[open];
    } else if (op.size() == 1 && kClose.find(op) != std::string_view::npos) {
      if (brackets_.empty()) return fail(fmt::format("unexpected '{}'", op));
      const char expected = brackets_.back();
      brackets_.pop_back();
      if (expected != op[0]) return fail(fmt::format("unexpected '{}', expected '{}'", op, expected));
    }
    return true;
  }

  // ---- Strings ----

  void lex_string() {
    const char quote = text_[pos_];
    size_t end = pos_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) {
      fail(fmt::format("unexpected char {} at {}", string_repr(std::string(1, quote)),
                       count_code_points(std::string_view(text_).substr(0, pos_))));
      return;
    }
    std::string out;
    if (!unescape(std::string_view(text_).substr(pos_ + 1, end - pos_ - 1), out)) return;
    add(TokenKind::kString).value = constant_string(std::move(out));
    pos_ = end + 1;
  }

  /// Python's "unicode-escape" over text whose other characters stand for themselves.
  bool unescape(std::string_view raw, std::string& out) {
    for (size_t i = 0; i < raw.size();) {
      if (raw[i] != '\\') {
        out += raw[i++];
        continue;
      }
      if (++i >= raw.size()) return fail("\\ at end of string");
      if (static_cast<unsigned char>(raw[i]) >= 0x80) {
        // Jinja spells such a character as an escape first, whose backslash this one then escapes.
        const uint32_t c = next_code_point(raw, i);
        out += c < 0x100     ? fmt::format("\\x{:02x}", c)
               : c < 0x10000 ? fmt::format("\\u{:04x}", c)
                             : fmt::format("\\U{:08x}", c);
      } else if (!unescape_one(raw, i, out)) {
        return false;
      }
    }
    return true;
  }

  /// The escape whose letter is raw[i]; moves i past it.
  bool unescape_one(std::string_view raw, size_t& i, std::string& out) {
    const char c = raw[i++];
    constexpr std::string_view kLetters = "\\'\"abfnrtv", kMeanings = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t at = kLetters.find(c); at != std::string_view::npos) {
      out += kMeanings[at];
    } else if (c == '\n') {
      // A line joined to the next.
    } else if (c >= '0' && c <= '7') {
      char32_t code = static_cast<char32_t>(c - '0');
      for (int n = 0; n < 2 && i < raw.size() && raw[i] >= '0' && raw[i] <= '7'; ++n)
        code = code * 8 + static_cast<char32_t>(raw[i++] - '0');
      append_code_point(out, code);
    } else if (c == 'x' || c == 'u' || c == 'U') {
      return unescape_hex(raw, i, c, out);
    } else if (c == 'N') {
      return fail("\\N{...} escapes are not supported");
    } else {
      out += '\\';
      out += c;
    }
    return true;
  }

  bool unescape_hex(std::string_view raw, size_t& i, char kind, std::string& out) {
    const size_t count = kind == 'x' ? 2 : kind == 'u' ? 4 : 8;
    uint32_t code = 0;
    const std::string_view digits = raw.substr(i, count);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (digits.size() < count || error != std::errc() || end != digits.data() + count) {
      return fail(kind == 'x'   ? "truncated \\xXX escape"
                  : kind == 'u' ? "truncated \\uXXXX escape"
                                : "truncated \\UXXXXXXXX escape");
    }
    if (code > 0x10ffff) return fail("illegal Unicode character");
    append_code_point(out, code);
    i += count;
    return true;
  }

  // ---- Tokens ----

  Token& add(TokenKind kind) {
    Token token;
    token.kind = kind;
    token.line = line_at(pos_);
    return tokens_.emplace_back(std::move(token));
  }

  bool fail(std::string reason) {
    add(TokenKind::kError).text = std::move(reason);
    failed_ = true;
    return false;
  }

  /// Line of a position. Positions are asked for in order, or a little back.
  int line_at(size_t pos) {
    if (pos < counted_) counted_ = 0, line_ = 1;
    const auto begin = text_.begin();
    line_ += static_cast<int>(std::count(begin + static_cast<std::ptrdiff_t>(counted_),
                                         begin + static_cast<std::ptrdiff_t>(pos), '\n'));
    counted_ = pos;
    return line_;
  }

  const std::string text_;
  size_t pos_ = 0;
  bool line_starts_ = true;  ///< The text at pos_ begins a line.
  bool failed_ = false;
  std::string brackets_;  ///< Closing brackets that are due.
  std::vector<Token> tokens_;
  size_t counted_ = 0;
  int line_ = 1;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(normalize(source)).run(); }

}  // namespace tensorfold::jinja
