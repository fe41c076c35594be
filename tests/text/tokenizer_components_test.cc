// Small hand-made tokenizers, one or two components each, give what Hugging Face's tokenizers gives
// (tools/fixtures/tokenizer_components.py).
#include <gtest/gtest.h>

#include "tests/text/tokenizer_cases.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace tensorfold {
namespace {

std::vector<int32_t> to_ids(const Json& json) {
  std::vector<int32_t> ids;
  for (const Json& id : json.as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
  return ids;
}

/// A decoding as the golden spells it, against decode() and against a Detokenizer.
void expect_decoding(const std::shared_ptr<const Tokenizer>& tokenizer, const std::vector<int32_t>& ids,
                     const Json& golden, const std::string& text) {
  if (golden.is_null()) return;  // The reference panics here.
  const bool is_text = golden.is_int();
  for (const bool skip : {false, true}) {
    std::string expected = text;
    if (!is_text) {
      const Json& skipped = golden.as_array()[1];
      expected = (skip && !skipped.is_null() ? skipped : golden.as_array()[0]).as_string();
    }
    EXPECT_EQ(tokenizer->decode(ids, skip), expected) << "skip " << skip;
    Detokenizer detokenizer(tokenizer, skip);
    std::string streamed;
    for (const int32_t id : ids) streamed += detokenizer.push(id);
    EXPECT_EQ(streamed + detokenizer.finish(), expected) << "streamed, skip " << skip;
  }
}

void check_case(const Json& golden_case, const Json& golden) {
  Json spec = *golden_case.find("parts");
  spec.set("version", "1.0");
  spec.set("model", golden.find("models")->as_array()[spec.find("model")->as_int()]);
  const auto tokenizer = Tokenizer::parse(dump_json(spec));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const Json::Array& rows = golden_case.find("encode")->as_array();
  const Json::Array& texts = golden.find("texts")->as_array();
  ASSERT_EQ(rows.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string& text = texts[i].as_string();
    SCOPED_TRACE("text '" + text + "'");
    const Json::Array& row = rows[i].as_array();
    const std::vector<int32_t> ids = to_ids(row[0]);
    EXPECT_EQ((*tokenizer)->encode(text, false), ids);
    EXPECT_EQ((*tokenizer)->encode(text, true), row[1].is_null() ? ids : to_ids(row[1]))
        << "with special tokens";
    expect_decoding(*tokenizer, ids, row[2], text);
  }
  for (const Json& row : golden_case.find("decode")->as_array()) {
    SCOPED_TRACE("ids " + dump_json(row.as_array()[0]));
    expect_decoding(*tokenizer, to_ids(row.as_array()[0]), row.as_array()[1], "");
  }
}

TEST(TokenizerComponentsTest, EveryComponentGivesWhatTheReferenceGives) {
  const Json golden = read_tokenizer_golden("components");
  ASSERT_TRUE(golden.is_object());
  ASSERT_GT(golden.find("cases")->as_array().size(), 100u);
  for (const Json& golden_case : golden.find("cases")->as_array()) {
    SCOPED_TRACE(golden_case.find("name")->as_string());
    check_case(golden_case, golden);
  }
}

}  // namespace
}  // namespace tensorfold
