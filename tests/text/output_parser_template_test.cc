// Calls and reasoning as the published templates of the supported families write them come back from the
// parser with the same name, the same arguments and the same text, and the parser is the one that the
// template tells.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/shared_data.h"
#include "text/chat_template.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace tensorfold {
namespace {

namespace fs = std::filesystem;

const fs::path kTemplates = fs::path(kSharedData) / "chat-templates";

std::shared_ptr<const ChatTemplate> load_template(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path << " is missing";
  std::ostringstream text;
  text << file.rdbuf();
  return ChatTemplate::parse(std::move(text).str(), path.filename().string()).value();
}

/// A tokenizer that knows these tokens and no other.
std::shared_ptr<const Tokenizer> tokenizer_of(const std::vector<std::string>& tokens) {
  Json added = Json::array();
  for (const std::string& token : tokens) {
    Json entry = Json::object();
    entry.set("id", static_cast<int64_t>(added.as_array().size()));
    entry.set("content", token);
    for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized", "special"})
      entry.set(flag, false);
    added.push_back(std::move(entry));
  }
  Json json =
      *parse_json(R"({"version": "1.0", "normalizer": null, "pre_tokenizer": null, "post_processor": null,
      "decoder": null, "model": {"type": "BPE", "vocab": {}, "merges": []}})");
  json.set("added_tokens", std::move(added));
  return Tokenizer::parse(dump_json(json)).value();
}

const std::vector<std::string> kHarmonyTokens = {"<|start|>", "<|end|>",       "<|message|>", "<|channel|>",
                                                 "<|call|>",  "<|constrain|>", "<|return|>"};

OutputSyntax syntax_of(const ChatTemplate& chat_template) {
  return detect_output_syntax(chat_template.source(), *tokenizer_of(kHarmonyTokens));
}

