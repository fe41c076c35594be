// Replies of every format, whole, broken and cut: what the parsers make of them does not depend on the cuts.
#include "text/output_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "text/chat_template.h"
#include "text/output_parser_calls.h"
#include "text/output_parser_values.h"
#include "text/tokenizer.h"

namespace tensorfold {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = OutputPiece::Kind;
using Start = OutputFormat::Start;

OutputPiece reasoning(std::string text) { return {Kind::kReasoning, std::move(text), {}}; }
OutputPiece content(std::string text) { return {Kind::kContent, std::move(text), {}}; }
OutputPiece call(std::string name, std::string arguments) {
  return {Kind::kToolCall, std::move(arguments), std::move(name)};
}

const char kTools[] = R"([
  {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {
    "query": {"type": "string"}, "limit": {"type": "integer"}, "ratio": {"type": "number"},
    "exact": {"type": "boolean"}, "tags": {"type": "array", "items": {"type": "string"}},
    "filter": {"type": "object"}, "any": {}, "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "place": {"$ref": "#/$defs/Place"}, "mode": {"enum": ["fast", "slow"]}},
    "$defs": {"Place": {"type": "object"}}}}},
  {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}])";

std::shared_ptr<OutputFormat> format_of(OutputSyntax syntax, Start start = Start::kReply) {
  auto format = std::make_shared<OutputFormat>();
  format->syntax = syntax;
  format->start = start;
  format->tools = ToolSchemas(parse_json(kTools).value());
  return format;
}

constexpr OutputSyntax kThinkOnly{ReasoningSyntax::kThink, ToolSyntax::kNone};
constexpr OutputSyntax kHermes{ReasoningSyntax::kThink, ToolSyntax::kHermes};
constexpr OutputSyntax kXml{ReasoningSyntax::kThink, ToolSyntax::kXml};
constexpr OutputSyntax kGlm{ReasoningSyntax::kThink, ToolSyntax::kGlm};
constexpr OutputSyntax kHarmony{ReasoningSyntax::kHarmony, ToolSyntax::kHarmony};

/// Text, or a token that is a marker of harmony. In other formats all is text.
struct Fragment {
  std::string text;
  bool is_marker = false;
};

std::vector<Fragment> fragments_of(const OutputFormat& format, std::string_view reply) {
  std::vector<Fragment> fragments;
  while (!reply.empty()) {
    size_t next = reply.size(), size = 0;
    if (format.syntax.is_harmony())
      for (const OutputMarker& marker : output_markers(format.syntax))
        if (const size_t at = reply.find(marker.text); at < next) next = at, size = marker.text.size();
    if (next > 0) fragments.push_back({std::string(reply.substr(0, next))});
    if (size > 0) fragments.push_back({std::string(reply.substr(next, size)), true});
    reply.remove_prefix(next + size);
  }
  return fragments;
}

bool ends_reply(const OutputFormat& format, std::string_view text) {
  for (const OutputMarker& marker : output_markers(format.syntax))
    if (marker.text == text) return marker.ends_reply;
  return false;
}

/// Pieces of one kind that follow each other, as one.
std::vector<OutputPiece> joined(const std::vector<OutputPiece>& pieces) {
  std::vector<OutputPiece> out;
  for (const OutputPiece& piece : pieces) {
    EXPECT_FALSE(piece.kind != Kind::kToolCall && piece.text.empty()) << "an empty piece";
    if (piece.kind == Kind::kToolCall)
      out.push_back(piece);
    else
      append_output(out, piece.kind, piece.text);
  }
  return out;
}

