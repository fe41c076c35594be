// What surrounds the template language: variables, errors, a model folder's files, messages as requests send
// them, dates, continuing a message, and rendering from several threads.
#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/shared_data.h"

namespace tensorfold {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::shared_ptr<const ChatTemplate> compile(std::string source) {
  Result<std::shared_ptr<const ChatTemplate>> compiled = ChatTemplate::parse(std::move(source), "test");
  EXPECT_TRUE(compiled.ok()) << (compiled.ok() ? "" : compiled.status().message());
  return compiled.ok() ? *compiled : nullptr;
}

Json json(std::string_view text) {
  Result<Json> value = parse_json(text);
  EXPECT_TRUE(value.ok()) << text;
  return value.ok() ? *value : Json();
}

std::string render(const std::string& source, const ChatTemplate::Input& input) {
  const Result<std::string> text = compile(source)->render(input);
  return text.ok() ? *text : text.status().message();
}

ChatTemplate::Input with_messages(std::string_view messages) {
  ChatTemplate::Input input;
  input.messages = json(messages);
  return input;
}

// ---- Variables and errors ----

TEST(ChatTemplate, SeesItsVariablesAndNothingElse) {
  ChatTemplate::Input input = with_messages(R"([{"role": "user"}])");
  const std::string source =
      "{{ messages|length }} {{ tools is none }} {{ documents is none }} {{ add_generation_prompt }} {{ "
      "bos_token }} "
      "{{ eos_token is defined }} {{ enable_thinking is defined }}";
  EXPECT_EQ(render(source, input), "1 True True False  False False");
  input.tools = json("[1, 2]");
  input.documents = json("[3]");
  input.add_generation_prompt = true;
  input.special_tokens = {{"bos_token", Json("<s>")}};
  input.kwargs = {{"enable_thinking", Json(false)}};
  EXPECT_EQ(render(source, input), "1 False False True <s> False True");
}

TEST(ChatTemplate, KwargsWinOverSpecialTokensAndCannotReplaceTheMessages) {
  ChatTemplate::Input input = with_messages("[]");
  input.special_tokens = {{"bos_token", Json("<s>")}};
  input.kwargs = {{"bos_token", Json("<mine>")}};
  EXPECT_EQ(render("{{ bos_token }}", input), "<mine>");
  for (const char* name : {"messages", "tools", "documents", "add_generation_prompt"}) {
    input.kwargs = {{name, Json(1)}};
    EXPECT_EQ(render("x", input), std::string("chat_template_kwargs must not contain '") + name + "'");
  }
}

TEST(ChatTemplate, NumbersKeepTheirKind) {
  ChatTemplate::Input input = with_messages(R"([1, 1.0, 1e2, 18446744073709551615, -0.0, true, null, "a"])");
  EXPECT_EQ(render("{{ messages|tojson }} {{ messages }}", input),
            "[1, 1.0, 100.0, 18446744073709551615, -0.0, true, null, \"a\"] "
            "[1, 1.0, 100.0, 18446744073709551615, -0.0, True, None, 'a']");
}

TEST(ChatTemplate, ErrorsNameTheTemplateTheLineAndTheReason) {
  const auto error = [](std::string source) {
    const auto compiled = ChatTemplate::parse(std::move(source), "test");
    EXPECT_FALSE(compiled.ok());
    EXPECT_EQ(compiled.status().code(), StatusCode::kInvalidArgument);
    return compiled.status().message();
  };
  EXPECT_EQ(error("a\nb\n{{ x y }}"),
            "chat template 'test' line 3: expected token 'end of print statement', got 'y'");
  EXPECT_EQ(error("{% if x %}\n\n"),
            "chat template 'test' line 2: Unexpected end of template. Jinja was looking for "
            "the following tags: 'elif' or 'else' or 'endif'. The innermost block that "
            "needs to be closed is 'if'.");
  EXPECT_EQ(error("\n{{ x|nope }}"), "chat template 'test' line 2: No filter named 'nope'.");
  EXPECT_EQ(error("\n\xff"), "chat template 'test' line 2: the text is not valid UTF-8 (byte 1)");

  const ChatTemplate::Input input = with_messages("[]");
  EXPECT_EQ(render("\n{% if true %}\n{{ raise_exception('No ' ~ 'way') }}\n{% endif %}", input),
            "chat template 'test' line 3: raise_exception: No way");
  EXPECT_EQ(render("\n\n{{ a.b.c }}", input), "chat template 'test' line 3: 'a' is undefined");
  EXPECT_EQ(render("{%- set x = {} %}\n{%- for i in [1] %}\n  {{- x.y.z }}{% endfor %}", input),
            "chat template 'test' line 3: 'dict object' has no attribute 'y'");
  EXPECT_EQ(render("{% macro m(x) %}\n{{ x + 1 }}\n{% endmacro %}\n{{ m('a') }}", input),
            "chat template 'test' line 2: unsupported operand type(s) for +: 'str' and 'int'");
  EXPECT_EQ(render("{% macro m() %}\n\nxyz{% endmacro %}\n{% set a, b = m() %}", input),
            "chat template 'test' line 4: too many values to unpack (expected 2)");
  EXPECT_EQ(render("{{ '\\ud800' }}", input),
            "chat template 'test' line 1: the rendered text has a lone surrogate and cannot be UTF-8");
}

// ---- Time ----

TEST(ChatTemplate, PrintsTheGivenTimeWhateverTheTimeZone) {
  ChatTemplate::Input input = with_messages("[]");
  const std::string source = "{{ strftime_now('%Y-%m-%d %H:%M:%S %A %j') }}";
  input.now = *parse_chat_date("2024-02-29");
  EXPECT_EQ(render(source, input), "2024-02-29 00:00:00 Thursday 060");
  input.now = *parse_chat_date("1999-12-31T23:59:58");
  EXPECT_EQ(render(source, input), "1999-12-31 23:59:58 Friday 365");
  for (const char* zone : {"UTC", "America/New_York", "Asia/Tokyo"}) {
    setenv("TZ", zone, 1);
    tzset();
    EXPECT_EQ(render(source, input), "1999-12-31 23:59:58 Friday 365") << zone;
  }
  unsetenv("TZ");
  tzset();
}

TEST(ChatTemplate, WithoutAGivenTimeTheClockIsReadOncePerRender) {
  const ChatTemplate::Input input = with_messages("[]");
  EXPECT_EQ(render("{% set a = strftime_now('%s%Y') %}{% for i in range(20000) %}{% endfor %}"
                   "{{ a == strftime_now('%s%Y') }}{{ a|int > 17000000000000 }}",
                   input),
            "TrueTrue");
}

TEST(ChatTemplate, DatesAreChecked) {
  for (const char* text : {"", "2024", "2024-1-1", "2024-02-30", "2024-13-01", "0000-01-01", "2024-02-29T",
                           "2024-02-29T24:00:00", "2024-02-29T10:00", "2024-02-29x10:00:00", "2024/02/29",
                           "-024-02-29", "2024-02-29T10:00:0a"}) {
    const auto date = parse_chat_date(text);
    ASSERT_FALSE(date.ok()) << text;
    EXPECT_THAT(date.status().message(), HasSubstr("is not a date"));
  }
  EXPECT_EQ(*parse_chat_date("2024-02-29T10:11:12"), *parse_chat_date("2024-02-29 10:11:12"));
}

// ---- Continuing the last message ----

TEST(ChatTemplate, ContinuesTheLastMessage) {
  const std::string chatml = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}";
  ChatTemplate::Input input =
      with_messages(R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello, my"}])");
  input.continue_final_message = true;
  EXPECT_EQ(render(chatml, input), "<user>Hi</><assistant>Hello, my");
  input.messages = json(R"([{"role": "assistant", "content": "ends in space "}])");
  EXPECT_EQ(render(chatml, input), "<assistant>ends in space ");
  EXPECT_EQ(render("{% for m in messages %}<{{ m.content|trim }}>{% endfor %}", input), "<ends in space");
  input.messages = json(
      R"([{"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "image"}]}])");
  EXPECT_EQ(
      render("{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}", input),
      "[a][b");
}

