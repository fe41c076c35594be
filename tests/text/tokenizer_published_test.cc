// Published tokenizers give the ids and texts that Hugging Face's tokenizers gives
// (tools/fixtures/tokenizer_goldens.py).
#include <gtest/gtest.h>

#include <map>

#include "tests/support/shared_data.h"
#include "tests/text/tokenizer_cases.h"
#include "text/tokenizer.h"

namespace tensorfold {
namespace {

constexpr uint64_t kBlock = 100;

/// A tokenizer and its golden, loaded once for all tests of it.
struct Loaded {
  std::shared_ptr<const Tokenizer> tokenizer;  ///< Null where something is missing; the test has then failed.
  std::vector<std::string> added;
  Json golden;
};
const Loaded& loaded(const std::string& name) {
  static std::map<std::string, Loaded> all;
  const auto [place, is_new] = all.try_emplace(name);
  if (is_new) {
    const PublishedTokenizer files = read_published_tokenizer(name);
    const auto tokenizer = Tokenizer::parse(files.json, files.config_json);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    if (tokenizer.ok())
      place->second = {*tokenizer, added_token_contents(files.json), read_tokenizer_golden(name)};
  }
  return place->second;
}

class PublishedTokenizerTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    TF_SKIP_WITHOUT_SHARED_DATA();
    const Loaded& all = loaded(GetParam());
    ASSERT_NE(all.tokenizer, nullptr);
    tokenizer_ = all.tokenizer;
    golden_ = all.golden;
    added_ = all.added;
    texts_ = read_tokenizer_golden("texts");
    ASSERT_TRUE(golden_.is_object() && texts_.is_object());
    ASSERT_FALSE(added_.empty());
  }

  const Json::Array& golden(std::string_view key) const { return golden_.find(key)->as_array(); }

  void add_ids(CaseHash& hash, std::string_view text) const { hash.add_ids(tokenizer_->encode(text, false)); }

  /// Hash of the ids with and without special tokens, and of the decodings of the former.
  std::string case_hash(std::string_view text) const {
    CaseHash hash;
    add_ids(hash, text);
    add_with_decodings(hash, text, true);
    return hash.hex();
  }
  void add_with_decodings(CaseHash& hash, std::string_view text, bool add_special_tokens) const {
    const std::vector<int32_t> ids = tokenizer_->encode(text, add_special_tokens);
    hash.add_ids(ids);
    add_decodings(hash, ids);
  }
  void add_decodings(CaseHash& hash, const std::vector<int32_t>& ids) const {
    for (const bool skip : {false, true}) hash.add_text(tokenizer_->decode(ids, skip));
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  Json golden_, texts_;
  std::vector<std::string> added_;
};

TEST_P(PublishedTokenizerTest, VocabularyIsEqual) {
  ASSERT_EQ(tokenizer_->vocab_size(), golden_.find("vocab_size")->as_int());
  CaseHash hash;
  for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    const std::string_view token = tokenizer_->id_to_token(id);
    hash.add_text(token);
    if (token.empty()) continue;
    ASSERT_EQ(tokenizer_->token_to_id(token), id) << token;
  }
  EXPECT_EQ(hash.hex(), golden_.find("vocab")->as_string());
}

TEST_P(PublishedTokenizerTest, HandPickedTextsHaveEqualIds) {
  const Json::Array& texts = texts_.find("texts")->as_array();
  const Json::Array& all_ids = golden("ids");
  ASSERT_EQ(golden("texts").size(), texts.size());
  size_t next_full = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string& text = texts[i].as_string();
    SCOPED_TRACE(text);
    size_t num_characters = 0;
    for (const char c : text) num_characters += (c & 0xc0) != 0x80;
    if (i < static_cast<size_t>(texts_.find("num_full")->as_int()) && num_characters < 150) {
      std::vector<int32_t> ids;
      for (const Json& id : all_ids[next_full++].as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
      EXPECT_EQ(tokenizer_->encode(text, false), ids);
    }
    EXPECT_EQ(case_hash(text), golden("texts")[i].as_string());
  }
  EXPECT_EQ(next_full, all_ids.size());
}