/// Feeds `reply`, its text cut after each byte that `cuts` names; `is_complete` unless harmony says so
/// itself.
std::vector<OutputPiece> parse_cut(const std::shared_ptr<const OutputFormat>& format, std::string_view reply,
                                   const std::function<bool(size_t)>& cuts, bool is_complete) {
  const std::unique_ptr<OutputParser> parser = make_output_parser(format);
  std::vector<OutputPiece> out;
  size_t position = 0;
  for (const Fragment& fragment : fragments_of(*format, reply)) {
    if (fragment.is_marker && ends_reply(*format, fragment.text)) {
      is_complete = true;
      break;
    }
    if (fragment.is_marker) {
      parser->push_marker(fragment.text, out);
      continue;
    }
    size_t begin = 0;
    for (size_t end = 1; end <= fragment.text.size(); ++end) {
      if (end < fragment.text.size() && !cuts(position++)) continue;
      parser->push(std::string_view(fragment.text).substr(begin, end - begin), out);
      begin = end;
    }
  }
  parser->finish(is_complete, out);
  return joined(out);
}

/// The reply whole, byte by byte, with one cut at every place, and with random cuts; all must agree.
std::vector<OutputPiece> parse(const std::shared_ptr<const OutputFormat>& format, std::string_view reply,
                               bool is_complete = true) {
  const std::vector<OutputPiece> whole = parse_cut(
      format, reply, [](size_t) { return false; }, is_complete);
  const auto check = [&](const std::function<bool(size_t)>& cuts, const std::string& label) {
    EXPECT_EQ(parse_cut(format, reply, cuts, is_complete), whole) << label << " of: " << reply;
  };
  check([](size_t) { return true; }, "bytes");
  for (size_t place = 0; place < reply.size(); ++place)
    check([place](size_t position) { return position == place; }, "cut at " + std::to_string(place));
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    const unsigned share = 2 + random() % 9;
    check([&](size_t) { return random() % share == 0; }, "random cuts");
  }
  return whole;
}

}  // namespace

void PrintTo(const OutputPiece& piece, std::ostream* out) {
  constexpr const char* kNames[] = {"reasoning", "content", "call "};
  *out << kNames[static_cast<int>(piece.kind)] << piece.name << " \"" << piece.text << "\"";
}

