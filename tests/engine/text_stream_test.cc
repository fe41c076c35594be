// Tokens to visible text: characters over several tokens, special tokens, stop strings, the end.
#include "engine/text_stream.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/support/toy_model.h"

namespace tensorfold {
namespace {

class TextStreamTest : public testing::Test {
 protected:
  static std::string reply(const std::vector<int32_t>& tokens, const std::vector<std::string>& stop) {
    TextStream stream(tokenizer_, stop);
    std::string text;
    for (const int32_t token : tokens) {
      text += stream.push(token);
      if (stream.stopped()) return text;
    }
    return text + stream.finish();
  }

  /// One token per byte: the finest cut there is.
  static std::vector<int32_t> bytes_of(std::string_view text) {
    std::vector<int32_t> tokens;
    for (const char c : text) tokens.push_back(static_cast<uint8_t>(c));
    return tokens;
  }

  /// Every way to write `text` in toy tokens, ten thousand at most.
  static void every_spelling(std::string_view text, std::vector<int32_t>& prefix,
                             std::vector<std::vector<int32_t>>& spellings) {
    if (text.empty()) return spellings.push_back(prefix);
    for (int32_t id = 0; id < kToyEndToken && spellings.size() < 10000; ++id) {
      const std::string token = tokenizer_->decode(std::vector<int32_t>{id}, true);
      const bool is_byte = id < 256;
      if (is_byte ? static_cast<uint8_t>(text[0]) != id : !text.starts_with(token)) continue;
      prefix.push_back(id);
      every_spelling(text.substr(is_byte ? 1 : token.size()), prefix, spellings);
      prefix.pop_back();
    }
  }

  static inline const std::shared_ptr<const Tokenizer> tokenizer_ =
      Tokenizer::parse(toy_tokenizer_json()).value();
};

TEST_F(TextStreamTest, EverySpellingOfATextGivesTheSameReply) {
  const std::string text = "on the other hand and in the \xe2\x82\xac zone";
  const std::vector<std::vector<std::string>> stops = {
      {},    {"hand and"}, {"the o"}, {"and in", "n the \xe2\x82\xac"}, {"\xe2\x82\xac"}, {"zones", "xyz"},
      {" "}, {"e"}};
  std::vector<std::vector<int32_t>> spellings;
  std::vector<int32_t> prefix;
  every_spelling(text, prefix, spellings);
  ASSERT_GT(spellings.size(), 1000u);
  for (const auto& stop : stops) {
    const std::string expected = reply(bytes_of(text), stop);
    EXPECT_EQ(expected.size() == text.size(), stop.empty() || stop[0] == "zones");
    for (const auto& spelling : spellings) ASSERT_EQ(reply(spelling, stop), expected);
  }
}

TEST_F(TextStreamTest, APartOfACharacterIsHeldBack) {
  TextStream stream(tokenizer_, {});
  EXPECT_EQ(stream.push('a'), "a");
  EXPECT_EQ(stream.push(0xe2), "");
  EXPECT_EQ(stream.push(0x82), "");
  EXPECT_EQ(stream.push(0xac), "\xe2\x82\xac");
  EXPECT_EQ(stream.push(0xe2), "");
  EXPECT_EQ(stream.finish(), "\xef\xbf\xbd");
}

TEST_F(TextStreamTest, SpecialAndUnknownTokensHaveNoText) {
  EXPECT_EQ(reply({'a', kToyEndToken, 'b', 300, 'c'}, {}), "abc");
  EXPECT_EQ(reply({'a', kToyEndToken, 'b'}, {"ab"}), "") << "a stop string is matched on the visible text";
}

TEST_F(TextStreamTest, TextThatCouldBecomeAStopStringComesAtTheEnd) {
  TextStream stream(tokenizer_, std::vector<std::string>{"xyz"});
  EXPECT_EQ(stream.push('x'), "");
  EXPECT_EQ(stream.push('y'), "");
  EXPECT_EQ(stream.finish(), "xy");
  EXPECT_FALSE(stream.stopped());
}

TEST_F(TextStreamTest, TheReplacementOfACutCharacterCanStopToo) {
  TextStream stream(tokenizer_, std::vector<std::string>{"a\xef\xbf\xbd"});
  EXPECT_EQ(stream.push('b'), "b");
  EXPECT_EQ(stream.push('a'), "");
  EXPECT_EQ(stream.push(0xe2), "");
  EXPECT_EQ(stream.finish(), "");
  EXPECT_TRUE(stream.stopped());
}

TEST_F(TextStreamTest, WithoutATokenizerThereIsNoText) {
  TextStream stream(nullptr, {});
  EXPECT_EQ(stream.push('a'), "");
  EXPECT_EQ(stream.finish(), "");
  EXPECT_FALSE(stream.stopped());
}

}  // namespace
}  // namespace tensorfold
