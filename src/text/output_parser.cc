// Which format a model writes, and the parser for it. The formats themselves are in output_parser_tags.cc and
// output_parser_harmony.cc.
#include "text/output_parser.h"

#include <algorithm>
#include <utility>

#include "text/output_parser_harmony.h"
#include "text/output_parser_llama.h"
#include "text/output_parser_tags.h"
#include "text/tokenizer.h"

namespace tensorfold {
namespace {

constexpr OutputMarker kTagMarkers[] = {{"<think>"},    {"</think>"},    {"<tool_call>"}, {"</tool_call>"},
                                        {"<arg_key>"},  {"</arg_key>"},  {"<arg_value>"}, {"</arg_value>"},
                                        {"<function="}, {"</function>"}, {"<parameter="}, {"</parameter>"}};
constexpr OutputMarker kHarmonyMarkers[] = {{"<|start|>"},     {"<|channel|>"}, {"<|constrain|>"},
                                            {"<|message|>"},   {"<|end|>"},     {"<|return|>", true},
                                            {"<|call|>", true}};

constexpr OutputMarker kLlamaMarkers[] = {{"<think>"}, {"</think>"}, {"<|python_tag|>"}};

bool mentions(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// `<tool_call>`, at most one line break (as it is, or written \n in a template's string), then `next`.
bool mentions_call_of(std::string_view source, std::string_view next) {
  for (const char* between : {"", "\n", "\\n"})
    if (mentions(source, fmt::format("<tool_call>{}{}", between, next))) return true;
  return false;
}

ToolSyntax detect_tools(std::string_view source) {
  if (mentions(source, "<arg_key>")) return ToolSyntax::kGlm;
  if (mentions_call_of(source, "<function=")) return ToolSyntax::kXml;
  if (mentions(source, R"('{"name": "' + tool_call.name)") && mentions(source, R"('"parameters": ')"))
    return ToolSyntax::kLlama;
  if (!mentions(source, "<tool_call>")) return ToolSyntax::kNone;
  const bool is_json = mentions(source, "tool_call.name") || mentions_call_of(source, "{");
  return is_json ? ToolSyntax::kHermes : ToolSyntax::kNone;
}

bool has_tokens(const Tokenizer& tokenizer, std::initializer_list<std::string_view> tokens) {
  return std::all_of(tokens.begin(), tokens.end(),
                     [&](std::string_view token) { return tokenizer.token_to_id(token).has_value(); });
}

bool has_harmony_tokens(const Tokenizer& tokenizer) {
  return has_tokens(tokenizer, {"<|start|>", "<|channel|>", "<|message|>", "<|end|>"});
}

template <class Enum, size_t N>
Result<std::optional<Enum>> parse_name(std::string_view flag, std::string_view name,
                                       const std::string_view (&names)[N]) {
  const auto* found = std::find(std::begin(names), std::end(names), name);
  if (found == std::end(names))
    return invalid_argument("{} '{}' is none of {}", flag, name, fmt::join(names, ", "));
  if (found == std::begin(names)) return std::optional<Enum>();
  return std::optional(static_cast<Enum>(found - std::begin(names) - 1));
}

/// A reference into the same schema: "#/$defs/Place".
const Json* follow_reference(const Json* schema, const Json& root) {
  for (int hops = 0; schema != nullptr && hops < 8; ++hops) {
    const Json* reference = schema->find("$ref");
    if (reference == nullptr || !reference->is_string()) return schema;
    std::string_view path = reference->as_string();
    if (!path.starts_with("#/")) return schema;
    path.remove_prefix(2);
    schema = &root;
    while (schema != nullptr && !path.empty()) {
      const size_t end = std::min(path.find('/'), path.size());
      schema = schema->find(path.substr(0, end));
      path.remove_prefix(std::min(end + 1, path.size()));
    }
  }
  return schema;
}

}  // namespace

std::string_view parser_name(ReasoningSyntax syntax) {
  return kReasoningParserNames[static_cast<size_t>(syntax) + 1];
}
std::string_view parser_name(ToolSyntax syntax) { return kToolParserNames[static_cast<size_t>(syntax) + 1]; }

OutputSyntax detect_output_syntax(std::string_view source, const Tokenizer& tokenizer) {
  if (mentions(source, "<|channel|>") && mentions(source, "<|message|>") && has_harmony_tokens(tokenizer))
    return {ReasoningSyntax::kHarmony, ToolSyntax::kHarmony};
  const bool thinks = mentions(source, "<think>") || has_tokens(tokenizer, {"<think>", "</think>"});
  return {thinks ? ReasoningSyntax::kThink : ReasoningSyntax::kNone, detect_tools(source)};
}

Result<OutputSyntax> choose_output_syntax(std::string_view reasoning_parser, std::string_view tool_parser,
                                          std::string_view source, const Tokenizer& tokenizer) {
  TF_ASSIGN_OR_RETURN(
      const auto reasoning,
      parse_name<ReasoningSyntax>("the reasoning parser", reasoning_parser, kReasoningParserNames));
  TF_ASSIGN_OR_RETURN(const auto tools,
                      parse_name<ToolSyntax>("the tool parser", tool_parser, kToolParserNames));
  const OutputSyntax detected = detect_output_syntax(source, tokenizer);
  const OutputSyntax syntax{reasoning.value_or(detected.reasoning), tools.value_or(detected.tools)};
  if (!syntax.is_harmony()) return syntax;
  if (!has_harmony_tokens(tokenizer))
    return invalid_argument(
        "the parser 'harmony' needs a tokenizer with the tokens of that format, such as <|channel|>");
  const auto goes_with_harmony = [](auto value) {
    return value == decltype(value)::kHarmony || value == decltype(value)::kNone;
  };
  if (!goes_with_harmony(syntax.reasoning) || !goes_with_harmony(syntax.tools))
    return invalid_argument(
        "the parser 'harmony' is one for reasoning and tools, and goes with no other; the other must be "
        "harmony or none");
  return syntax;
}

ToolSchemas::ToolSchemas(const Json& tools) {
  if (!tools.is_array()) return;
  for (const Json& tool : tools.as_array()) {
    const Json* inner = tool.find("function");
    const Json& function = inner != nullptr ? *inner : tool;
    const Json* name = function.find("name");
    const Json* parameters = function.find("parameters");
    if (name == nullptr || !name->is_string()) continue;
    functions_.emplace_back(name->as_string(), parameters == nullptr ? Json() : *parameters);
  }
}

const Json* ToolSchemas::parameters_of(std::string_view function) const {
  for (const auto& [name, parameters] : functions_)
    if (name == function) return &parameters;
  return nullptr;
}

const Json* ToolSchemas::argument(std::string_view function, std::string_view name) const {
  const Json* parameters = parameters_of(function);
  if (parameters == nullptr) return nullptr;
  const Json* properties = parameters->find("properties");
  return properties == nullptr ? nullptr : follow_reference(properties->find(name), *parameters);
}

OutputFormat::Start read_prompt_tail(std::string_view prompt, const OutputSyntax& syntax) {
  using Start = OutputFormat::Start;
  if (syntax.is_harmony())
    return prompt.ends_with("<|start|>assistant") ? Start::kHarmonyHeader : Start::kReply;
  if (syntax.reasoning != ReasoningSyntax::kThink) return Start::kReply;
  if (prompt.ends_with("<think>")) return Start::kReasoningTag;
  while (!prompt.empty() && (prompt.back() == '\n' || prompt.back() == ' ')) prompt.remove_suffix(1);
  return prompt.ends_with("<think>") ? Start::kReasoning : Start::kReply;
}

std::span<const OutputMarker> output_markers(const OutputSyntax& syntax) {
  if (syntax.is_harmony()) return kHarmonyMarkers;
  if (syntax.tools == ToolSyntax::kLlama) return kLlamaMarkers;
  return kTagMarkers;
}

std::unique_ptr<OutputParser> make_output_parser(std::shared_ptr<const OutputFormat> format) {
  if (format->syntax.is_harmony()) return std::make_unique<HarmonyParser>(std::move(format));
  if (format->syntax.tools == ToolSyntax::kLlama) return std::make_unique<LlamaParser>(std::move(format));
  return std::make_unique<TagParser>(std::move(format));
}

void append_output(std::vector<OutputPiece>& out, OutputPiece::Kind kind, std::string_view text) {
  if (text.empty()) return;
  if (out.empty() || out.back().kind != kind) out.push_back({.kind = kind, .text = {}, .name = {}});
  out.back().text += text;
}

}  // namespace tensorfold