namespace {

// Reasoning.

TEST(ThinkParser, SplitsReasoningFromTheAnswer) {
  const auto format = format_of(kThinkOnly);
  EXPECT_THAT(parse(format, "<think>\nWhy?\n\nBecause.\n</think>\n\nYes."),
              ElementsAre(reasoning("Why?\n\nBecause."), content("Yes.")));
  EXPECT_THAT(parse(format, "\n<think>a</think>\nb\n"), ElementsAre(reasoning("a"), content("b\n")));
  EXPECT_THAT(parse(format, "<think></think>b"), ElementsAre(content("b")));
  EXPECT_THAT(parse(format, "<think>\n\n</think>\n\nb"), ElementsAre(content("b")));
}

TEST(ThinkParser, BeginsInsideWhereThePromptOpened) {
  EXPECT_THAT(parse(format_of(kThinkOnly, Start::kReasoning), "a\n</think>\n\nb"),
              ElementsAre(reasoning("a"), content("b")));
  EXPECT_THAT(parse(format_of(kThinkOnly, Start::kReasoningTag), "\na</think>b"),
              ElementsAre(reasoning("a"), content("b")));
  EXPECT_THAT(parse(format_of(kThinkOnly, Start::kReasoningTag), "</think>b"), ElementsAre(content("b")));
}

TEST(ThinkParser, LeavesRepliesWithoutReasoningAsTheyAre) {
  const auto format = format_of(kThinkOnly);
  for (const char* text :
       {"Hello", "\n\nHello ", "</think>", "a <think>b</think>", "<thinking>", "<thin", "<", " \n"})
    EXPECT_THAT(parse(format, text), ElementsAre(content(text)));
  EXPECT_THAT(parse(format, ""), IsEmpty());
  EXPECT_THAT(parse(format_of({}), "<think>a</think>b"), ElementsAre(content("<think>a</think>b")));
}

TEST(ThinkParser, CallsAnUnclosedReplyReasoning) {
  EXPECT_THAT(parse(format_of(kThinkOnly), "<think>\na\n</thin", false), ElementsAre(reasoning("a\n</thin")));
  EXPECT_THAT(parse(format_of(kThinkOnly, Start::kReasoning), "a\n\n", false),
              ElementsAre(reasoning("a\n\n")));
  // A call in there is a thought of one.
  EXPECT_THAT(parse(format_of(kHermes, Start::kReasoning), "<tool_call>{\"name\":\"now\"}</tool_call>"),
              ElementsAre(reasoning("<tool_call>{\"name\":\"now\"}</tool_call>")));
}

TEST(ThinkParser, CutsBetweenTheBytesOfACharacter) {
  EXPECT_THAT(parse(format_of(kThinkOnly), "<think>äöü 🙂</think>日本語 🙂"),
              ElementsAre(reasoning("äöü 🙂"), content("日本語 🙂")));
}

// Hermes.

TEST(HermesParser, FindsCallsBetweenTags) {
  const auto format = format_of(kHermes);
  EXPECT_THAT(parse(format, "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"),
              ElementsAre(call("now", "{}")));
  EXPECT_THAT(
      parse(format,
            "<think>\nr\n</think>\n\nLet me see.\n\n<tool_call>\n{\"name\": \"search\", \"arguments\": "
            "{\"query\": \"a\", \"limit\": 3}}\n</tool_call>\n<tool_call>\n{\"name\": "
            "\"now\"}\n</tool_call>\n"),
      ElementsAre(reasoning("r"), content("Let me see."), call("search", R"({"query": "a", "limit": 3})"),
                  call("now", "{}")));
}

TEST(HermesParser, TakesArgumentsAsTheModelWroteThem) {
  const auto format = format_of(kHermes);
  EXPECT_THAT(
      parse(
          format,
          R"(<tool_call>{"arguments":{"n":123456789012345678901234567890,"x":1.50},"name":"f"}</tool_call>)"),
      ElementsAre(call("f", R"({"n":123456789012345678901234567890,"x":1.50})")));
  EXPECT_THAT(parse(format, R"(<tool_call>{"name":"f","arguments":"{\"a\": 1}"}</tool_call>)"),
              ElementsAre(call("f", R"({"a": 1})")));
  EXPECT_THAT(parse(format, R"(<tool_call>{"name":"f","arguments":null}</tool_call>)"),
              ElementsAre(call("f", "{}")));
  EXPECT_THAT(parse(format, R"(<tool_call>{"name":"f","parameters":{"a":"}\""}}</tool_call>)"),
              ElementsAre(call("f", R"({"a":"}\""})")));
  EXPECT_THAT(
      parse(format, R"(<tool_call>{"name":"f","arguments":{"a":"</tool_call> \"</tool_call>"}}</tool_call>)"),
      ElementsAre(call("f", R"({"a":"</tool_call> \"</tool_call>"})")));
}

TEST(HermesParser, LeavesWhatIsNoCallContent) {
  const auto format = format_of(kHermes);
  for (const char* text :
       {"<tool_call>", "<tool_call>\n{\"name\": \"now\"", "<tool_call>\n{\"name\": \"now\"}\n</tool_cal",
        "<tool_call>{\"name\": 5}</tool_call>", "<tool_call>{\"name\": \"\"}</tool_call>",
        "<tool_call>{\"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}</tool_call>",
        "<tool_call>{'name': 'f'}</tool_call>", "<tool_call>now</tool_call> more", "<tool_call></tool_call>",
        "a <tool_call> b", "</tool_call>", "<tool_cal", "<tool_call>{\"a\": \"</tool_call>",
        "a < b <t <tool <<tool_call", "text \n\n ", "{\"name\": \"now\"}"})
    EXPECT_THAT(parse(format, text), ElementsAre(content(text)));
}

