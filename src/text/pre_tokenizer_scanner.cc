// One loop per family of patterns: at each position the alternatives are tried in the order of the pattern,
// each with the backtracking that the pattern would do worked out by hand beside it.
#include "text/pre_tokenizer_scanner.h"

#include <array>
#include <string>

#include "text/unicode.h"

namespace tensorfold {

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

using enum Category;
using namespace char_set;

constexpr CharSet kLetterOrMark = kLetter | kMark;
/// o200k's two halves of a word: [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and [\p{Ll}\p{Lm}\p{Lo}\p{M}].
constexpr CharSet kUpper = of(kLu) | of(kLt) | of(kLm) | of(kLo) | kMark;
constexpr CharSet kLower = of(kLl) | of(kLm) | of(kLo) | kMark;

/// The text being scanned, up to the end of the range.
class Subject {
 public:
  explicit Subject(std::string_view text) : text_(text), table_(CharTable::get()) {}

  std::string_view text() const { return text_; }
  size_t size() const { return text_.size(); }
  char byte(size_t pos) const { return pos < size() ? text_[pos] : '\0'; }

  /// The one-bit set of the character at `pos`; empty at the end.
  CharSet at(size_t pos, int& length) const {
    length = 0;
    return pos < size() ? table_.set_at(text_.data() + pos, length) : 0;
  }
  CharSet at(size_t pos) const {
    int length;
    return at(pos, length);
  }

  /// End of the run of characters in `set` from `pos` on.
  size_t run(CharSet set, size_t pos) const {
    int length;
    while (at(pos, length) & set) pos += length;
    return pos;
  }
  /// The same for at most `most` characters.
  size_t run_up_to(CharSet set, size_t pos, int most) const {
    int length;
    while (most-- > 0 && (at(pos, length) & set)) pos += length;
    return pos;
  }

  /// End of ['s 't 're 've 'm 'll 'd] at `pos`, or `pos`. Ignoring case, U+017F (long s) is an s too.
  size_t contraction(size_t pos, bool ignore_case) const {
    if (byte(pos) != '\'') return pos;
    const auto letter = [&](size_t i) { return static_cast<char>(ignore_case ? byte(i) | 0x20 : byte(i)); };
    const char first = letter(pos + 1);
    const char second = letter(pos + 2);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return pos + 2;
    if ((first == 'r' || first == 'v') && second == 'e') return pos + 3;
    if (first == 'l' && second == 'l') return pos + 3;
    if (ignore_case && byte(pos + 1) == '\xc5' && byte(pos + 2) == '\xbf') return pos + 3;
    return pos;
  }

  /// ` ?[set]+[tail]*`; `pos` when it does not match.
  size_t optional_space_then(CharSet set, CharSet tail, size_t pos) const {
    const size_t start = byte(pos) == ' ' ? pos + 1 : pos;
    const size_t end = run(set, start);
    return end == start ? pos : run(tail, end);
  }

  /// `\s+(?!\S)|\s+` at white space: the whole run at the end of the text, else all but its last character,
  /// else that.
  size_t white_space(size_t pos) const { return give_back_last(pos, run(kWhiteSpace, pos)); }

  /// `\s*[\r\n]+|\s+(?!\S)|\s+` at white space: through the last line break of the run if it has one.
  size_t white_space_by_line(size_t pos) const {
    size_t end = pos;
    size_t after_break = pos;
    int length;
    for (CharSet c; (c = at(end, length)) & kWhiteSpace;) {
      end += length;
      if (c & kNewLine) after_break = end;
    }
    return after_break > pos ? after_break : give_back_last(pos, end);
  }

 private:
  size_t give_back_last(size_t pos, size_t end) const {
    if (end == size()) return end;
    const size_t last = previous_char(text_, end);
    return last > pos ? last : end;
  }

  std::string_view text_;
  const CharTable& table_;
};

/// Calls match(subject, pos) for the end of the match that begins at pos (pos: none begins there) all along
/// the range.
template <class Match>
void scan_with(std::string_view text, TextRange range, std::vector<TextRange>& pieces, const Match& match) {
  const Subject subject(text.substr(range.begin, range.size()));
  size_t gap = 0;  // start of what no match has taken yet
  size_t pos = 0;
  while (pos < subject.size()) {
    const size_t end = match(subject, pos);
    if (end == pos) {
      pos += utf8_length(subject.byte(pos));
      continue;
    }
    if (gap < pos) pieces.push_back({range.begin + gap, range.begin + pos});
    pieces.push_back({range.begin + pos, range.begin + end});
    gap = pos = end;
  }
  if (gap < pos) pieces.push_back({range.begin + gap, range.begin + pos});
}

class Gpt2Scanner : public Scanner {
 public:
  void scan(std::string_view text, TextRange range, std::vector<TextRange>& pieces) const override {
    scan_with(text, range, pieces, [](const Subject& s, size_t pos) { return match(s, pos); });
  }