TEST(ChatTemplate, RefusesToContinueWhatItDoesNotPrint) {
  ChatTemplate::Input input = with_messages(R"([{"role": "assistant", "content": "Hello"}])");
  input.continue_final_message = true;
  EXPECT_THAT(render("{{ messages|length }}", input), HasSubstr("does not print the last message"));
  EXPECT_THAT(render("{{ messages[0].content|upper }}", input), HasSubstr("does not print the last message"));
  input.add_generation_prompt = true;
  EXPECT_THAT(render("x", input), HasSubstr("exclude each other"));
  input.add_generation_prompt = false;
  for (const char* messages :
       {"[]", R"([{"role": "user"}])", R"([{"content": null}])", R"([{"content": [{"type": "image"}]}])"}) {
    input.messages = json(messages);
    EXPECT_THAT(render("x", input), HasSubstr("no text to continue")) << messages;
  }
}

// ---- Messages ----

const char* const kTakesParts =
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% endif %}{% endfor %}";
const char* const kTakesText = "{% for m in messages %}{{ m.role ~ m.content }}{% endfor %}";

std::string prepare(const std::string& source, std::string_view messages) {
  const Result<Json> prepared = prepare_messages(json(messages), *compile(source));
  return prepared.ok() ? dump_json(*prepared) : prepared.status().message();
}