TEST(HermesParser, FindsTheCallAfterOneThatIsNone) {
  EXPECT_THAT(
      parse(
          format_of(kHermes),
          "Use <tool_call> tags: <tool_call>{oops}</tool_call>\n<tool_call>{\"name\": \"now\"}</tool_call>"),
      ElementsAre(content("Use <tool_call> tags: <tool_call>{oops}</tool_call>"), call("now", "{}")));
  EXPECT_THAT(parse(format_of(kHermes), "<tool_call>{\"name\": \"now\"}</tool_call> and done"),
              ElementsAre(call("now", "{}"), content("and done")));
}

TEST(HermesParser, HoldsBackNoMoreWhiteSpaceThanItSays) {
  const std::string space(100, '\n'), one_call = "<tool_call>{\"name\": \"now\"}</tool_call>";
  EXPECT_THAT(parse(format_of(kHermes), "a" + space + one_call),
              ElementsAre(content("a" + space), call("now", "{}")));
  EXPECT_THAT(parse(format_of(kHermes), std::string("a").append(64, '\n') + one_call),
              ElementsAre(content("a"), call("now", "{}")));
  EXPECT_THAT(parse(format_of(kHermes), space + "<think>"), ElementsAre(content(space + "<think>")));
}

TEST(HermesParser, FindsNoCallsWhereNoToolsAreOffered) {
  auto format = format_of(kHermes);
  format->tools = ToolSchemas();
  const std::string text = "a\n<tool_call>{\"name\": \"now\"}</tool_call>";
  EXPECT_THAT(parse(format, text), ElementsAre(content(text)));
}

TEST(HermesParser, EndsAfterAsManyCallsAsAreAllowed) {
  auto format = format_of(kHermes);
  format->max_calls = 1;
  const std::string one_call = "<tool_call>{\"name\": \"now\"}</tool_call>";
  EXPECT_THAT(parse(format, one_call + one_call + "x"), ElementsAre(call("now", "{}")));
  const auto parser = make_output_parser(format);
  std::vector<OutputPiece> out;
  parser->push(one_call.substr(0, one_call.size() - 1), out);
  EXPECT_FALSE(parser->is_done());
  parser->push(">", out);
  EXPECT_TRUE(parser->is_done());
}

TEST(TagParsers, HoldBackOnlyWhatMayBecomeATag) {
  const auto parser = make_output_parser(format_of(kHermes));
  const auto push = [&](std::string_view text) {
    std::vector<OutputPiece> out;
    parser->push(text, out);
    return out;
  };
  EXPECT_THAT(push("Hello"), ElementsAre(content("Hello")));
  EXPECT_THAT(push(" you <"), ElementsAre(content(" you")));
  EXPECT_THAT(push("tool_"), IsEmpty());
  EXPECT_THAT(push("box>"), ElementsAre(content(" <tool_box>")));
  EXPECT_THAT(push("<tool_call>"), IsEmpty());
  EXPECT_THAT(push(" "), IsEmpty());
  EXPECT_THAT(push("is a tag"), ElementsAre(content("<tool_call> is a tag")));
}

// XML.

constexpr char kXmlOpen[] = "<tool_call>\n<function=search>\n", kXmlClose[] = "</function>\n</tool_call>";

std::string xml_call(const std::string& parameters) { return kXmlOpen + parameters + kXmlClose; }
std::string parameter(const std::string& key, const std::string& value) {
  return "<parameter=" + key + ">\n" + value + "\n</parameter>\n";
}

TEST(XmlParser, FindsCallsBetweenTags) {
  EXPECT_THAT(
      parse(format_of(kXml, Start::kReasoning),
            "r\n</think>\n\nc\n\n" + xml_call(parameter("query", "two\nlines") + parameter("limit", "5")) +
                "\n" + "<tool_call>\n<function=now>\n</function>\n</tool_call>"),
      ElementsAre(reasoning("r"), content("c"), call("search", R"({"query": "two\nlines", "limit": 5})"),
                  call("now", "{}")));
  // Without line breaks, as no template writes it but some models do.
  EXPECT_THAT(parse(format_of(kXml),
                    "<tool_call><function=search><parameter=query>a</parameter></function></tool_call>"),
              ElementsAre(call("search", R"({"query": "a"})")));
}

