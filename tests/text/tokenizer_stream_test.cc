// Streamed text is the decoded text, whatever the ids; and a tokenizer may be used from many threads at once.
#include <gtest/gtest.h>

#include <thread>

#include "tests/support/shared_data.h"
#include "tests/text/tokenizer_cases.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace tensorfold {
namespace {

std::shared_ptr<const Tokenizer> published(const std::string& name) {
  const PublishedTokenizer files = read_published_tokenizer(name);
  const auto tokenizer = Tokenizer::parse(files.json, files.config_json);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return tokenizer.ok() ? *tokenizer : nullptr;
}

/// Pushes the ids one by one; every part must be valid UTF-8 by itself.
std::string stream(const std::shared_ptr<const Tokenizer>& tokenizer, const std::vector<int32_t>& ids,
                   bool skip) {
  Detokenizer detokenizer(tokenizer, skip);
  std::string text;
  for (const int32_t id : ids) {
    const std::string part = detokenizer.push(id);
    EXPECT_TRUE(is_valid_utf8(part));
    text += part;
  }
  const std::string rest = detokenizer.finish();
  EXPECT_TRUE(is_valid_utf8(rest));
  return text + rest;
}

TEST(DetokenizerTest, StreamedTextIsTheDecodedTextForRandomIds) {
  TF_SKIP_WITHOUT_SHARED_DATA();
  for (const char* name : {"qwen3", "gemma3"}) {
    SCOPED_TRACE(name);
    const auto tokenizer = published(name);
    ASSERT_NE(tokenizer, nullptr);
    for (uint64_t seed = 0; seed < 3000; ++seed) {
      const std::vector<int32_t> ids = random_ids(seed, tokenizer->vocab_size());
      for (const bool skip : {false, true}) {
        ASSERT_EQ(stream(tokenizer, ids, skip), tokenizer->decode(ids, skip)) << "seed " << seed;
      }
    }
  }
}

TEST(DetokenizerTest, ByteLevelTextComesAsSoonAsItIsComplete) {
  TF_SKIP_WITHOUT_SHARED_DATA();
  const auto tokenizer = published("qwen3");
  ASSERT_NE(tokenizer, nullptr);
  // Byte tokens: their ids are not the bytes, so each is looked up by its spelling.
  const auto byte_id = [&](const char* spelling) { return tokenizer->token_to_id(spelling).value_or(-1); };
  Detokenizer detokenizer(tokenizer, true);
  EXPECT_EQ(detokenizer.push(byte_id("a")), "a");
  EXPECT_EQ(detokenizer.push(byte_id("\u00f0")), "");            // F0
  EXPECT_EQ(detokenizer.push(byte_id("\u0141")), "");            // 9F
  EXPECT_EQ(detokenizer.push(byte_id("\u013a")), "");            // 98
  EXPECT_EQ(detokenizer.push(byte_id("\u0122")), "\U0001f600");  // 80
  EXPECT_EQ(detokenizer.push(byte_id("\u00e6")), "");            // E6
  EXPECT_EQ(detokenizer.push(byte_id("b")),
            "\ufffd"
            "b");
  EXPECT_EQ(detokenizer.push(151645), "");  // <|im_end|> is special
  EXPECT_EQ(detokenizer.push(-1), "");
  EXPECT_EQ(detokenizer.push(1 << 30), "");
  EXPECT_EQ(detokenizer.push(byte_id("\u00e6")), "");
  EXPECT_EQ(detokenizer.push(byte_id("\u00bc")), "");  // BC
  EXPECT_EQ(detokenizer.finish(), "\ufffd");
}

TEST(DetokenizerTest, ByteFallbackHoldsARunUntilItEnds) {
  TF_SKIP_WITHOUT_SHARED_DATA();
  const auto tokenizer = published("gemma3");
  ASSERT_NE(tokenizer, nullptr);
  const auto id = [&](const char* token) { return tokenizer->token_to_id(token).value_or(-1); };
  Detokenizer detokenizer(tokenizer, false);
  EXPECT_EQ(detokenizer.push(id("\u2581a")), " a");
  for (const char* byte : {"<0xF0>", "<0x9F>", "<0xA9>", "<0xBF>"}) EXPECT_EQ(detokenizer.push(id(byte)), "");
  EXPECT_EQ(detokenizer.push(id("a")),
            "\U0001fa7f"
            "a");
  EXPECT_EQ(detokenizer.push(id("<0xE6>")), "");
  EXPECT_EQ(detokenizer.push(id("<0x41>")), "");
  EXPECT_EQ(detokenizer.finish(), "\ufffd\ufffd");  // One for each byte, the letter included.
}

TEST(TokenizerThreadsTest, ThreadsEncodeAsOneDoes) {
  TF_SKIP_WITHOUT_SHARED_DATA();
  const auto tokenizer = published("qwen3");
  const Json golden = read_tokenizer_golden("texts");
  ASSERT_TRUE(tokenizer != nullptr && golden.is_object());
  const RandomTexts random(golden);
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> expected;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    texts.push_back(random.text(seed, {"<|im_end|>"}));
    expected.push_back(tokenizer->encode(texts.back(), false));
  }
  std::vector<int> num_wrong(4);
  std::vector<std::thread> threads;
  for (int& wrong : num_wrong) {
    threads.emplace_back([&] {
      for (size_t i = 0; i < texts.size(); ++i) wrong += tokenizer->encode(texts[i], false) != expected[i];
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_wrong, std::vector<int>(4));
}

TEST(TokenizerCacheTest, ASecondEncodingIsEqual) {
  TF_SKIP_WITHOUT_SHARED_DATA();
  for (const char* name : {"llama3", "gemma3"}) {
    const auto tokenizer = published(name);
    const Json golden = read_tokenizer_golden("texts");
    ASSERT_TRUE(tokenizer != nullptr && golden.is_object());
    std::string all;
    for (const Json& text : golden.find("texts")->as_array()) all += text.as_string();
    const std::vector<int32_t> first = tokenizer->encode(all, false);
    EXPECT_EQ(tokenizer->encode(all, false), first) << name;
  }
}

TEST(EncodeOptionsTest, SpecialTokensCanBeText) {
  TF_SKIP_WITHOUT_SHARED_DATA();
  const auto tokenizer = published("qwen3");
  ASSERT_NE(tokenizer, nullptr);
  const std::string text = "<|im_end|><think>";
  EXPECT_EQ(tokenizer->encode(text, false), (std::vector<int32_t>{151645, 151667}));
  const std::vector<int32_t> literal = tokenizer->encode(text, EncodeOptions{.special_tokens_as_text = true});
  EXPECT_EQ(literal.back(), 151667);  // Not special, so still a token.
  EXPECT_GT(literal.size(), 3u);
  EXPECT_EQ(tokenizer->decode(literal, true), text);
}

}  // namespace
}  // namespace tensorfold
