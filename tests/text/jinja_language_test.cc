// Every snippet of the template language gives what jinja2 gives in transformers' environment: the text, or
// an error for the same reason. Goldens: tools/fixtures/jinja_goldens.py.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "base/json.h"
#include "tests/support/test_paths.h"
#include "text/chat_template.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_parser.h"

namespace tensorfold {
namespace {

/// One golden: [source, text] or [source, null, error, line], and variables.
struct Case {
  explicit Case(const Json& json) {
    const Json::Array& parts = json.as_array();
    source = parts[0].as_string();
    is_error = parts[1].is_null();
    expected = parts[is_error ? 2 : 1].as_string();
    if (is_error) line = static_cast<int>(parts[3].as_int());
    if (parts.back().is_object()) variables = parts.back().as_object();
  }
  std::string source;
  bool is_error = false;
  std::string expected;
  int line = 0;  ///< Of a syntax error; 0 for others.
  Json::Object variables;
};

struct Outcome {
  bool is_error = false;
  std::string text;
  int line = 0;
};

Outcome render(const Case& test) {
  const Result<jinja::Template> parsed = jinja::parse(test.source);
  if (!parsed.ok()) {
    const std::string& message = parsed.status().message();  // "line N: reason"
    const size_t colon = message.find(": ");
    return {true, message.substr(colon + 2), std::stoi(message.substr(5, colon - 5))};
  }
  jinja::Interpreter interpreter(*parsed, {});
  interpreter.run().now = *parse_chat_date("2025-06-30T17:05:09");
  for (const auto& [name, value] : test.variables)
    interpreter.set_variable(name, interpreter.run().from_json(value));
  std::string out;
  if (interpreter.render(out)) return {false, out, 0};
  return {true, interpreter.run().error(), 0};
}

/// The words of errors that the template language itself makes; those of Python's own are not promised.
std::string promised_reason(const std::string& python_error) {
  const size_t colon = python_error.find(": ");
  const std::string error_class = python_error.substr(0, colon), message = python_error.substr(colon + 2);
  if (error_class == "TemplateError") return "raise_exception: " + message;
  for (const char* name : {"UndefinedError", "SecurityError", "TemplateRuntimeError", "TemplateSyntaxError",
                           "TemplateAssertionError", "FilterArgumentError"}) {
    if (error_class == name) return message;
  }
  return "";
}

Json load(const std::string& topic) {
  const std::string path = std::string(kSourceDir) + "/tests/golden/jinja/" + topic + ".json";
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path << " is missing";
  std::ostringstream text;
  text << file.rdbuf();
  Result<Json> json = parse_json(text.str());
  EXPECT_TRUE(json.ok()) << path;
  return json.ok() ? *json : Json::object();
}

class JinjaLanguage : public testing::TestWithParam<const char*> {};

TEST_P(JinjaLanguage, SnippetsRenderAsInJinja2) {
  const Json golden = load(GetParam());
  ASSERT_NE(golden.find("cases"), nullptr);
  ASSERT_GT(golden.find("cases")->as_array().size(), 40u);
  for (const Json& json : golden.find("cases")->as_array()) {
    const Case test(json);
    SCOPED_TRACE(test.source);
    const Outcome got = render(test);
    EXPECT_EQ(got.is_error, test.is_error) << "got " << got.text << "\nexpected " << test.expected;
    if (got.is_error != test.is_error) continue;
    if (!test.is_error) {
      EXPECT_EQ(got.text, test.expected);
      continue;
    }
    EXPECT_NE(got.text.find(promised_reason(test.expected)), std::string::npos)
        << "got " << got.text << "\nexpected " << test.expected;
    if (test.line > 0) {
      EXPECT_EQ(got.line, test.line) << got.text;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Topics, JinjaLanguage,
                         testing::Values("whitespace", "literals", "operators", "precedence", "slices",
                                         "scopes", "loops", "conditions", "macros", "undefined", "filters",
                                         "methods", "formatting", "tojson"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tensorfold