TEST(XmlParser, GivesValuesTheTypesOfTheSchema) {
  const auto arguments = [](const std::string& key, const std::string& value) {
    const auto pieces = parse(format_of(kXml), xml_call(parameter(key, value)));
    EXPECT_EQ(pieces.size(), 1u) << value;
    EXPECT_TRUE(is_json_object(pieces.at(0).text)) << pieces.at(0).text;
    return pieces.at(0).text;
  };
  EXPECT_EQ(arguments("query", "5"), R"({"query": "5"})");
  EXPECT_EQ(arguments("query", " \n a\"b\\ \n"), R"({"query": " \n a\"b\\ \n"})");
  EXPECT_EQ(arguments("query", "NULL"), R"({"query": null})");
  EXPECT_EQ(arguments("limit", "3.0"), R"({"limit": 3})");
  EXPECT_EQ(arguments("limit", "-007"), R"({"limit": -7})");
  EXPECT_EQ(arguments("limit", "123456789012345678901234567890"),
            R"({"limit": 123456789012345678901234567890})");
  EXPECT_EQ(arguments("limit", "many"), R"({"limit": "many"})");
  EXPECT_EQ(arguments("ratio", "0.50"), R"({"ratio": 0.50})");
  EXPECT_EQ(arguments("ratio", "+.5"), R"({"ratio": 0.5})");
  EXPECT_EQ(arguments("ratio", "nan"), R"({"ratio": "nan"})");
  EXPECT_EQ(arguments("exact", "True"), R"({"exact": true})");
  EXPECT_EQ(arguments("exact", "false"), R"({"exact": false})");
  EXPECT_EQ(arguments("tags", R"(["a", "b"])"), R"({"tags": ["a", "b"]})");
  EXPECT_EQ(arguments("tags", "['a', None]"), R"({"tags": ["a", null]})");
  EXPECT_EQ(arguments("filter", "{'a': True, \"b\": (1, 2.5)}"), R"({"filter": {"a": true, "b": [1, 2.5]}})");
  EXPECT_EQ(arguments("filter", "{a}"), R"({"filter": "{a}"})");
  EXPECT_EQ(arguments("place", R"({"x": 1})"), R"({"place": {"x": 1}})");
  EXPECT_EQ(arguments("any", "False"), R"({"any": false})");
  EXPECT_EQ(arguments("any", "plain"), R"({"any": "plain"})");
  EXPECT_EQ(arguments("maybe", "4"), R"({"maybe": 4})");
  EXPECT_EQ(arguments("maybe", "null"), R"({"maybe": null})");
  EXPECT_EQ(arguments("mode", "fast"), R"({"mode": "fast"})");
  EXPECT_EQ(arguments("unknown", "4"), R"({"unknown": "4"})");
}

TEST(XmlParser, TakesTheLastOfEqualParameters) {
  EXPECT_THAT(parse(format_of(kXml),
                    xml_call(parameter("limit", "1") + parameter("query", "a") + parameter("limit", "2"))),
              ElementsAre(call("search", R"({"limit": 2, "query": "a"})")));
}

TEST(XmlParser, LeavesWhatIsNoCallContent) {
  const auto format = format_of(kXml);
  for (const std::string& text :
       {std::string("<tool_call>\n<function=search>\n<parameter=query>\na"),
        std::string("<tool_call>\n<func"), std::string("<tool_call>\n<function=>\n</function>\n</tool_call>"),
        std::string("<tool_call>\n<function=a\nb>\n</function>\n</tool_call>"),
        std::string("<tool_call>\n<function=search>\n<parameter=query>\na\n</function>\n</tool_call>"),
        std::string("<tool_call>\n<function=search>\n<parameter=query>\na\n</parameter>\n</tool_call>"),
        std::string("<tool_call>\n{\"name\": \"now\"}\n</tool_call>"), xml_call("stray "),
        xml_call(parameter("query", "a</parameter> b")), std::string("<function=now>\n</function>")})
    EXPECT_THAT(parse(format, text), ElementsAre(content(text)));
}