TEST(PrepareMessages, ArgumentsOfToolCallsBecomeMappings) {
  EXPECT_EQ(
      prepare(
          kTakesText,
          R"([{"tool_calls": [{"function": {"name": "f", "arguments": "{\"b\": 1.0, \"a\": [null]}"}}]}])"),
      R"([{"tool_calls":[{"function":{"name":"f","arguments":{"b":1.0,"a":[null]}}}]}])");
  // What is no JSON object stays text; what is no text stays as it is.
  for (const char* arguments : {R"("not json")", R"("[1]")", R"("")", R"("{\"a\": 1")", R"({"a":1})", "7"}) {
    const std::string messages =
        fmt::format(R"([{{"tool_calls":[{{"function":{{"arguments":{}}}}}]}}])", arguments);
    EXPECT_EQ(prepare(kTakesText, messages), messages);
  }
  EXPECT_EQ(prepare(kTakesText, R"([{"tool_calls":["x",{"function":1}]}])"),
            R"([{"tool_calls":["x",{"function":1}]}])");
}

TEST(PrepareMessages, NullMembersAreDropped) {
  EXPECT_EQ(
      prepare(kTakesText, R"([{"role": "assistant", "content": null, "tool_calls": null, "name": ""}])"),
      R"([{"role":"assistant","name":""}])");
}

TEST(PrepareMessages, ReasoningIsOfferedUnderBothNames) {
  EXPECT_EQ(prepare(kTakesText, R"([{"reasoning_content": "r"}])"),
            R"([{"thinking":"r","reasoning_content":"r"}])");
  EXPECT_EQ(prepare(kTakesText, R"([{"thinking": "t"}])"), R"([{"thinking":"t","reasoning_content":"t"}])");
  EXPECT_EQ(prepare(kTakesText, R"([{"reasoning": "r"}])"),
            R"([{"thinking":"r","reasoning":"r","reasoning_content":"r"}])");
  EXPECT_EQ(prepare(kTakesText, R"([{"thinking": "t", "reasoning_content": "r"}])"),
            R"([{"thinking":"t","reasoning_content":"r"}])");
  EXPECT_EQ(prepare(kTakesText, R"([{"reasoning_content": null, "reasoning": "r"}])"),
            R"([{"thinking":"r","reasoning":"r","reasoning_content":"r"}])");
}

TEST(PrepareMessages, TheDeveloperIsTheSystemWhereItIsNotKnown) {
  EXPECT_EQ(prepare(kTakesText, R"([{"role": "developer"}])"), R"([{"role":"system"}])");
  EXPECT_EQ(prepare("{{ messages[0].role == 'developer' }}", R"([{"role": "developer"}])"),
            R"([{"role":"developer"}])");
}

