// Wrong files are refused in a sentence that names the component; hostile ones and hostile texts do no harm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "text/tokenizer.h"

namespace tensorfold {
namespace {

using testing::HasSubstr;

/// A small valid tokenizer.json with some members replaced: R"("decoder":{...})".
std::string with_members(const std::string& members) {
  const std::string model = R"("model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"]]})";
  const bool has_model = members.find("\"model\":") != std::string::npos;
  return R"({"version":"1.0")" + (has_model ? "" : "," + model) + (members.empty() ? "" : "," + members) +
         "}";
}

struct Wrong {
  const char* members;
  StatusCode code;
  const char* message;
};

TEST(TokenizerErrorsTest, EachNamesItsComponent) {
  const Wrong wrongs[] = {
      {R"("pre_tokenizer":{"type":"Foo"})", StatusCode::kUnsupported,
       "tokenizer.json: pre_tokenizer: type 'Foo' is not supported"},
      {R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Bar"}]})", StatusCode::kUnsupported,
       "tokenizer.json: pre_tokenizer: type 'Bar' is not supported"},
      {R"("pre_tokenizer":[])", StatusCode::kCorrupt,
       "tokenizer.json: pre_tokenizer: is array, expected an object"},
      {R"("pre_tokenizer":{})", StatusCode::kCorrupt, "tokenizer.json: pre_tokenizer: 'type' is missing"},
      {R"("pre_tokenizer":{"type":"ByteLevel"})", StatusCode::kCorrupt,
       "tokenizer.json: pre_tokenizer: 'add_prefix_space' is missing"},
      {R"("pre_tokenizer":{"type":"Digits","individual_digits":1})", StatusCode::kCorrupt,
       "tokenizer.json: pre_tokenizer: 'individual_digits' is integer, expected a boolean"},
      {R"("pre_tokenizer":{"type":"Split","pattern":{"String":"a"},"behavior":"isolated","invert":false})",
       StatusCode::kCorrupt, "tokenizer.json: pre_tokenizer: behavior 'isolated' is not known"},
      {R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"(a"},"behavior":"Isolated","invert":false})",
       StatusCode::kCorrupt, "tokenizer.json: pre_tokenizer: pattern '(a' has an unclosed group"},
      {R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"(a)\\1"},"behavior":"Isolated","invert":false})",
       StatusCode::kUnsupported,
       "tokenizer.json: pre_tokenizer: pattern '(a)\\1' has the escape '\\1', which is not supported"},
      {R"("pre_tokenizer":{"type":"Metaspace","replacement":"__"})", StatusCode::kCorrupt,
       "tokenizer.json: pre_tokenizer: replacement '__' is not one character"},
      {R"("pre_tokenizer":{"type":"Metaspace","replacement":"_","add_prefix_space":false})",
       StatusCode::kCorrupt,
       "tokenizer.json: pre_tokenizer: add_prefix_space is false, but prepend_scheme is 'always'"},
      {R"("normalizer":{"type":"Precompiled"})", StatusCode::kUnsupported,
       "tokenizer.json: normalizer: type 'Precompiled' is not supported"},
      {R"("normalizer":{"type":"Replace","pattern":"a","content":""})", StatusCode::kCorrupt,
       "tokenizer.json: normalizer: pattern: is string, expected an object"},
      {R"("decoder":{"type":"CTC"})", StatusCode::kUnsupported,
       "tokenizer.json: decoder: type 'CTC' is not supported"},
      {R"("decoder":{"type":"Strip","content":"ab","start":0,"stop":0})", StatusCode::kCorrupt,
       "tokenizer.json: decoder: content 'ab' is not one character"},
      {R"("decoder":{"type":"Strip","content":"a","start":-1,"stop":0})", StatusCode::kCorrupt,
       "tokenizer.json: decoder: 'start' is not an integer from 0 to 1073741824"},
      {R"("post_processor":{"type":"BertProcessing"})", StatusCode::kUnsupported,
       "tokenizer.json: post_processor: type 'BertProcessing' is not supported"},
      {R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}}],)"
       R"("pair":[],"special_tokens":{}})",
       StatusCode::kCorrupt, "tokenizer.json: post_processor: special token '<s>' is not in special_tokens"},
      {R"("added_tokens":[{"content":"x"}])", StatusCode::kCorrupt,
       "tokenizer.json: added_tokens: 'special' is missing"},
      {R"("model":null)", StatusCode::kCorrupt, "tokenizer.json: 'model' is missing"},
      {R"("model":{"type":"Unigram"})", StatusCode::kUnsupported,
       "tokenizer.json: model: type 'Unigram' is not supported"},
      {R"("model":{"type":"BPE","vocab":[],"merges":[]})", StatusCode::kCorrupt,
       "tokenizer.json: model: vocab: is array, expected an object"},
      {R"("model":{"type":"BPE","vocab":{"a":-1},"merges":[]})", StatusCode::kCorrupt,
       "tokenizer.json: model: vocab: the id of 'a' is not an integer from 0 up"},
      {R"("model":{"type":"BPE","vocab":{"a":4294967295},"merges":[]})", StatusCode::kUnsupported,
       "tokenizer.json: model: vocab: 'a' has id 4294967295, the limit is 4194303"},
      {R"("model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[["a","b"]]})", StatusCode::kCorrupt,
       "tokenizer.json: model: merges: 'ab' is not in the vocabulary"},
      {R"("model":{"type":"BPE","vocab":{"a":0},"merges":["a b c"]})", StatusCode::kCorrupt,
       "tokenizer.json: model: merge 0 is not a pair of tokens"},
      {R"("model":{"type":"BPE","vocab":{"a":0},"merges":[["a"]]})", StatusCode::kCorrupt,
       "tokenizer.json: model: merge 0 is not a pair of tokens"},
      {R"("model":{"type":"BPE","vocab":{"##a":0,"b":1},"merges":[["b","b"]],"continuing_subword_prefix":"##"})",
       StatusCode::kCorrupt, "tokenizer.json: model: merges: 'b' is not in the vocabulary"},
      {R"("version":"2.0")", StatusCode::kUnsupported,
       "tokenizer.json: version is \"2.0\", expected \"1.0\""},
  };
  for (const Wrong& wrong : wrongs) {
    const auto tokenizer = Tokenizer::parse(with_members(wrong.members));
    ASSERT_FALSE(tokenizer.ok()) << wrong.members;
    EXPECT_EQ(tokenizer.status().message(), wrong.message) << wrong.members;
    EXPECT_EQ(tokenizer.status().code(), wrong.code) << wrong.members;
  }
}