// GLM.

TEST(GlmParser, FindsCallsWithAndWithoutLineBreaks) {
  const auto format = format_of(kGlm);
  EXPECT_THAT(
      parse(format,
            "\n<think>r</think>\nc\n<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>a b</arg_value>\n"
            "<arg_key>limit</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"),
      ElementsAre(reasoning("r"), content("c"), call("search", R"({"query": "a b", "limit": 3})")));
  EXPECT_THAT(
      parse(format_of(kGlm, Start::kReasoningTag),
            "r</think>c<tool_call>search<arg_key>query</arg_key><arg_value> 1 </arg_value></tool_call>"
            "<tool_call>now</tool_call>"),
      ElementsAre(reasoning("r"), content("c"), call("search", R"({"query": " 1 "})"), call("now", "{}")));
  EXPECT_THAT(
      parse(format, "<tool_call>search\\n<arg_key>limit</arg_key>\\n<arg_value>3</arg_value>\\n</tool_call>"),
      ElementsAre(call("search", R"({"limit": 3})")));
}

TEST(TagParsers, GiveUpOnACallThatDoesNotBegin) {
  const std::string space(1000, ' ');
  for (const OutputSyntax& syntax : {kHermes, kXml, kGlm})
    for (const std::string& text : {"<tool_call>" + space + "{", "<tool_call>now" + space + "</tool_call>"})
      EXPECT_THAT(parse(format_of(syntax), text), ElementsAre(content(text)));
}

TEST(GlmParser, ReadsValuesAsJsonUnlessTheyAreStrings) {
  const auto value = [](const std::string& key, const std::string& text) {
    return parse(format_of(kGlm), "<tool_call>search<arg_key>" + key + "</arg_key><arg_value>" + text +
                                      "</arg_value></tool_call>")
        .at(0)
        .text;
  };
  EXPECT_EQ(value("query", "null"), R"({"query": "null"})");
  EXPECT_EQ(value("exact", "true"), R"({"exact": true})");
  EXPECT_EQ(value("any", " [1, 2] "), R"({"any": [1, 2]})");
  EXPECT_EQ(value("filter", "{'a': 1}"), R"({"filter": {"a": 1}})");
  EXPECT_EQ(value("unknown", "two words"), R"({"unknown": "two words"})");
}

TEST(GlmParser, LeavesWhatIsNoCallContent) {
  const auto format = format_of(kGlm);
  for (const char* text :
       {"<tool_call>now", "<tool_call>search<arg_key>query</arg_key>", "<tool_call></tool_call>",
        "the <tool_call> tag is", "<tool_call>search<arg_key>query</arg_key></tool_call>",
        "<tool_call>search<b></tool_call>",
        "<tool_call>search<arg_key>query</arg_key>x<arg_value>1</arg_value></tool_call>",
        "<tool_call>search<arg_key>query</arg_key><arg_value>1</arg_value>x</tool_call>"})
    EXPECT_THAT(parse(format, text), ElementsAre(content(text)));
}

// Llama.

TEST(LlamaParser, TakesAnAnswerThatIsNothingButCalls) {
  const auto format = format_of({ReasoningSyntax::kNone, ToolSyntax::kLlama});
  EXPECT_THAT(parse(format, R"({"name": "search", "parameters": {"query": "a } b"}})"),
              ElementsAre(call("search", R"({"query": "a } b"})")));
  EXPECT_THAT(
      parse(format,
            "\n{\"type\": \"function\", \"name\": \"now\", \"parameters\": {}}; {\"name\": \"now\"}\n"),
      ElementsAre(call("now", "{}"), call("now", "{}")));
  EXPECT_THAT(parse(format_of({ReasoningSyntax::kThink, ToolSyntax::kLlama}),
                    "<think>r</think>\n{\"name\": \"now\"}"),
              ElementsAre(reasoning("r"), call("now", "{}")));
}

