// Tokens of published tokenizers to the parts of a reply: markers by their ids, characters over several
// tokens, stop strings, the end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/text_stream.h"
#include "tests/text/tokenizer_cases.h"

namespace tensorfold {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Kind = OutputPiece::Kind;

OutputPiece reasoning(std::string text) { return {Kind::kReasoning, std::move(text), {}}; }
OutputPiece content(std::string text) { return {Kind::kContent, std::move(text), {}}; }
OutputPiece call(std::string name, std::string arguments) {
  return {Kind::kToolCall, std::move(arguments), std::move(name)};
}

constexpr OutputSyntax kHarmony{ReasoningSyntax::kHarmony, ToolSyntax::kHarmony};
constexpr OutputSyntax kHermes{ReasoningSyntax::kThink, ToolSyntax::kHermes};

std::shared_ptr<const Tokenizer> load(const std::string& name) {
  const PublishedTokenizer files = read_published_tokenizer(name);
  return Tokenizer::parse(files.json, files.config_json).value();
}

const std::shared_ptr<const Tokenizer>& gpt_oss() {
  static const auto tokenizer = load("gptoss");
  return tokenizer;
}
const std::shared_ptr<const Tokenizer>& qwen3() {
  static const auto tokenizer = load("qwen3");
  return tokenizer;
}

std::shared_ptr<const OutputFormat> format_of(const OutputSyntax& syntax, int64_t max_calls) {
  auto format = std::make_shared<OutputFormat>();
  format->syntax = syntax;
  format->max_calls = max_calls;
  format->tools = ToolSchemas(*parse_json(R"([{"type": "function", "function": {"name": "f"}}])"));
  if (syntax.is_harmony()) format->start = OutputFormat::Start::kHarmonyHeader;
  return format;
}

struct Reading {
  std::vector<OutputPiece> pieces;  ///< Joined.
  bool ended = false;               ///< By a marker.
  bool stopped = false;
  int64_t num_tokens = 0;  ///< Until then.
};

Reading read(const std::shared_ptr<const Tokenizer>& tokenizer, const OutputSyntax& syntax,
             const std::vector<int32_t>& tokens, const std::vector<std::string>& stop = {},
             int64_t max_calls = -1) {
  TextStream stream(tokenizer, stop, format_of(syntax, max_calls));
  Reading reading;
  const auto take = [&] {
    for (const OutputPiece& piece : stream.take_output()) {
      if (piece.kind == Kind::kToolCall)
        reading.pieces.push_back(piece);
      else
        append_output(reading.pieces, piece.kind, piece.text);
    }
  };
  for (const int32_t token : tokens) {
    ++reading.num_tokens;
    reading.ended = stream.ends_reply(token);
    if (reading.ended) break;
    EXPECT_EQ(stream.push(token), "");
    take();
    reading.stopped = stream.stopped();
    if (reading.stopped) return reading;
  }
  stream.finish(reading.ended);
  take();
  reading.stopped = stream.stopped();
  return reading;
}

TEST(OutputStream, ReadsHarmonyByTokens) {
  const auto tokens = gpt_oss()->encode(
      "<|channel|>analysis<|message|>Überlegen "
      "🙂👩‍👩‍👧<|end|><|start|>assistant<|channel|>commentary "
      "to=functions.f <|constrain|>json<|message|>{\"a\": \"ß\"}<|call|>never seen",
      false);
  const Reading reading = read(gpt_oss(), kHarmony, tokens);
  EXPECT_THAT(reading.pieces,
              ElementsAre(reasoning("Überlegen 🙂👩‍👩‍👧"), call("f", R"({"a": "ß"})")));
  EXPECT_TRUE(reading.ended);
  EXPECT_LT(reading.num_tokens, static_cast<int64_t>(tokens.size()));
}

TEST(OutputStream, TakesASpelledMarkerForText) {
  std::vector<int32_t> tokens = gpt_oss()->encode("<|channel|>final<|message|>", false);
  const auto spelled =
      gpt_oss()->encode("It ends with <|return|> or <|call|>.", {.special_tokens_as_text = true});
  tokens.insert(tokens.end(), spelled.begin(), spelled.end());
  const Reading reading = read(gpt_oss(), kHarmony, tokens);
  EXPECT_THAT(reading.pieces, ElementsAre(content("It ends with <|return|> or <|call|>.")));
  EXPECT_FALSE(reading.ended);
}

TEST(OutputStream, ShowsNoSpecialTokens) {
  EXPECT_THAT(
      read(gpt_oss(), kHarmony, gpt_oss()->encode("<|channel|>final<|message|>a<|endofprompt|>b", false))
          .pieces,
      ElementsAre(content("ab")));
  EXPECT_THAT(read(qwen3(), kHermes, qwen3()->encode("a<|im_start|>b<|endoftext|>", false)).pieces,
              ElementsAre(content("ab")));
}

TEST(OutputStream, EndsAnUnfinishedCharacterAtAMarker) {
  std::vector<int32_t> tokens = gpt_oss()->encode("<|channel|>analysis<|message|>", false);
  const auto smile = gpt_oss()->encode("👩‍👧", false);
  ASSERT_GT(smile.size(), 1u);
  tokens.push_back(smile[0]);
  ASSERT_THAT(gpt_oss()->decode(std::span(smile).first(1), false), testing::HasSubstr("\uFFFD"));
  for (const int32_t token :
       gpt_oss()->encode("<|end|><|start|>assistant<|channel|>final<|message|>x", false))
    tokens.push_back(token);
  EXPECT_THAT(read(gpt_oss(), kHarmony, tokens).pieces, ElementsAre(reasoning("\uFFFD"), content("x")));
}

TEST(OutputStream, ReadsTagsThatAreTokensAndTagsThatAreNot) {
  const std::string reply =
      "<think>\nHm 🙂.\n</think>\n\nÄh.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": "
      "1}}\n</tool_call>";
  const auto expected = ElementsAre(reasoning("Hm 🙂."), content("Äh."), call("f", R"({"a": 1})"));
  EXPECT_THAT(read(qwen3(), kHermes, qwen3()->encode(reply, false)).pieces, expected);
  ASSERT_FALSE(gpt_oss()->token_to_id("<think>").has_value());
  EXPECT_THAT(read(gpt_oss(), kHermes, gpt_oss()->encode(reply, false)).pieces, expected);
}

TEST(OutputStream, StopsInTheContentOnly) {
  const auto tokens = qwen3()->encode("<think>\nstop here\n</think>\n\nDo not stop here, please.", false);
  const Reading reading = read(qwen3(), kHermes, tokens, {"stop here", "think"});
  EXPECT_THAT(reading.pieces, ElementsAre(reasoning("stop here"), content("Do not ")));
  EXPECT_TRUE(reading.stopped);
  EXPECT_LT(reading.num_tokens, static_cast<int64_t>(tokens.size()));
}

TEST(OutputStream, FindsAStopStringInTextThatTheParserHeldBack) {
  // The end makes the white space content, and that is where the stop string is.
  const Reading reading = read(qwen3(), kHermes, qwen3()->encode("Yes.\n\n", false), {"\n\n"});
  EXPECT_THAT(reading.pieces, ElementsAre(content("Yes.")));
  EXPECT_TRUE(reading.stopped);
  EXPECT_THAT(read(qwen3(), kHermes, qwen3()->encode("ab", false), {"abc"}).pieces,
              ElementsAre(content("ab")));
}

TEST(OutputStream, KeepsTheContentBeforeALastCallThatBeginsAStopString) {
  const std::string reply = "Wait.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\nMore.";
  const Reading reading =
      read(qwen3(), kHermes, qwen3()->encode(reply, false), {"Wait. Now"}, /*max_calls=*/1);
  EXPECT_THAT(reading.pieces, ElementsAre(content("Wait."), call("f", "{}")));
  EXPECT_TRUE(reading.stopped);
}

}  // namespace
}  // namespace tensorfold
