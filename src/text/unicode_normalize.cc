// Normal forms over utf8proc. Text is cut where normalization cannot reach across; only the pieces that may
// change are handed to the library, so that ordinary text costs one table look-up per character.
#include "text/unicode_normalize.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "text/unicode.h"

namespace tensorfold {
namespace {

constexpr CharSet kUnassigned = char_set::of(Category::kCn);

/// Compatibility characters that Unicode 9 did not have.
const std::vector<CodePointRange>& compatibility_after_unicode_9() {
  static const std::vector<CodePointRange> kRanges = {{0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},
                                                      {0xab69, 0xab69},   {0x10781, 0x107ba},
                                                      {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9}};
  return kRanges;
}

bool is_after_unicode_14(char32_t c) {
  const std::vector<CategoryPatch>& patches = category_patches();
  const auto place = std::lower_bound(patches.begin(), patches.end(), c,
                                      [](const CategoryPatch& patch, char32_t x) { return patch.last < x; });
  return place != patches.end() && c >= place->first;
}

/// What the reference's tables do not know: it has combining class 0 and takes part in nothing.
bool is_unknown(char32_t c) {
  return contains(marks_after_unicode_9(), c) || contains(compatibility_after_unicode_9(), c) ||
         is_after_unicode_14(c) || (CharTable::get().set_of(c) & kUnassigned) != 0;
}

int utf8proc_options(NormalForm form) {
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatibility = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  return UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
         (compatibility ? UTF8PROC_COMPAT : 0);
}

/// Puts runs of combining characters into canonical order. utf8proc sorts by exchanging neighbours, which
/// takes hours for a megabyte of accents.
void order_marks(std::vector<utf8proc_int32_t>& characters) {
  const auto combining_class = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  std::vector<uint64_t>
      keys;  // class, place in the run, character: sorting them keeps the order within a class
  for (size_t begin = 0; begin < characters.size(); ++begin) {
    size_t end = begin;
    keys.clear();
    while (end < characters.size() && combining_class(characters[end]) != 0) {
      const uint64_t place = end - begin;
      keys.push_back(static_cast<uint64_t>(combining_class(characters[end])) << 53 | place << 21 |
                     static_cast<uint64_t>(characters[end]));
      ++end;
    }
    std::sort(keys.begin(), keys.end());
    for (const uint64_t key : keys) characters[begin++] = static_cast<utf8proc_int32_t>(key & 0x1fffff);
  }
}

/// Appends the normal form of text that has no unknown character.
void append_normalized(std::string_view text, NormalForm form, std::string& out) {
  constexpr int kMostPerCharacter = 18;  // U+FDFA
  const auto options = static_cast<utf8proc_option_t>(utf8proc_options(form));
  std::vector<utf8proc_int32_t> characters;
  for (size_t pos = 0; pos < text.size();) {
    const int length = utf8_length(text[pos]);
    const auto c = static_cast<utf8proc_int32_t>(decode_utf8(text.data() + pos, length));
    pos += length;
    utf8proc_int32_t parts[kMostPerCharacter];
    int unused_boundary_class = 0;
    const utf8proc_ssize_t num_parts =
        utf8proc_decompose_char(c, parts, kMostPerCharacter, options, &unused_boundary_class);
    TF_CHECK(num_parts >= 0 && num_parts <= kMostPerCharacter, "no character decomposes into more");
    characters.insert(characters.end(), parts, parts + num_parts);
  }
  order_marks(characters);
  if (options & UTF8PROC_COMPOSE) {
    const auto size = static_cast<utf8proc_ssize_t>(characters.size());
    characters.resize(static_cast<size_t>(utf8proc_normalize_utf32(characters.data(), size, options)));
  }
  for (const utf8proc_int32_t c : characters) append_utf8(out, static_cast<char32_t>(c));
}

/// How a character behaves in one normal form.
enum Behavior : uint8_t {
  kInert,    ///< Normal by itself, and nothing before it changes because of it; what follows may combine with
             ///< it.
  kActive,   ///< May change, move, or combine with what is before it.
  kBarrier,  ///< Unknown to the reference: stays, and nothing crosses it.
};

/// Behavior of every character, 256 to a block. A Hangul syllable is inert in composed forms; jamo are
/// active.
class BehaviorTable {
 public:
  explicit BehaviorTable(NormalForm form) : form_(form) {
    for (char32_t high = 0; high < 0x1100; ++high) block_of_[high] = add_block(high);
  }
  Behavior of(char32_t c) const { return static_cast<Behavior>(blocks_[block_of_[c >> 8]][c & 0xff]); }

