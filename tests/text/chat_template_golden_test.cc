// Every published template with every conversation renders the bytes that jinja2 renders in transformers'
// environment, or fails where and why it fails. Goldens: tools/fixtures/chat_template_goldens.py.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/hash.h"
#include "base/json.h"
#include "tests/support/shared_data.h"
#include "text/chat_template.h"

namespace tensorfold {
namespace {

namespace fs = std::filesystem;

const fs::path kGoldens = fs::path(kSourceDir) / "tests/golden/chat_template";

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path << " is missing";
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

Json read_json(const fs::path& path) {
  Result<Json> json = parse_json(read(path), 200);
  EXPECT_TRUE(json.ok()) << path << ": " << (json.ok() ? "" : json.status().message());
  return json.ok() ? *json : Json::object();
}

std::string hash_text(std::string_view text) {
  return fmt::format("{:016x}", hash_bytes(std::as_bytes(std::span(text.data(), text.size()))));
}

/// A conversation of conversations.json: messages, tools and documents, and every other member as a kwarg.
ChatTemplate::Input input_of(const Json& conversation, const Json& special_tokens) {
  ChatTemplate::Input input;
  for (const auto& [key, value] : conversation.as_object()) {
    if (key == "messages") {
      input.messages = value;
    } else if (key == "tools") {
      input.tools = value;
    } else if (key == "documents") {
      input.documents = value;
    } else if (key != "name") {
      input.kwargs.emplace_back(key, value);
    }
  }
  input.special_tokens = special_tokens.as_object();
  input.now = *parse_chat_date("2025-06-30T17:05:09");
  return input;
}

/// What the message of our error must contain for an error of Python ("Class: message"). The words of
/// TypeError and the like are Python's, not the template language's, and are not promised.
std::string expected_reason(const std::string& python_error) {
  const size_t colon = python_error.find(": ");
  const std::string error_class = python_error.substr(0, colon), message = python_error.substr(colon + 2);
  if (error_class == "TemplateError") return "raise_exception: " + message;
  if (error_class == "UndefinedError" || error_class == "SecurityError" ||
      error_class == "TemplateRuntimeError")
    return message;
  return "";
}

void check_case(const ChatTemplate& chat_template, const ChatTemplate::Input& input, const Json& golden) {
  const Result<std::string> rendered = chat_template.render(input);
  if (const Json* error = golden.find("error")) {
    ASSERT_FALSE(rendered.ok()) << "expected " << error->as_string() << ", rendered " << *rendered;
    EXPECT_EQ(rendered.status().code(), StatusCode::kInvalidArgument);
    const std::string& message = rendered.status().message();
    EXPECT_EQ(message.find("chat template '" + chat_template.name() + "' line "), 0u) << message;
    EXPECT_NE(message.find(expected_reason(error->as_string())), std::string::npos)
        << message << "\nexpected: " << error->as_string();
    return;
  }
  ASSERT_TRUE(rendered.ok()) << rendered.status().message();
  if (const Json* text = golden.find("text")) {
    EXPECT_EQ(*rendered, text->as_string());
  }
  EXPECT_EQ(static_cast<int64_t>(rendered->size()), golden.find("bytes")->as_int());
  EXPECT_EQ(hash_text(*rendered), golden.find("xxh64")->as_string()) << *rendered;
}

TEST(ChatTemplateGolden, EveryPublishedTemplateRendersAsJinja2) {
  TF_SKIP_WITHOUT_SHARED_DATA();
  const Json conversations = read_json(kGoldens / "conversations.json");
  int num_templates = 0, num_cases = 0;
  for (const auto& entry : fs::directory_iterator(kGoldens)) {
    if (entry.path().filename() == "conversations.json") continue;
    const Json golden = read_json(entry.path());
    const std::string& name = golden.find("template")->as_string();
    SCOPED_TRACE(name);
    const std::string source = read(fs::path(kSharedData) / name);
    ASSERT_EQ(hash_text(source), golden.find("template_xxh64")->as_string())
        << "another template than the golden's";
    const auto chat_template = ChatTemplate::parse(source, name);
    ASSERT_TRUE(chat_template.ok()) << chat_template.status().message();
    for (const Json& conversation : conversations.find("conversations")->as_array()) {
      ChatTemplate::Input input = input_of(conversation, *conversations.find("special_tokens"));
      for (const bool prompt : {false, true}) {
        const std::string label =
            conversation.find("name")->as_string() + (prompt ? " / prompt" : " / no prompt");
        SCOPED_TRACE(label);
        const Json* expected = golden.find("cases")->find(label);
        ASSERT_NE(expected, nullptr);
        input.add_generation_prompt = prompt;
        check_case(**chat_template, input, *expected);
        ++num_cases;
      }
    }
    ++num_templates;
  }
  // Every template of the shared data has its goldens, and none was skipped.
  int num_published = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kSharedData))
    num_published += entry.path().extension() == ".jinja";
  EXPECT_EQ(num_templates, num_published);
  EXPECT_EQ(num_cases,
            num_templates * 2 * static_cast<int>(conversations.find("conversations")->as_array().size()));
}

}  // namespace
}  // namespace tensorfold
