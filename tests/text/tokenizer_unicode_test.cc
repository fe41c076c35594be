// Character properties, case and normal forms are those of Hugging Face's tokenizers for every character
// (tools/fixtures/tokenizer_unicode.py); UTF-8 is repaired as Python repairs it.
#include <gtest/gtest.h>

#include "base/hash.h"
#include "tests/text/tokenizer_cases.h"
#include "text/normalizer.h"
#include "text/unicode.h"

namespace tensorfold {
namespace {

bool is_scalar(char32_t c) { return c < 0xd800 || c >= 0xe000; }

template <class Predicate>
std::string set_hash(const Predicate& is_member) {
  std::vector<uint32_t> members;
  for (char32_t c = 1; c < 0x110000; ++c) {
    if (is_scalar(c) && is_member(c)) members.push_back(c);
  }
  return fmt::format("{:016x}", hash_bytes(std::as_bytes(std::span(members))));
}

std::string with_character(const std::string& context, char32_t c) {
  std::string text = context;
  std::string character;
  append_utf8(character, c);
  for (size_t place; (place = text.find("{}")) != std::string::npos;) text.replace(place, 2, character);
  return text;
}

/// Hash of what the normalizer makes of every character in every context.
std::string map_hash(const Normalizer& normalizer, const std::vector<std::string>& contexts) {
  CaseHash hash;
  for (char32_t c = 1; c < 0xe0200; ++c) {
    if (c == 0x34000) c = 0xe0000;
    if (!is_scalar(c)) continue;
    for (const std::string& context : contexts) hash.add_text(normalizer.apply(with_character(context, c)));
  }
  return hash.hex();
}

Normalizer make_normalizer(const std::string& json) {
  const Result<Json> parsed = parse_json(json);
  return Normalizer::parse(*parsed).value();
}

class TokenizerUnicodeTest : public testing::Test {
 protected:
  void SetUp() override {
    golden_ = read_tokenizer_golden("unicode");
    ASSERT_TRUE(golden_.is_object());
  }
  const std::string& golden(std::string_view key) const { return golden_.find(key)->as_string(); }
  Json golden_;
};

TEST_F(TokenizerUnicodeTest, GeneralCategoriesAreThoseOfUnicode16) {
  for (int i = 0; i <= static_cast<int>(Category::kCo); ++i) {
    const auto category = static_cast<Category>(i);
    if (category == Category::kCs) continue;
    EXPECT_EQ(set_hash([category](char32_t c) { return general_category(c) == category; }),
              golden_.find("categories")->find(category_name(category))->as_string())
        << category_name(category);
  }
}

TEST_F(TokenizerUnicodeTest, TheTableAgreesWithTheCategories) {
  const CharTable& table = CharTable::get();
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (!is_scalar(c)) continue;
    const CharSet expected = c == ' '            ? char_set::kSpace
                             : c == '\r'         ? char_set::kCr
                             : c == '\n'         ? char_set::kLf
                             : is_white_space(c) ? char_set::kOtherWhiteSpace
                                                 : char_set::of(general_category(c));
    ASSERT_EQ(table.set_of(c), expected) << fmt::format("U+{:04X}", static_cast<uint32_t>(c));
    std::string text;
    append_utf8(text, c);
    int length = 0;
    ASSERT_EQ(table.set_at(text.data(), length), expected);
    ASSERT_EQ(static_cast<size_t>(length), text.size());
  }
}

TEST_F(TokenizerUnicodeTest, WhiteSpaceNumbersAndWordCharactersAreTheReferences) {
  EXPECT_EQ(set_hash(is_white_space), golden("white_space"));
  EXPECT_EQ(set_hash(is_numeric), golden("numeric"));
  EXPECT_EQ(set_hash(is_word_char), golden("word"));
}

TEST_F(TokenizerUnicodeTest, EveryCharacterNormalizesAsTheReferenceDoes) {
  std::vector<std::string> contexts;
  for (const Json& context : golden_.find("contexts")->as_array()) contexts.push_back(context.as_string());
  for (const char* form : {"NFC", "NFD", "NFKC", "NFKD"}) {
    EXPECT_EQ(map_hash(make_normalizer(fmt::format(R"({{"type":"{}"}})", form)), contexts), golden(form))
        << form;
  }
}

TEST_F(TokenizerUnicodeTest, EveryCharacterIsLoweredAndStrippedAsTheReferenceDoes) {
  EXPECT_EQ(map_hash(make_normalizer(R"({"type":"Lowercase"})"), {"{}"}), golden("lowercase"));
  EXPECT_EQ(map_hash(make_normalizer(R"({"type":"StripAccents"})"), {"a{}b"}), golden("StripAccents"));
  EXPECT_EQ(map_hash(make_normalizer(R"({"type":"Strip","strip_left":true,"strip_right":true})"), {"{}b{}"}),
            golden("Strip"));
}

TEST(NormalizeTest, AMegabyteOfAccentsIsPutInOrderWithoutExchangingNeighbours) {
  constexpr int kCount = 250'000;
  std::string text = "a";
  std::string expected = "\u1ea1";  // a with the first dot below
  for (int i = 0; i < kCount; ++i) text += "\u0301\u0323";
  for (int i = 1; i < kCount; ++i) expected += "\u0323";
  for (int i = 0; i < kCount; ++i) expected += "\u0301";
  EXPECT_TRUE(make_normalizer(R"({"type":"NFC"})").apply(text) == expected);
}

TEST(Utf8Test, InvalidPartsBecomeOneReplacementEach) {
  const std::pair<std::string, std::string> cases[] = {
      {"abc", "abc"},
      {"\x80", "\ufffd"},
      {"a\xe2\x82", "a\ufffd"},     // unfinished
      {"\xe2\x82\x28", "\ufffd("},  // broken off
      {"\xf0\x9f\x98", "\ufffd"},
      {"\xf0\x80\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},  // overlong
      {"\xc0\xaf", "\ufffd\ufffd"},
      {"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},            // surrogate
      {"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},  // above U+10FFFF
      {"\xff\xfe"
       "ab\xc3",
       "\ufffd\ufffd"
       "ab\ufffd"},
      {"12345678\xc3\xa9"
       "12345678\xc3",
       "12345678\u00e9"
       "12345678\ufffd"},
  };
  for (const auto& [bytes, expected] : cases) {
    EXPECT_EQ(replace_invalid_utf8(bytes), expected);
    EXPECT_EQ(is_valid_utf8(bytes), bytes == expected);
    EXPECT_TRUE(is_valid_utf8(expected));
  }
}

TEST(Utf8Test, EveryPrefixOfACharacterIsIncomplete) {
  for (const char32_t c : {U'\u00e9', U'\u6f22', U'\U0001f600', U'\U0010ffff', U'\u0800', U'\ud7ff'}) {
    std::string text;
    append_utf8(text, c);
    EXPECT_EQ(decode_utf8(text.data(), static_cast<int>(text.size())), c);
    EXPECT_EQ(previous_char("a" + text, 1 + text.size()), 1u);
    EXPECT_TRUE(utf8_prefix(text).is_complete);
    for (size_t n = 1; n < text.size(); ++n) {
      const Utf8Prefix prefix = utf8_prefix(std::string_view(text).substr(0, n));
      EXPECT_TRUE(prefix.is_incomplete && !prefix.is_complete);
      EXPECT_EQ(prefix.num_bytes, static_cast<int>(n));
    }
  }
}

}  // namespace
}  // namespace tensorfold