TEST(TokenizerErrorsTest, TextThatIsNoJsonNamesItsFile) {
  EXPECT_THAT(Tokenizer::parse("{").status().message(), HasSubstr("tokenizer.json: "));
  EXPECT_THAT(Tokenizer::parse("[]").status().message(),
              HasSubstr("tokenizer.json: is array, expected an object"));
  EXPECT_THAT(Tokenizer::parse(with_members(""), "{").status().message(),
              HasSubstr("tokenizer_config.json: "));
  EXPECT_EQ(Tokenizer::parse(with_members(""), R"({"bos_token":1})").status().message(),
            "tokenizer_config.json: 'bos_token' is neither a string nor an object with the string 'content'");
  EXPECT_EQ(Tokenizer::parse(with_members(""), R"({"add_bos_token":"yes"})").status().message(),
            "tokenizer_config.json: 'add_bos_token' is string, expected a boolean");
}

TEST(TokenizerErrorsTest, AFolderWithoutTokenizerIsNotFound) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "tensorfold_tokenizer_errors_test";
  std::filesystem::create_directories(folder);
  std::filesystem::remove(folder / "tokenizer.json");
  EXPECT_EQ(Tokenizer::load(folder).status().code(), StatusCode::kNotFound);
  std::ofstream(folder / "tokenizer.json") << with_members("");
  const auto loaded = Tokenizer::load(folder);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ((*loaded)->encode("abba", false), (std::vector<int32_t>{2, 1, 0}));
  std::ofstream(folder / "tokenizer.json") << "{}";
  EXPECT_EQ(Tokenizer::load(folder).status().message(),
            folder.string() + ": tokenizer.json: 'model' is missing");
  std::filesystem::remove_all(folder);
}