 private:
  static size_t match(const Subject& s, size_t pos) {
    constexpr CharSet kOther = ~(kWhiteSpace | kLetter | kNumber);
    if (const size_t end = s.contraction(pos, false); end != pos) return end;
    int length;
    CharSet c = s.at(pos, length);
    size_t start = pos;
    if (c & kSpace) {
      start = pos + 1;
      c = s.at(start, length);
    }
    for (const CharSet set : {kLetter, kNumber, kOther}) {
      if (c & set) return s.run(set, start + length);
    }
    return s.white_space(pos);
  }
};

/// (?i:'s|...)|[^\r\n\p{L}\p{N}]?LETTERS+|\p{N}{1,DIGITS}| ?[^\s LETTERS
/// \p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ with LETTERS \p{L} (Llama 3, Qwen 2 and 3) or [\p{L}\p{M}]
/// (Qwen 3.5).
template <CharSet kLetters, int kDigits>
class Cl100kScanner : public Scanner {
 public:
  void scan(std::string_view text, TextRange range, std::vector<TextRange>& pieces) const override {
    scan_with(text, range, pieces, [](const Subject& s, size_t pos) { return match(s, pos); });
  }

 private:
  static size_t match(const Subject& s, size_t pos) {
    if (const size_t end = s.contraction(pos, true); end != pos) return end;
    int length, next_length;
    const CharSet c = s.at(pos, length);
    // A mark may be the optional character as well as a letter: the piece is the same.
    if (c & kLetters) return s.run(kLetters, pos + length);
    if (!(c & (kNewLine | kNumber)) && (s.at(pos + length, next_length) & kLetters)) {
      return s.run(kLetters, pos + length + next_length);
    }
    if (c & kNumber) return s.run_up_to(kNumber, pos, kDigits);
    constexpr CharSet kOther = ~(kWhiteSpace | kLetters | kNumber);
    if (const size_t end = s.optional_space_then(kOther, kNewLine, pos); end != pos) return end;
    return s.white_space_by_line(pos);
  }
};

/// [^\r\n\p{L}\p{N}]?UPPER*LOWER+C?|[^\r\n\p{L}\p{N}]?UPPER+LOWER*C?|\p{N}{1,DIGITS}|
/// ?[^\s\p{L}\p{N}]+[\r\n/]*
/// |\s*[\r\n]+|\s+(?!\S)|\s+ with C the contractions (o200k) or absent (Tekken).
template <bool kContractions, int kDigits>
class O200kScanner : public Scanner {
 public:
  void scan(std::string_view text, TextRange range, std::vector<TextRange>& pieces) const override {
    scan_with(text, range, pieces, [](const Subject& s, size_t pos) { return match(s, pos); });
  }

 private:
  /// UPPER*LOWER+ at pos, or pos. Where no lower-case character follows the run of UPPER, it gives characters
  /// back until one is in both sets; those it passed over are not in LOWER, so the match ends after that one.
  static size_t upper_then_lower(const Subject& s, size_t pos) {
    const size_t upper_end = s.run(kUpper, pos);
    const size_t lower_end = s.run(kLower, upper_end);
    if (lower_end > upper_end) return lower_end;
    for (size_t end = upper_end; end > pos;) {
      const size_t last = previous_char(s.text(), end);
      if (s.at(last) & kLower) return end;
      end = last;
    }
    return pos;
  }

  static size_t match(const Subject& s, size_t pos) {
    int length;
    const CharSet c = s.at(pos, length);
    if (const size_t end = word(s, pos, c, length); end != pos) {
      return kContractions ? s.contraction(end, true) : end;
    }
    if (c & kNumber) return s.run_up_to(kNumber, pos, kDigits);
    if (const size_t end = punctuation(s, pos); end != pos) return end;
    return s.white_space_by_line(pos);
  }

  /// The first two alternatives. A mark may be the optional character or begin the word; the former is tried
  /// first.
  static size_t word(const Subject& s, size_t pos, CharSet c, int length) {
    const bool may_skip = !(c & (kNewLine | kLetter | kNumber));
    const size_t after = pos + length;
    if (may_skip) {
      if (const size_t end = upper_then_lower(s, after); end != after) return end;
    }
    if (const size_t end = upper_then_lower(s, pos); end != pos) return end;
    // UPPER+LOWER*: had LOWER matched, the first alternative would have.
    if (may_skip) {
      if (const size_t end = s.run(kUpper, after); end != after) return end;
    }
    return s.run(kUpper, pos);
  }

  static size_t punctuation(const Subject& s, size_t pos) {
    size_t end = s.optional_space_then(~(kWhiteSpace | kLetter | kNumber), 0, pos);
    if (end == pos) return pos;
    while (s.byte(end) == '\r' || s.byte(end) == '\n' || s.byte(end) == '/') ++end;
    return end;
  }
};

/// The last Split of DeepSeek V3. Numbers and control characters may match nothing and then form gaps.
class DeepSeekScanner : public Scanner {
 public:
  static constexpr std::string_view kPattern =
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
      "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";