TEST(PrepareMessages, PartsAreJoinedForTemplatesThatNeedText) {
  const char* const parts =
      R"([{"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])";
  EXPECT_EQ(prepare(kTakesText, parts), R"([{"content":"a\nb"}])");
  EXPECT_EQ(prepare(kTakesParts, parts),
            R"([{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])");
  EXPECT_EQ(prepare(kTakesText, R"([{"content": []}])"), R"([{"content":""}])");
  EXPECT_EQ(prepare(kTakesText, R"([{}, {"content": [{"type": "image_url"}]}])"),
            "messages[1]: a content part of type 'image_url' (chat template 'test' takes text only)");
}

TEST(PrepareMessages, WhatIsNoListOfObjectsIsRefused) {
  EXPECT_EQ(prepare(kTakesText, "{}"), "messages: expected an array, found object");
  EXPECT_EQ(prepare(kTakesText, R"([{}, "x"])"), "messages[1]: expected an object, found string");
}

TEST(PrepareMessages, TemplatesThatTakePartsAreRecognized) {
  for (const char* source :
       {"{% for part in message['content'] %}{% endfor %}", "{% for part in m.content %}{% endfor %}",
        "{% if message.content is iterable %}{% endif %}", "{{ 'x' if content is not string else content }}",
        "{% macro m(content) %}{% if 1 %}{% elif content is mapping %}{% endif %}{% endmacro %}",
        "{% set x %}{% with a = 1 %}{{ [m.content is string] }}{% endwith %}{% endset %}"}) {
    EXPECT_TRUE(compile(source)->accepts_content_parts()) << source;
  }
  for (const char* source :
       {"{{ message.content }}", "{% for m in messages %}{{ m['content']|trim }}{% endfor %}",
        "{% if m.content is defined and m.content is not none %}{% endif %}", "{{ x is string }}"}) {
    EXPECT_FALSE(compile(source)->accepts_content_parts()) << source;
  }
}

// ---- Model folders ----

class ModelFolder : public testing::Test {
 protected:
  ModelFolder() : folder_(fs::temp_directory_path() / fmt::format("tensorfold-chat-{}", getpid())) {
    fs::create_directories(folder_);
  }
  ~ModelFolder() override { fs::remove_all(folder_); }
  void write(const std::string& name, std::string_view text) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  std::string load_error() {
    const Result<ModelChat> chat = load_model_chat(folder_);
    EXPECT_FALSE(chat.ok());
    return chat.ok() ? "" : chat.status().message();
  }
  ModelChat load() {
    Result<ModelChat> chat = load_model_chat(folder_);
    EXPECT_TRUE(chat.ok()) << (chat.ok() ? "" : chat.status().message());
    return chat.ok() ? *chat : ModelChat{compile("failed"), nullptr, {}};
  }
  fs::path folder_;
};

TEST_F(ModelFolder, TheTemplateFileComesBeforeTheConfig) {
  write("tokenizer_config.json", R"({"chat_template": "config"})");
  EXPECT_EQ(load().default_template->source(), "config");
  write("chat_template.json", R"({"chat_template": "json"})");
  EXPECT_EQ(load().default_template->source(), "json");
  write("chat_template.jinja", "file\n");
  EXPECT_EQ(load().default_template->source(), "file\n");
  EXPECT_EQ(load().tool_use, nullptr);
  EXPECT_EQ(load().pick(true).source(), "file\n");
  write("additional_chat_templates/tool_use.jinja", "tools");
  EXPECT_EQ(load().pick(true).source(), "tools");
  EXPECT_EQ(load().pick(false).source(), "file\n");
}

TEST_F(ModelFolder, NamedTemplatesAreFoundInTheConfig) {
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "d"}, {"name": "rag", "template": "{{"},
                                                       {"name": "tool_use", "template": "t"}]})");
  EXPECT_EQ(load().pick(false).source(), "d");
  EXPECT_EQ(load().pick(true).source(), "t");
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "rag", "template": "x"}, {"name": "b", "template": "x"}]})");
  EXPECT_EQ(load_error(), "tokenizer_config.json: no chat template named 'default' (there are: rag, b)");
}