TEST(OutputSyntaxDetection, KnowsThePublishedTemplates) {
  TF_SKIP_WITHOUT_SHARED_DATA();
  using R = ReasoningSyntax;
  using T = ToolSyntax;
  const std::pair<const char*, OutputSyntax> kExpected[] = {
      {"Qwen-Qwen2.5-7B-Instruct", {R::kNone, T::kHermes}},
      {"Qwen-Qwen3-0.6B", {R::kThink, T::kHermes}},
      {"Qwen-QwQ-32B", {R::kThink, T::kHermes}},
      {"Qwen3.5-4B", {R::kThink, T::kXml}},
      {"qwen38_chat_template", {R::kThink, T::kXml}},
      {"NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {R::kThink, T::kXml}},
      {"stepfun-ai-Step-3.5-Flash", {R::kThink, T::kXml}},
      {"GLM-4.6", {R::kThink, T::kGlm}},
      {"GLM-4.7-Flash", {R::kThink, T::kGlm}},
      {"openai-gpt-oss-120b", {R::kHarmony, T::kHarmony}},
      {"NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", {R::kNone, T::kHermes}},
      {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", {R::kNone, T::kHermes}},
      {"MiMo-VL", {R::kNone, T::kHermes}},
      {"smollm3", {R::kThink, T::kHermes}},
      {"HuggingFaceTB-SmolLM3-3B", {R::kThink, T::kNone}},
      {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", {R::kThink, T::kNone}},
      {"meta-llama-Llama-3.1-8B-Instruct", {R::kNone, T::kLlama}},
      {"meta-llama-Llama-3.2-3B-Instruct", {R::kNone, T::kLlama}},
      {"meta-llama-Llama-3.3-70B-Instruct", {R::kNone, T::kLlama}},
      {"CohereForAI-c4ai-command-r-plus-tool_use", {R::kNone, T::kNone}},
      {"mistralai-Mistral-Nemo-Instruct-2407", {R::kNone, T::kNone}},
      {"moonshotai-Kimi-K2", {R::kNone, T::kNone}},
      {"unsloth-Apriel-1.5", {R::kNone, T::kNone}},
      {"ByteDance-Seed-OSS", {R::kNone, T::kNone}},
      {"google-gemma-2-2b-it", {R::kNone, T::kNone}},
      {"chatml", {R::kNone, T::kNone}}};
  for (const auto& [name, expected] : kExpected)
    EXPECT_EQ(syntax_of(*load_template(kTemplates / (std::string(name) + ".jinja"))), expected) << name;
}

TEST(OutputSyntaxDetection, LooksForThinkTagsInTheTokenizerToo) {
  const auto thinking = tokenizer_of({"<think>", "</think>"});
  EXPECT_EQ(detect_output_syntax("{{ messages }}", *thinking).reasoning, ReasoningSyntax::kThink);
  EXPECT_EQ(detect_output_syntax("{{ messages }}", *tokenizer_of({"<think>"})).reasoning,
            ReasoningSyntax::kNone);
}

TEST(OutputSyntaxDetection, IsOverruledByNames) {
  const auto harmony = tokenizer_of(kHarmonyTokens), plain = tokenizer_of({});
  const std::string source = "<|channel|> <|message|>";
  const auto choose = [&](std::string_view reasoning, std::string_view tools, const Tokenizer& tokenizer) {
    return choose_output_syntax(reasoning, tools, source, tokenizer);
  };
  EXPECT_EQ(*choose("auto", "auto", *harmony),
            (OutputSyntax{ReasoningSyntax::kHarmony, ToolSyntax::kHarmony}));
  EXPECT_EQ(*choose("none", "auto", *harmony), (OutputSyntax{ReasoningSyntax::kNone, ToolSyntax::kHarmony}));
  EXPECT_EQ(*choose("none", "none", *harmony), OutputSyntax());
  EXPECT_EQ(*choose("think", "glm", *plain), (OutputSyntax{ReasoningSyntax::kThink, ToolSyntax::kGlm}));
  EXPECT_EQ(*choose("none", "xml", *plain), (OutputSyntax{ReasoningSyntax::kNone, ToolSyntax::kXml}));
  EXPECT_EQ(*choose("auto", "hermes", *plain), (OutputSyntax{ReasoningSyntax::kNone, ToolSyntax::kHermes}));
  for (const auto& [reasoning, tools] : {std::pair("think", "auto"), std::pair("auto", "glm")})
    EXPECT_THAT(choose(reasoning, tools, *harmony).status().message(), testing::HasSubstr("harmony"));
  for (const std::string_view name : kToolParserNames) {
    if (name == "auto" || name == "harmony") continue;
    EXPECT_EQ(parser_name(choose("none", name, *plain)->tools), name);
  }
  for (const std::string_view name : {"none", "think"})
    EXPECT_EQ(parser_name(choose(name, "none", *plain)->reasoning), name);
  EXPECT_EQ(parser_name(choose("harmony", "harmony", *harmony)->tools), "harmony");
  EXPECT_EQ(parser_name(choose("harmony", "harmony", *harmony)->reasoning), "harmony");
  EXPECT_THAT(choose("harmony", "auto", *plain).status().message(), testing::HasSubstr("<|channel|>"));
  EXPECT_THAT(choose("thinking", "auto", *plain).status().message(), testing::HasSubstr("'thinking'"));
}

TEST(PromptTail, TellsWhereTheReplyBegins) {
  using Start = OutputFormat::Start;
  const OutputSyntax think{ReasoningSyntax::kThink, ToolSyntax::kNone};
  EXPECT_EQ(read_prompt_tail("<|im_start|>assistant\n", think), Start::kReply);
  EXPECT_EQ(read_prompt_tail("<|im_start|>assistant\n<think>\n", think), Start::kReasoning);
  EXPECT_EQ(read_prompt_tail("<|assistant|><think>", think), Start::kReasoningTag);
  EXPECT_EQ(read_prompt_tail("<think>\n\n</think>\n\n", think), Start::kReply);
  EXPECT_EQ(read_prompt_tail("", think), Start::kReply);
  EXPECT_EQ(read_prompt_tail("<think>\n", {ReasoningSyntax::kNone, ToolSyntax::kXml}), Start::kReply);
  EXPECT_EQ(read_prompt_tail("<|start|>assistant", {ReasoningSyntax::kHarmony, ToolSyntax::kHarmony}),
            Start::kHarmonyHeader);
}

// Round trips.

const char kTools[] = R"([
  {"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": {"type": "object",
    "properties": {
      "city": {"type": "string", "description": "c"}, "days": {"type": "integer", "description": "d"},
      "scale": {"type": "number", "description": "s"}, "detailed": {"type": "boolean", "description": "b"},
      "tags": {"type": "array", "items": {"type": "string"}, "description": "t"},
      "options": {"type": "object", "description": "o"}, "extra": {"description": "e"}},
    "required": ["city"]}}},
  {"type": "function", "function": {"name": "now", "description": "Time.",
    "parameters": {"type": "object", "properties": {}}}}])";