 private:
  using Block = std::array<uint8_t, 256>;

  uint16_t add_block(char32_t high) {
    // Planes 4 to 13 and the private planes: nothing in them changes. The former are unassigned, but a
    // barrier that nothing combines with is the same as an inert character.
    Block block{};
    if (high < 0x400 || high == 0xe00 || high == 0xe01) {
      for (char32_t low = 0; low < 256; ++low) block[low] = classify(high << 8 | low);
    }
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i] == block) return static_cast<uint16_t>(i);
    }
    blocks_.push_back(block);
    return static_cast<uint16_t>(blocks_.size() - 1);
  }

  Behavior classify(char32_t c) const {
    if (c >= 0xd800 && c < 0xe000) return kInert;  // Not in valid UTF-8.
    // utf8proc (2.8) takes U+11A7, the number before the first final consonant, for one and loses it.
    if (is_unknown(c) || c == 0x11a7) return kBarrier;
    const bool is_jamo = c >= 0x1100 && c < 0x1200;
    if (is_jamo || CharTable::get().set_of(c) & char_set::kMark) return kActive;
    const auto* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
    const bool is_hangul = c >= 0xac00 && c <= 0xd7a3;
    if (property->combining_class != 0) return kActive;
    if (property->decomp_seqindex == UINT16_MAX && !is_hangul) return kInert;
    std::string self, normal;
    append_utf8(self, c);
    append_normalized(self, form_, normal);
    return normal == self ? kInert : kActive;
  }

  NormalForm form_;
  std::array<uint16_t, 0x1100> block_of_{};
  std::vector<Block> blocks_;
};

const BehaviorTable& behavior_table(NormalForm form) {
  switch (form) {
    case NormalForm::kNfc: {
      static const BehaviorTable kTable(NormalForm::kNfc);
      return kTable;
    }
    case NormalForm::kNfd: {
      static const BehaviorTable kTable(NormalForm::kNfd);
      return kTable;
    }
    case NormalForm::kNfkc: {
      static const BehaviorTable kTable(NormalForm::kNfkc);
      return kTable;
    }
    default: {
      static const BehaviorTable kTable(NormalForm::kNfkd);
      return kTable;
    }
  }
}

/// Position of the first active character at or after `pos`, and of the last inert one before it.
struct ActiveSpot {
  size_t pos;         ///< text.size(): none.
  size_t base_start;  ///< Start of the character before it, if that is inert (it may combine), else pos.
};
ActiveSpot find_active(std::string_view text, size_t pos, const BehaviorTable& table) {
  size_t base = pos;
  bool has_base = false;
  while (pos < text.size()) {
    // No character below U+00A0 is active in any form.
    if (static_cast<unsigned char>(text[pos]) < 0x80) {
      base = pos++;
      has_base = true;
      continue;
    }
    const int length = utf8_length(text[pos]);
    const Behavior behavior = table.of(decode_utf8(text.data() + pos, length));
    if (behavior == kActive) return {pos, has_base ? base : pos};
    has_base = behavior == kInert;
    base = pos;
    pos += length;
  }
  return {text.size(), text.size()};
}

}  // namespace

bool normalize_unicode(std::string_view text, NormalForm form, std::string& out) {
  const BehaviorTable& table = behavior_table(form);
  ActiveSpot spot = find_active(text, 0, table);
  if (spot.pos == text.size()) return false;
  out.clear();
  size_t done = 0;
  while (spot.pos < text.size()) {
    // Everything up to the next inert or unknown character can interact with the base before it, nothing
    // else.
    size_t end = spot.pos;
    while (end < text.size()) {
      const int length = utf8_length(text[end]);
      if (table.of(decode_utf8(text.data() + end, length)) != kActive) break;
      end += length;
    }
    out += text.substr(done, spot.base_start - done);
    append_normalized(text.substr(spot.base_start, end - spot.base_start), form, out);
    done = end;
    spot = find_active(text, end, table);
  }
  out += text.substr(done);
  return true;
}

}  // namespace tensorfold