TEST(TokenizerHostileTest, FilesThatWouldMultiplyTextAreRefused) {
  std::string steps;
  for (int i = 0; i < 5; ++i) {
    steps += R"({"type":"Replace","pattern":{"String":"a"},"content":"aaaaaaaaaa"},)";
  }
  steps.pop_back();
  EXPECT_THAT(
      Tokenizer::parse(with_members(R"("normalizer":{"type":"Sequence","normalizers":[)" + steps + "]}"))
          .status()
          .message(),
      HasSubstr("tokenizer.json: normalizer: may make text 100000 times longer"));
  EXPECT_THAT(Tokenizer::parse(with_members(R"("decoder":{"type":"Sequence","decoders":[)" + steps + "]}"))
                  .status()
                  .message(),
              HasSubstr("tokenizer.json: decoder: may make text"));
  std::string byte_levels;
  for (int i = 0; i < 30; ++i)
    byte_levels += R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false},)";
  byte_levels.pop_back();
  EXPECT_FALSE(Tokenizer::parse(with_members(R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[)" +
                                             byte_levels + "]}"))
                   .ok());
}

TEST(TokenizerHostileTest, DeepNestingIsRefused) {
  std::string open, close;
  for (int i = 0; i < 25; ++i) {
    open += R"({"type":"Sequence","normalizers":[)";
    close += "]}";
  }
  EXPECT_THAT(Tokenizer::parse(with_members("\"normalizer\":" + open + close)).status().message(),
              HasSubstr("tokenizer.json: normalizer: nests deeper than 16 levels"));
}

TEST(TokenizerHostileTest, AMegabyteOfOneCharacterIsEncodedInOnePiece) {
  const auto tokenizer = Tokenizer::parse(with_members(
      R"("model":{"type":"BPE","vocab":{"a":0,"aa":1,"aaaa":2,"b":3},"merges":[["a","a"],["aa","aa"]]})"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const std::vector<int32_t> ids = (*tokenizer)->encode(std::string(1'000'003, 'a'), false);
  ASSERT_EQ(ids.size(), 250'002u);
  EXPECT_EQ(ids[249'999], 2);
  EXPECT_EQ(ids[250'000], 1);
  EXPECT_EQ(ids[250'001], 0);
  EXPECT_EQ((*tokenizer)->decode(ids, false).size(), 1'000'003u + 250'001u);  // Joined with blanks.
}

TEST(TokenizerHostileTest, TokensInWhiteSpaceThatStripItAllTakeNoQuadraticTime) {
  const auto tokenizer = Tokenizer::parse(with_members(
      R"("added_tokens":[{"id":3,"content":" ","single_word":false,"lstrip":true,"rstrip":true,"normalized":false,)"
      R"("special":false}])"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  // The first blank takes the others along, and as in the reference they are no tokens of their own then.
  EXPECT_EQ((*tokenizer)->encode("a" + std::string(300'000, ' ') + "b", false),
            (std::vector<int32_t>{0, 3, 1}));
}

TEST(TokenizerHostileTest, IdsOutsideTheVocabularyDecodeToNothing) {
  const auto tokenizer = Tokenizer::parse(with_members(""));
  ASSERT_TRUE(tokenizer.ok());
  const std::vector<int32_t> ids = {-1, INT32_MIN, INT32_MAX, 3, 2};
  EXPECT_EQ((*tokenizer)->decode(ids, false), "ab");
  EXPECT_EQ((*tokenizer)->id_to_token(-1), "");
  EXPECT_EQ((*tokenizer)->id_to_token(INT32_MAX), "");
  EXPECT_FALSE((*tokenizer)->is_special(INT32_MIN));
}

}  // namespace
}  // namespace tensorfold