TEST(LlamaParser, LeavesWhatIsNoCallContent) {
  const auto format = format_of({ReasoningSyntax::kNone, ToolSyntax::kLlama});
  for (const char* text :
       {"Hello {\"name\": \"now\"}", "{\"name\": \"now\"} Hello", "{\"name\": \"now\"", "{\"name\": 5}",
        "{\"answer\": 5}", "{", "  ", "[1]", "{\"name\": \"now\"}}", "{\"name\": \"now\"};;"})
    EXPECT_THAT(parse(format, text), ElementsAre(content(text)));
  const char* cut_off = "{\"name\": \"now\"}";
  EXPECT_THAT(parse(format, cut_off, false), ElementsAre(content(cut_off)));
}

TEST(LlamaParser, HoldsBackOnlyWhatMayBecomeACall) {
  const auto parser = make_output_parser(format_of({ReasoningSyntax::kNone, ToolSyntax::kLlama}));
  std::vector<OutputPiece> out;
  parser->push("{\"na", out);
  EXPECT_THAT(out, IsEmpty());
  parser->push("tion\": 1", out);
  EXPECT_THAT(out, ElementsAre(content("{\"nation\": 1")));
}

// Harmony.

const auto kHarmonyFormat = [] { return format_of(kHarmony, Start::kHarmonyHeader); };

TEST(HarmonyParser, SplitsChannels) {
  EXPECT_THAT(parse(kHarmonyFormat(),
                    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi "
                    "ü<|return|>"),
              ElementsAre(reasoning("Hm."), content("Hi ü")));
  EXPECT_THAT(
      parse(kHarmonyFormat(),
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>"
            "<|start|>assistant<|channel|>commentary<|message|>c<|end|><|start|>assistant<|channel|>final"
            "<|message|>d<|return|>"),
      ElementsAre(reasoning("a\n\nb"), content("c\n\nd")));
}

TEST(HarmonyParser, FindsCallsWithEitherOrderOfTheHeader) {
  const std::string arguments = R"({"query": "a", "limit": 1})";
  for (const char* header :
       {"<|channel|>commentary to=functions.search <|constrain|>json",
        "<|channel|>commentary to=functions.search<|constrain|>json",
        " to=functions.search<|channel|>commentary <|constrain|>json",
        " to=functions.search<|channel|>commentary json", "<|channel|>commentary to=functions.search code",
        "<|channel|>commentary to=functions.search", "<|channel|>analysis to=functions.search json",
        "<|channel|>commentary to=search json", "<|channel|>commentary functions.search json",
        "<|start|>assistant to=functions.search<|channel|>commentary json"})
    EXPECT_THAT(parse(kHarmonyFormat(), header + ("<|message|>" + arguments) + "<|call|>"),
                ElementsAre(call("search", arguments)))
        << header;
  EXPECT_THAT(parse(kHarmonyFormat(), "<|channel|>commentary to=functions.now<|message|><|call|>"),
              ElementsAre(call("now", "{}")));
}

TEST(HarmonyParser, LeavesWhatIsNoCallContent) {
  const std::string header = "<|channel|>commentary to=functions.search <|constrain|>json<|message|>";
  EXPECT_THAT(parse(kHarmonyFormat(), header + "{\"query\": \"a", false),
              ElementsAre(content("commentary to=functions.search  json {\"query\": \"a")));
  EXPECT_THAT(parse(kHarmonyFormat(), header + "[1]<|call|>"),
              ElementsAre(content("commentary to=functions.search  json [1]")));
  auto without_tools = kHarmonyFormat();
  without_tools->tools = ToolSchemas();
  EXPECT_THAT(parse(without_tools, header + "{}<|call|>"),
              ElementsAre(content("commentary to=functions.search  json {}")));
}