/// Arguments of get_weather.
const char* const kArguments[] = {
    R"({"city": "Rome"})",
    R"({"city": "São Paulo 🌧", "days": 3, "scale": 2.5, "detailed": true})",
    R"({"city": "5", "days": -12, "scale": 1e-05, "detailed": false, "tags": ["a", "b \"c\""], "options": {}})",
    R"({"city": "line one\n  line two\n\n\tthree", "options": {"deep": {"er": [1, 2.0, null, true, "x"]}}})",
    R"({"city": "  spaces  ", "extra": null, "tags": []})",
    R"({"city": "<b>\\n & \"quotes\" 'single' {json: [1]}", "extra": [1, {"a": "b"}]})"};

/// What a template can be asked to write.
struct Family {
  const char* name;
  bool has_reasoning;
  bool has_content_with_calls = true;
  bool has_several_calls = true;
};

const Family kFamilies[] = {{"Qwen-Qwen2.5-7B-Instruct", false},
                            {"Qwen-Qwen3-0.6B", true},
                            {"Qwen3.5-4B", true},
                            {"qwen38_chat_template", true},
                            {"NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", true},
                            {"GLM-4.6", true},
                            {"GLM-4.7-Flash", true},
                            {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", false, false},
                            {"meta-llama-Llama-3.2-3B-Instruct", false, false, false},
                            {"openai-gpt-oss-120b", true, false, false}};

Json make_message(const Json& reasoning, const Json& content, const Json& calls) {
  Json message = Json::object();
  message.set("role", "assistant");
  message.set("content", content);
  if (!reasoning.is_null()) message.set("reasoning_content", reasoning);
  if (!calls.as_array().empty()) message.set("tool_calls", calls);
  return message;
}

Json make_call(std::string_view name, std::string_view arguments) {
  Json function = Json::object();
  function.set("name", name);
  function.set("arguments", *parse_json(arguments));
  Json call = Json::object();
  call.set("type", "function");
  call.set("id", "call_1");
  call.set("function", std::move(function));
  return call;
}

std::string render(const ChatTemplate& chat_template, const Json::Array& messages, bool is_prompt) {
  ChatTemplate::Input input;
  input.messages = prepare_messages(Json(messages), chat_template).value();
  input.tools = *parse_json(kTools);
  input.add_generation_prompt = is_prompt;
  input.now = *parse_chat_date("2025-06-30");
  input.special_tokens = {{"bos_token", Json("<s>")}};
  const Result<std::string> text = chat_template.render(input);
  EXPECT_TRUE(text.ok()) << (text.ok() ? "" : text.status().message());
  return text.ok() ? *text : "";
}

/// Feeds a rendered assistant turn up to the token that ends it.
std::vector<OutputPiece> parse_turn(const std::shared_ptr<const OutputFormat>& format, std::string text) {
  for (const char* end : {"<|im_end|>", "<|observation|>", "<|eot_id|>"})
    text = text.substr(0, text.find(end));
  const auto parser = make_output_parser(format);
  std::vector<OutputPiece> out;
  for (std::string_view rest = text; !rest.empty();) {
    size_t next = rest.size(), size = 0;
    for (const OutputMarker& marker : output_markers(format->syntax))
      if (const size_t at = rest.find(marker.text); at < next) next = at, size = marker.text.size();
    if (next > 0) parser->push(rest.substr(0, next), out);
    const std::string_view marker = rest.substr(next, size);
    if (marker == "<|call|>" || marker == "<|return|>") break;
    if (size > 0) parser->push_marker(marker, out);
    rest.remove_prefix(next + size);
  }
  parser->finish(true, out);
  return out;
}

class RoundTrip : public testing::TestWithParam<Family> {
 protected:
  void check(const Json& reasoning, const Json& content, const Json& calls) {
    const auto chat_template = load_template(kTemplates / (std::string(GetParam().name) + ".jinja"));
    const Json user = *parse_json(R"({"role": "user", "content": "Weather?"})");
    const std::string prompt = render(*chat_template, {user}, true);
    const std::string whole = render(*chat_template, {user, make_message(reasoning, content, calls)}, false);
    auto format = std::make_shared<OutputFormat>();
    format->syntax = syntax_of(*chat_template);
    format->tools = ToolSchemas(*parse_json(kTools));
    format->start = read_prompt_tail(prompt, format->syntax);
    ASSERT_TRUE(whole.starts_with(prompt)) << prompt << "\n---\n" << whole;
    compare(parse_turn(format, whole.substr(prompt.size())), reasoning, content, calls);
  }

  static void compare(const std::vector<OutputPiece>& pieces, const Json& reasoning, const Json& content,
                      const Json& calls) {
    std::string found_reasoning, found_content;
    std::vector<OutputPiece> found;
    for (const OutputPiece& piece : pieces) {
      if (piece.kind == OutputPiece::Kind::kReasoning) found_reasoning += piece.text;
      if (piece.kind == OutputPiece::Kind::kContent) found_content += piece.text;
      if (piece.kind == OutputPiece::Kind::kToolCall) found.push_back(piece);
    }
    EXPECT_EQ(found_reasoning, reasoning.is_null() ? "" : reasoning.as_string());
    EXPECT_EQ(found_content, content.is_null() ? "" : content.as_string());
    ASSERT_EQ(found.size(), calls.as_array().size()) << found_content;
    for (size_t i = 0; i < found.size(); ++i) {
      const Json& function = *calls.as_array()[i].find("function");
      EXPECT_EQ(found[i].name, function.find("name")->as_string());
      const Result<Json> arguments = parse_json(found[i].text);
      ASSERT_TRUE(arguments.ok()) << found[i].text;
      EXPECT_EQ(dump_json(*arguments), dump_json(*function.find("arguments")));
    }
  }
};

TEST_P(RoundTrip, BringsBackEachCall) {
  TF_SKIP_WITHOUT_SHARED_DATA();
  const Json reasoning = GetParam().has_reasoning ? Json("First this.\n\nThen that.") : Json();
  for (const char* arguments : kArguments) {
    SCOPED_TRACE(arguments);
    check(reasoning, "", Json(Json::Array{make_call("get_weather", arguments)}));
  }
  check(reasoning, "", Json(Json::Array{make_call("now", "{}")}));
}

TEST_P(RoundTrip, BringsBackSeveralCallsAndTheContentBeforeThem) {
  TF_SKIP_WITHOUT_SHARED_DATA();
  const Json reasoning = GetParam().has_reasoning ? Json("Hm.") : Json();
  Json calls = Json::array();
  calls.push_back(make_call("get_weather", kArguments[1]));
  if (GetParam().has_several_calls) calls.push_back(make_call("now", "{}"));
  if (GetParam().has_several_calls) calls.push_back(make_call("get_weather", kArguments[0]));
  check(reasoning, GetParam().has_content_with_calls ? "Let me look." : "", calls);
}

TEST_P(RoundTrip, BringsBackAnAnswer) {
  TF_SKIP_WITHOUT_SHARED_DATA();
  check(GetParam().has_reasoning ? Json("Hm.") : Json(), "It is sunny.\n\nBye < 5 & </b>.", Json::array());
}

std::string family_name(const testing::TestParamInfo<Family>& info) {
  std::string name = info.param.name;
  std::erase_if(name, [](unsigned char c) { return std::isalnum(c) == 0; });
  return name;
}
INSTANTIATE_TEST_SUITE_P(Published, RoundTrip, testing::ValuesIn(kFamilies), family_name);

}  // namespace
}  // namespace tensorfold