TEST_F(ModelFolder, SpecialTokensAreTextsOrObjects) {
  write("tokenizer_config.json",
        R"({"chat_template": "x", "bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false},
                                     "pad_token": null, "unk_token": 5, "other_token": "o"})");
  EXPECT_EQ(Json(load().special_tokens), json(R"({"bos_token": "<s>", "eos_token": "</s>"})"));
}

TEST_F(ModelFolder, AModelWithoutTemplateCannotChat) {
  for (const char* config : {"", R"({})", R"({"chat_template": null})"}) {
    if (*config != 0) write("tokenizer_config.json", config);
    const Result<ModelChat> chat = load_model_chat(folder_);
    ASSERT_FALSE(chat.ok());
    EXPECT_EQ(chat.status().code(), StatusCode::kNotFound);
    EXPECT_THAT(chat.status().message(),
                HasSubstr("the model has no chat template (looked for chat_template.jinja"));
  }
}

TEST_F(ModelFolder, BadFilesAreNamed) {
  write("tokenizer_config.json", "{");
  EXPECT_THAT(load_error(), HasSubstr("tokenizer_config.json: JSON line 1"));
  write("tokenizer_config.json", "[]");
  EXPECT_THAT(load_error(), HasSubstr("tokenizer_config.json: expected an object, found array"));
  write("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_EQ(load_error(), "tokenizer_config.json: chat_template: expected a string or a list, found integer");
  write("tokenizer_config.json", R"({"chat_template": [{"name": "default"}]})");
  EXPECT_THAT(load_error(), HasSubstr("each entry of the list needs the strings name and template"));
  write("tokenizer_config.json", R"({"chat_template": "\n{{"})");
  EXPECT_THAT(load_error(), HasSubstr("chat template 'tokenizer_config.json' line 2: "));
  write("chat_template.json", "{}");
  EXPECT_THAT(load_error(), HasSubstr("chat_template.json: no chat_template in it"));
  write("chat_template.jinja", "{% if %}");
  EXPECT_THAT(load_error(), HasSubstr("chat template 'chat_template.jinja' line 1: "));
}

TEST(ModelChatOfPublishedCheckpoints, Loads) {
  TF_SKIP_WITHOUT_SHARED_DATA();
  for (const char* name : {"gpt-oss-20b", "qwen3.8-27b"}) {
    const Result<ModelChat> chat = load_model_chat(fs::path(kSharedData) / "checkpoints" / name);
    ASSERT_TRUE(chat.ok()) << chat.status().message();
    EXPECT_TRUE(chat->default_template->accepts_content_parts() || std::string_view(name) == "gpt-oss-20b");
    EXPECT_NE(Json(chat->special_tokens).find("eos_token"), nullptr) << name;
  }
}

// ---- Threads ----

TEST(ChatTemplate, ManyThreadsRenderOneTemplate) {
  const auto shared = compile(
      "{% set ns = namespace(t='') %}{% macro m(x) %}{{ x ~ ',' }}{% endmacro %}"
      "{% for m in messages %}{% set ns.t = ns.t ~ m.content %}{% endfor %}"
      "{% for c in ns.t %}{{ [c, 'k']|join|upper }}{% endfor %}{{ messages|tojson }}");
  std::vector<std::string> texts(8);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < texts.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int k = 0; k < 50; ++k) {
        const std::string content(20, static_cast<char>('a' + i));
        ChatTemplate::Input input;
        input.messages = Json(Json::Array{Json(Json::Object{{"content", Json(content)}})});
        texts[i] = *shared->render(input);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < texts.size(); ++i) {
    const char c = static_cast<char>('a' + i);
    std::string expected;
    for (int k = 0; k < 20; ++k) (expected += static_cast<char>(c - 32)) += 'K';
    EXPECT_EQ(texts[i], expected + "[{\"content\": \"" + std::string(20, c) + "\"}]");
  }
}

}  // namespace
}  // namespace tensorfold