TEST_P(PublishedTokenizerTest, LongTextsHaveEqualIds) {
  const Json::Array& texts = texts_.find("long")->as_array();
  ASSERT_EQ(golden("long").size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string& fragment = texts[i].as_array()[0].as_string();
    std::string text;
    for (int64_t n = texts[i].as_array()[1].as_int(); n > 0; --n) text += fragment;
    EXPECT_EQ(case_hash(text), golden("long")[i].as_string()) << fragment;
  }
}

TEST_P(PublishedTokenizerTest, AddedTokensGluedToNeighboursHaveEqualIds) {
  CaseHash hash;
  for (const std::string& token : added_) {
    for (const std::string& text :
         {token, "a" + token + "b", " " + token + " ", "\n" + token + "." + token, token + token}) {
      add_ids(hash, text);
    }
  }
  EXPECT_EQ(hash.hex(), golden_.find("added")->as_string());
}

TEST_P(PublishedTokenizerTest, InvalidUtf8IsReplacedAsPythonDoes) {
  CaseHash hash;
  for (int byte = 0; byte < 256; ++byte) add_ids(hash, std::string("a") + static_cast<char>(byte) + "c");
  for (uint64_t seed = 0; seed < 2000; ++seed) add_ids(hash, random_bytes(seed));
  EXPECT_EQ(hash.hex(), golden_.find("bytes")->as_string());
}

TEST_P(PublishedTokenizerTest, RandomTextsHaveEqualIdsAndDecodings) {
  const RandomTexts texts(texts_);
  for (size_t block = 0; block < golden("random").size(); ++block) {
    CaseHash hash;
    for (uint64_t seed = block * kBlock; seed < (block + 1) * kBlock; ++seed) {
      add_with_decodings(hash, texts.text(seed, added_), seed % 2 == 1);
    }
    EXPECT_EQ(hash.hex(), golden("random")[block].as_string()) << "seeds from " << block * kBlock;
  }
}

TEST_P(PublishedTokenizerTest, RandomIdsDecodeEqually) {
  for (size_t block = 0; block < golden("decode").size(); ++block) {
    CaseHash hash;
    for (uint64_t seed = block * kBlock; seed < (block + 1) * kBlock; ++seed) {
      add_decodings(hash, random_ids(seed, tokenizer_->vocab_size()));
    }
    EXPECT_EQ(hash.hex(), golden("decode")[block].as_string()) << "seeds from " << block * kBlock;
  }
}

INSTANTIATE_TEST_SUITE_P(All, PublishedTokenizerTest,
                         testing::Values("qwen3", "gptoss", "deepseek_v3", "llama3", "gemma3"),
                         [](const auto& info) { return std::string(info.param); });

TEST(PublishedTokenizerConfigTest, SpecialTokensComeFromStringsAndObjects) {
  TF_SKIP_WITHOUT_SHARED_DATA();
  const PublishedTokenizer qwen = read_published_tokenizer("qwen3");
  const auto strings = Tokenizer::parse(qwen.json, qwen.config_json);
  ASSERT_TRUE(strings.ok());
  EXPECT_EQ((*strings)->bos_token(), std::nullopt);
  EXPECT_EQ((*strings)->eos_token(), "<|im_end|>");
  EXPECT_EQ((*strings)->pad_token(), "<|endoftext|>");
  EXPECT_EQ((*strings)->add_bos_token(), false);
  const int32_t eos = (*strings)->token_to_id("<|im_end|>").value_or(-1);
  EXPECT_EQ(eos, 151645);
  EXPECT_TRUE((*strings)->is_special(eos));
  EXPECT_FALSE((*strings)->is_special((*strings)->token_to_id("<think>").value_or(eos)));

  const PublishedTokenizer deepseek = read_published_tokenizer("deepseek_v3");
  const auto objects = Tokenizer::parse(deepseek.json, deepseek.config_json);
  ASSERT_TRUE(objects.ok());
  EXPECT_EQ((*objects)->bos_token(), "<\uff5cbegin\u2581of\u2581sentence\uff5c>");
  EXPECT_EQ((*objects)->unk_token(), std::nullopt);
  EXPECT_EQ((*objects)->add_bos_token(), true);
  EXPECT_EQ((*objects)->add_eos_token(), false);
}

}  // namespace
}  // namespace tensorfold
