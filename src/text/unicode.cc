// text/unicode.h over utf8proc. Where that library's Unicode version differs from the one wanted, the tables
// of unicode_tables.cc win; a utf8proc newer than Unicode 16 would need its additions listed there (the
// golden of tests/text/tokenizer_unicode_test.cc then fails).
#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

namespace tensorfold {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

/// The values a second byte may have after `lead`; third and fourth bytes may be 80..BF (Unicode, table 3-7).
struct SecondByte {
  int length;  // of the whole sequence; 0: `lead` starts none
  unsigned char low, high;
};
SecondByte second_byte(unsigned char lead) {
  if (lead < 0xc2 || lead > 0xf4) return {0, 0, 0};
  if (lead < 0xe0) return {2, 0x80, 0xbf};
  if (lead < 0xf0) {
    return {3, static_cast<unsigned char>(lead == 0xe0 ? 0xa0 : 0x80),
            static_cast<unsigned char>(lead == 0xed ? 0x9f : 0xbf)};
  }
  return {4, static_cast<unsigned char>(lead == 0xf0 ? 0x90 : 0x80),
          static_cast<unsigned char>(lead == 0xf4 ? 0x8f : 0xbf)};
}

/// Length of the run of ASCII at the start, found eight bytes at a time.
size_t ascii_prefix(std::string_view bytes) {
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    if (word & 0x8080808080808080ull) break;
  }
  while (i < bytes.size() && static_cast<unsigned char>(bytes[i]) < 0x80) ++i;
  return i;
}

/// Length of the valid UTF-8 at the start.
size_t valid_prefix(std::string_view bytes) {
  size_t i = 0;
  while (true) {
    i += ascii_prefix(bytes.substr(i));
    if (i == bytes.size()) return i;
    const Utf8Prefix next = utf8_prefix(bytes.substr(i));
    if (!next.is_complete) return i;
    i += next.num_bytes;
  }
}

constexpr CodePointRange kCircledLetters[] = {
    {0x24b6, 0x24e9}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};  // So, but Alphabetic

uint8_t class_number(char32_t c) {
  if (c == ' ') return 32;
  if (c == '\r') return 33;
  if (c == '\n') return 34;
  if (is_white_space(c)) return 35;
  return static_cast<uint8_t>(general_category(c));
}

/// Upper to lower case where utf8proc 2.8 (Unicode 15) has none; `delta` may be negative.
struct LowerPatch {
  char32_t first, last;
  int32_t delta;
};
constexpr LowerPatch kLowerPatches[] = {{0x1c89, 0x1c89, 1},    {0xa7cb, 0xa7cb, 0x264 - 0xa7cb},
                                        {0xa7cc, 0xa7cc, 1},    {0xa7ce, 0xa7ce, 1},
                                        {0xa7d2, 0xa7d2, 1},    {0xa7d4, 0xa7d4, 1},
                                        {0xa7da, 0xa7da, 1},    {0xa7dc, 0xa7dc, 0x19b - 0xa7dc},
                                        {0x10d50, 0x10d65, 32}, {0x16ea0, 0x16eb8, 0x1b}};

}  // namespace

void append_utf8(std::string& out, char32_t c) {
  const auto push = [&out](char32_t byte) { out += static_cast<char>(byte); };
  const auto tail = [&push, c](int shift) { push(0x80 | ((c >> shift) & 0x3f)); };
  if (c < 0x80) {
    push(c);
  } else if (c < 0x800) {
    push(0xc0 | c >> 6), tail(0);
  } else if (c < 0x10000) {
    push(0xe0 | c >> 12), tail(6), tail(0);
  } else {
    push(0xf0 | c >> 18), tail(12), tail(6), tail(0);
  }
}

Utf8Prefix utf8_prefix(std::string_view bytes) {
  const auto byte = [&bytes](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  if (byte(0) < 0x80) return {1, true, false};
  const SecondByte second = second_byte(byte(0));
  if (second.length == 0) return {1, false, false};
  for (int i = 1; i < second.length; ++i) {
    if (static_cast<size_t>(i) == bytes.size()) return {i, false, true};
    const unsigned char low = i == 1 ? second.low : 0x80;
    const unsigned char high = i == 1 ? second.high : 0xbf;
    if (byte(i) < low || byte(i) > high) return {i, false, false};
  }
  return {second.length, true, false};
}

bool is_valid_utf8(std::string_view bytes) { return valid_prefix(bytes) == bytes.size(); }

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (true) {
    const size_t valid = valid_prefix(bytes);
    out += bytes.substr(0, valid);
    bytes.remove_prefix(valid);
    if (bytes.empty()) return out;
    out += kReplacement;
    bytes.remove_prefix(utf8_prefix(bytes).num_bytes);
  }
}

std::string_view category_name(Category category) {
  constexpr std::string_view kNames = "CnLuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCo";
  return kNames.substr(2 * static_cast<size_t>(category), 2);
}

Category general_category(char32_t c) {
  const std::vector<CategoryPatch>& patches = category_patches();
  const auto after = std::upper_bound(patches.begin(), patches.end(), c,
                                      [](char32_t x, const CategoryPatch& patch) { return x < patch.first; });
  if (after != patches.begin() && c <= std::prev(after)->last) return std::prev(after)->category;
  return static_cast<Category>(utf8proc_category(static_cast<utf8proc_int32_t>(c)));
}

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0d);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_numeric(char32_t c) {
  const bool is_unicode_17 = (c >= 0x11de0 && c <= 0x11de9) || (c >= 0x16ff4 && c <= 0x16ff6);
  return (CharTable::get().set_of(c) & char_set::kNumber) != 0 || is_unicode_17;
}

bool is_word_char(char32_t c) {
  constexpr CharSet kWord = char_set::kLetter | char_set::kMark | char_set::of(Category::kNd) |
                            char_set::of(Category::kNl) | char_set::of(Category::kPc);
  if (CharTable::get().set_of(c) & kWord || c == 0x200c || c == 0x200d) return true;
  return std::any_of(std::begin(kCircledLetters), std::end(kCircledLetters),
                     [c](const CodePointRange& range) { return c >= range.first && c <= range.last; });
}

void append_lowercase(std::string& out, char32_t c) {
  if (c == 0x130) {
    out += "i\xcc\x87";
    return;
  }
  for (const LowerPatch& patch : kLowerPatches) {
    if (c >= patch.first && c <= patch.last) {
      append_utf8(out, static_cast<char32_t>(static_cast<int32_t>(c) + patch.delta));
      return;
    }
  }
  append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

const CharTable& CharTable::get() {
  static const CharTable kTable;
  return kTable;
}

CharTable::CharTable() {
  blocks_.emplace_back();  // block 0: all Cn
  for (char32_t high = 0; high < 0x1100; ++high) {
    // Planes 4 to 13 hold no assigned character; asking for each of them would double the time.
    if (high >= 0x400 && high < 0xe00) continue;
    Block block;
    for (char32_t low = 0; low < 256; ++low) block[low] = class_number(high << 8 | low);
    auto same = std::find(blocks_.rbegin(), blocks_.rend(), block);
    block_of_[high] =
        static_cast<uint16_t>(same == blocks_.rend() ? blocks_.size() : blocks_.rend() - same - 1);
    if (same == blocks_.rend()) blocks_.push_back(block);
  }
  for (char32_t c = 0; c < 128; ++c) ascii_[c] = set_of(c);
}

}  // namespace tensorfold