TEST(HarmonyParser, SuppliesWhatAModelForgot) {
  EXPECT_THAT(parse(kHarmonyFormat(),
                    "<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b"),
              ElementsAre(reasoning("a"), content("b")));
  EXPECT_THAT(
      parse(kHarmonyFormat(), "<|channel|>analysis<|message|>a<|channel|>final<|message|>b<|return|>"),
      ElementsAre(reasoning("a"), content("b")));
  EXPECT_THAT(parse(kHarmonyFormat(), "<|message|>b<|return|>"), ElementsAre(content("b")));
  EXPECT_THAT(parse(kHarmonyFormat(), "Just text."), ElementsAre(content("Just text.")));
  EXPECT_THAT(parse(kHarmonyFormat(), "<|channel|>final Hello there<|return|>"),
              ElementsAre(content("Hello there")));
}

TEST(HarmonyParser, DropsAHeaderThatIsCutOff) {
  EXPECT_THAT(parse(kHarmonyFormat(), "<|channel|>analysis", false), IsEmpty());
  EXPECT_THAT(parse(kHarmonyFormat(), "<|channel|>analysis<|message|>a<|end|><|start|>assistant", false),
              ElementsAre(reasoning("a")));
  EXPECT_THAT(parse(kHarmonyFormat(), "<|channel|>analysis<|message|>a<|end|>"), ElementsAre(reasoning("a")));
}

TEST(HarmonyParser, TakesMarkersThatAreNoTokensForText) {
  const auto parser = make_output_parser(kHarmonyFormat());
  std::vector<OutputPiece> out;
  parser->push_marker("<|channel|>", out);
  parser->push("final", out);
  parser->push_marker("<|message|>", out);
  parser->push("write <|end|> at the end", out);
  parser->finish(true, out);
  EXPECT_THAT(joined(out), ElementsAre(content("write <|end|> at the end")));
}

TEST(HarmonyParser, ShowsReasoningAsContentWhereNoneIsWanted) {
  EXPECT_THAT(parse(format_of({ReasoningSyntax::kNone, ToolSyntax::kHarmony}, Start::kHarmonyHeader),
                    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi<"
                    "|return|>"),
              ElementsAre(content("Hm.\n\nHi")));
}

// Values.

TEST(PythonLiterals, AreReadAsPythonReadsThem) {
  const auto read = [](std::string_view text) {
    const auto value = parse_python_literal(text);
    return value ? dump_json(*value) : "none";
  };
  EXPECT_EQ(read("{'a': [1, -2.5, 'x\\'y\\n'], \"b\": (None, True,), }"),
            R"({"a":[1,-2.5,"x'y\n"],"b":[null,true]})");
  EXPECT_EQ(read("()"), "[]");
  EXPECT_EQ(read("(1)"), "1");
  EXPECT_EQ(read("(1,)"), "[1]");
  EXPECT_EQ(read("'\\u00e4\\d'"), "\"ä\\\\d\"");
  for (const char* text : {"", "[1, 2", "[1 2]", "{'a' 1}", "{1: 2}", "{'a': }", "'a", "true", "1 2", "a",
                           "[,]", "'\\u12'", "12345678901234567890123", "1e999", "inf", "'a\nb'", "'\\x41'"})
    EXPECT_EQ(read(text), "none") << text;
  EXPECT_EQ(read(std::string(100, '[') + std::string(100, ']')), "none");
  EXPECT_EQ(read(std::string(20, '[') + std::string(20, ']')), std::string(20, '[') + std::string(20, ']'));
}

TEST(JsonMembers, AreTakenWithTheirOwnSpelling) {
  const std::string_view object =
      R"({ "a" : [1, {"b": 2}] , "b\"": "}", "\u0061rguments": {"x": "{,}"}, "a": 1.50 })";
  EXPECT_EQ(json_member_text(object, "a"), "1.50");
  EXPECT_EQ(json_member_text(object, "b\""), "\"}\"");
  EXPECT_EQ(json_member_text(object, "arguments"), R"({"x": "{,}"})");
  EXPECT_FALSE(json_member_text(object, "b").has_value());
  EXPECT_FALSE(json_member_text("{}", "a").has_value());
}

}  // namespace
}  // namespace tensorfold
