// UTF-8 and the character properties that tokenizers ask about, fixed to Unicode 16 whatever utf8proc is
// installed: tokenizer.json's regular expressions are defined by Oniguruma 6.9.10, and equal ids need equal
// tables. Normal forms are in text/unicode_normalize.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tensorfold {

/// Bytes of the sequence that `lead` starts. The text must be valid UTF-8.
inline int utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

/// The character at `p`, whose sequence has `length` bytes (utf8_length). The text must be valid UTF-8.
inline char32_t decode_utf8(const char* p, int length) {
  const auto byte = [p](int i) { return static_cast<char32_t>(static_cast<unsigned char>(p[i])); };
  switch (length) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1f) << 6 | (byte(1) & 0x3f);
    case 3:
      return (byte(0) & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
  }
}

/// Start of the character that ends before text[pos]; pos > 0. The text must be valid UTF-8.
inline size_t previous_char(std::string_view text, size_t pos) {
  do --pos;
  while ((static_cast<unsigned char>(text[pos]) & 0xc0) == 0x80);
  return pos;
}

void append_utf8(std::string& out, char32_t code_point);

/// How the bytes at the start of some text begin: a complete character, one that more bytes could complete,
/// or neither.
struct Utf8Prefix {
  int num_bytes =
      0;  ///< Of the character, of the incomplete one, or of the maximal invalid part (at least 1).
  bool is_complete = false;
  bool is_incomplete = false;  ///< Every byte fits, but the text ends inside the sequence.
};

/// Classifies the first bytes of a non-empty text. Maximal invalid parts are those of the Unicode standard
/// (section 3.9), as in Python's errors="replace" and Rust's from_utf8_lossy.
Utf8Prefix utf8_prefix(std::string_view bytes);

bool is_valid_utf8(std::string_view bytes);

/// The text with every maximal invalid part replaced by U+FFFD.
std::string replace_invalid_utf8(std::string_view bytes);

/// General categories in utf8proc's order (kCn is 0).
enum class Category : uint8_t {
  kCn,
  kLu,
  kLl,
  kLt,
  kLm,
  kLo,
  kMn,
  kMc,
  kMe,
  kNd,
  kNl,
  kNo,
  kPc,
  kPd,
  kPs,
  kPe,
  kPi,
  kPf,
  kPo,
  kSm,
  kSc,
  kSk,
  kSo,
  kZs,
  kZl,
  kZp,
  kCc,
  kCf,
  kCs,
  kCo,
};

/// Two letters, "Lu".
std::string_view category_name(Category category);

/// General category in Unicode 16. Slow; loops ask CharTable.
Category general_category(char32_t code_point);

/// Unicode White_Space.
bool is_white_space(char32_t code_point);
/// Nd, Nl or No in Unicode 17, as Rust's char::is_numeric (the Digits pre-tokenizer).
bool is_numeric(char32_t code_point);
/// \w of Rust's regex crate: Alphabetic, M, Nd, Pc, Join_Control.
bool is_word_char(char32_t code_point);

/// The full lower-case form of one character (two for U+0130), in Unicode 17 as in Rust's char::to_lowercase.
void append_lowercase(std::string& out, char32_t code_point);

/// A set of character classes, one bit each: the general categories, with white space taken out of them and
/// split as the patterns need it. Every character is in exactly one class.
using CharSet = uint64_t;

namespace char_set {
constexpr CharSet of(Category category) { return CharSet{1} << static_cast<int>(category); }
constexpr CharSet kSpace = CharSet{1} << 32;  ///< U+0020.
constexpr CharSet kCr = CharSet{1} << 33;
constexpr CharSet kLf = CharSet{1} << 34;
constexpr CharSet kOtherWhiteSpace = CharSet{1} << 35;  ///< White_Space without the three above.
constexpr CharSet kNewLine = kCr | kLf;
constexpr CharSet kWhiteSpace = kSpace | kNewLine | kOtherWhiteSpace;
constexpr CharSet kLetter =
    of(Category::kLu) | of(Category::kLl) | of(Category::kLt) | of(Category::kLm) | of(Category::kLo);
constexpr CharSet kMark = of(Category::kMn) | of(Category::kMc) | of(Category::kMe);
constexpr CharSet kNumber = of(Category::kNd) | of(Category::kNl) | of(Category::kNo);
constexpr CharSet kPunctuation = of(Category::kPc) | of(Category::kPd) | of(Category::kPs) |
                                 of(Category::kPe) | of(Category::kPi) | of(Category::kPf) |
                                 of(Category::kPo);
constexpr CharSet kSymbol = of(Category::kSm) | of(Category::kSc) | of(Category::kSk) | of(Category::kSo);
}  // namespace char_set

/// Class of every character, as two levels of table (70 KB). Immutable; one per program.
class CharTable {
 public:
  static const CharTable& get();

  /// The one-bit set of the character at `p` (valid UTF-8); `length` becomes its size in bytes.
  CharSet set_at(const char* p, int& length) const {
    const auto lead = static_cast<unsigned char>(*p);
    if (lead < 0x80) {
      length = 1;
      return ascii_[lead];
    }
    length = utf8_length(*p);
    return set_of(decode_utf8(p, length));
  }
  CharSet set_of(char32_t c) const { return CharSet{1} << blocks_[block_of_[c >> 8]][c & 0xff]; }

 private:
  CharTable();
  using Block = std::array<uint8_t, 256>;  ///< Class number of 256 consecutive characters.
  std::array<uint16_t, 0x1100> block_of_{};
  std::vector<Block> blocks_;
  std::array<CharSet, 128> ascii_{};
};

/// First and last of a run of code points.
struct CodePointRange {
  char32_t first, last;
};

/// The ranges whose category this program knows better than a library with the tables of Unicode 14 (the
/// oldest PCRE2 supported): everything assigned or changed since. Ascending.
struct CategoryPatch {
  char32_t first, last;
  Category category;
};
const std::vector<CategoryPatch>& category_patches();

/// Marks assigned after Unicode 9. Hugging Face's normalizers know Unicode 9 only: they neither reorder,
/// compose nor strip these.
const std::vector<CodePointRange>& marks_after_unicode_9();

/// Binary search in ascending ranges.
bool contains(const std::vector<CodePointRange>& ranges, char32_t code_point);

}  // namespace tensorfold