  void scan(std::string_view text, TextRange range, std::vector<TextRange>& pieces) const override {
    scan_with(text, range, pieces, [](const Subject& s, size_t pos) { return match(s, pos); });
  }

 private:
  static bool is_ascii_letter(char c) { return static_cast<unsigned char>((c | 0x20) - 'a') < 26; }

  static size_t match(const Subject& s, size_t pos) {
    int length, next_length;
    const CharSet c = s.at(pos, length);
    if (c & kLetterOrMark) return s.run(kLetterOrMark, pos + length);
    const bool is_mark_or_symbol = c & (kPunctuation | kSymbol);
    if (is_mark_or_symbol && length == 1 && is_ascii_letter(s.byte(pos + 1))) {
      size_t end = pos + 2;
      while (is_ascii_letter(s.byte(end))) ++end;
      return end;
    }
    if (!is_mark_or_symbol && !(c & kNewLine) && (s.at(pos + length, next_length) & kLetterOrMark)) {
      return s.run(kLetterOrMark, pos + length + next_length);
    }
    if (const size_t end = s.optional_space_then(kPunctuation | kSymbol, kNewLine, pos); end != pos)
      return end;
    return c & kWhiteSpace ? s.white_space_by_line(pos) : pos;
  }
};

/// \p{N}{1,3}
class NumberScanner : public Scanner {
 public:
  void scan(std::string_view text, TextRange range, std::vector<TextRange>& pieces) const override {
    scan_with(text, range, pieces, [](const Subject& s, size_t pos) { return s.run_up_to(kNumber, pos, 3); });
  }
};

/// [一-龥぀-ゟ゠-ヿ]+
class CjkScanner : public Scanner {
 public:
  void scan(std::string_view text, TextRange range, std::vector<TextRange>& pieces) const override {
    scan_with(text, range, pieces, [](const Subject& s, size_t pos) {
      while (is_member(s, pos)) pos += 3;
      return pos;
    });
  }

 private:
  static bool is_member(const Subject& s, size_t pos) {
    const auto lead = static_cast<unsigned char>(s.byte(pos));
    if (lead < 0xe3 || lead > 0xe9) return false;
    const char32_t c = decode_utf8(s.text().data() + pos, 3);
    return (c >= 0x4e00 && c <= 0x9fa5) || (c >= 0x3040 && c <= 0x30ff);
  }
};

/// A pattern and how to make its scanner.
struct Known {
  std::string pattern;
  std::unique_ptr<const Scanner> (*make)();
};
template <class T>
std::unique_ptr<const Scanner> make() {
  return std::make_unique<const T>();
}

const std::vector<Known>& known_patterns() {
  static const std::string kContraction = R"((?i:'s|'t|'re|'ve|'m|'ll|'d))";
  static const std::string kSpaces = R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
  static const auto cl100k = [](const char* letters, const char* excluded, const char* digits) {
    return kContraction + R"(|[^\r\n\p{L}\p{N}]?)" + letters + R"(+|\p{N})" + digits + R"(| ?[^\s)" +
           excluded + R"(\p{N}]+[\r\n]*)" + kSpaces;
  };
  static const auto o200k = [](const std::string& contraction, const char* digits) {
    const std::string optional = R"([^\r\n\p{L}\p{N}]?)";
    const std::string upper = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])";
    const std::string lower = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])";
    return optional + upper + "*" + lower + "+" + contraction + "|" + optional + upper + "+" + lower + "*" +
           contraction + R"(|\p{N})" + digits + R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*)" + kSpaces;
  };
  static const std::vector<Known> kKnown = {
      {std::string(kGpt2Pattern), make<Gpt2Scanner>},
      {cl100k(R"(\p{L})", R"(\p{L})", ""), make<Cl100kScanner<kLetter, 1>>},
      {cl100k(R"(\p{L})", R"(\p{L})", "{1,3}"), make<Cl100kScanner<kLetter, 3>>},
      {cl100k(R"([\p{L}\p{M}])", R"(\p{L}\p{M})", ""), make<Cl100kScanner<kLetterOrMark, 1>>},
      {o200k("", ""), make<O200kScanner<false, 1>>},
      {o200k(kContraction + "?", ""), make<O200kScanner<true, 1>>},
      {o200k(kContraction + "?", "{1,3}"), make<O200kScanner<true, 3>>},
      {std::string(DeepSeekScanner::kPattern), make<DeepSeekScanner>},
      {R"(\p{N}{1,3})", make<NumberScanner>},
      {"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", make<CjkScanner>},
  };
  return kKnown;
}

}  // namespace

std::unique_ptr<const Scanner> find_scanner(std::string_view pattern) {
  for (const Known& known : known_patterns()) {
    if (known.pattern == pattern) return known.make();
  }
  return nullptr;
}

std::vector<std::string> scanner_patterns() {
  std::vector<std::string> patterns;
  for (const Known& known : known_patterns()) patterns.push_back(known.pattern);
  return patterns;
}

}  // namespace tensorfold
