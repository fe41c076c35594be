// See chat_prompt.h.
#include "engine/chat_prompt.h"

#include <utility>

#include "base/log.h"

namespace tensorfold {
namespace {

/// RFC 3339 without what a civil time has no use for: fractions of a second and the offset from UTC.
std::string_view without_zone(std::string_view date) {
  const size_t time = date.find_first_of("Tt ");
  if (time == std::string_view::npos) return date;
  return date.substr(0, date.find_first_of(".Zz+-", time));
}

Result<std::optional<std::chrono::local_seconds>> parse_date(std::string_view date) {
  if (date.empty()) return std::optional<std::chrono::local_seconds>();
  std::string civil(without_zone(date));
  if (civil.size() > 10 && (civil[10] == 't' || civil[10] == ' ')) civil[10] = 'T';
  const Result<std::chrono::local_seconds> time = parse_chat_date(civil);
  if (time.ok()) return std::optional(*time);
  return invalid_argument("'{}' is no date such as 2026-11-29 or 2026-11-29T12:30:00Z", date.substr(0, 60));
}

bool mentions(const ChatTemplate& chat_template, std::string_view word) {
  return chat_template.source().find(word) != std::string::npos;
}

/// A switch that a template does not know would be dropped without a word.
Status check_switches(const ChatTemplate& chat_template, const std::optional<bool>& thinking,
                      std::string_view reasoning_effort) {
  if (thinking && !mentions(chat_template, "enable_thinking"))
    return unsupported("thinking cannot be turned on or off: chat template '{}' has no enable_thinking",
                       chat_template.name());
  if (!reasoning_effort.empty() && !mentions(chat_template, "reasoning_effort"))
    return unsupported("reasoning_effort '{}' has no effect: chat template '{}' does not know it",
                       reasoning_effort.substr(0, 60), chat_template.name());
  return {};
}

/// The settings' variables, the request's over them.
Json::Object template_variables(const ChatPromptInput& input) {
  Json variables = Json::object();
  const auto add_object = [&variables](const Json& object) {
    if (!object.is_object()) return;
    for (const auto& [name, value] : object.as_object()) variables.set(name, value);
  };
  const auto add_switches = [&variables](const std::optional<bool>& thinking, const std::string& effort) {
    if (thinking) variables.set("enable_thinking", *thinking);
    if (!effort.empty()) variables.set("reasoning_effort", effort);
  };
  add_object(input.settings.template_kwargs);
  add_switches(input.settings.thinking, input.settings.reasoning_effort);
  add_object(input.template_kwargs);
  add_switches(input.thinking, input.reasoning_effort);
  return variables.as_object();
}

bool is_absent(const Json* value) { return value == nullptr || value->is_null(); }

void fill_arguments(Json& call) {
  Json* function = call.find("function");
  Json* arguments = function == nullptr ? nullptr : function->find("arguments");
  if (arguments == nullptr || !arguments->is_string()) return;
  if (arguments->as_string().find_first_not_of(" \t\r\n") == std::string::npos) *arguments = Json::object();
}

/// Reasoning and content of a message in one field, for a template that raises an error where it has both.
void join_reasoning(Json& message) {
  const Json* content = message.find("content");
  if (content == nullptr || !content->is_string() || content->as_string().empty()) return;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    Json* reasoning = message.find(name);
    if (reasoning == nullptr || !reasoning->is_string() || reasoning->as_string().empty()) continue;
    *reasoning = Json(reasoning->as_string() + "\n\n" + content->as_string());
    message.set("content", "");
    return;
  }
}

/// What chat_prompt() promises beyond prepare_messages().
Json with_tool_calls_prepared(const Json& messages, const ChatTemplate& chat_template) {
  Json prepared = messages;
  if (!prepared.is_array()) return prepared;
  for (Json& message : prepared.as_array()) {
    Json* calls = message.find("tool_calls");
    if (is_absent(calls) || !calls->is_array()) continue;
    if (calls->as_array().empty()) {
      message.set("tool_calls", Json());  // prepare_messages() drops it
      continue;
    }
    for (Json& call : calls->as_array()) fill_arguments(call);
    if (is_absent(message.find("content"))) message.set("content", "");
    if (mentions(chat_template, "<|channel|>")) join_reasoning(message);
  }
  return prepared;
}

Result<OutputSyntax> syntax_of(const LoadedModel& model, const ChatTemplate& chat_template,
                               const ChatSettings& settings) {
  return choose_output_syntax(settings.reasoning_parser, settings.tool_parser, chat_template.source(),
                              *model.tokenizer);
}

/// How to read a reply to this prompt.
std::shared_ptr<const OutputFormat> output_format(const OutputSyntax& syntax, const ChatPromptInput& input,
                                                  std::string_view prompt) {
  if (syntax == OutputSyntax()) return nullptr;
  auto format = std::make_shared<OutputFormat>();
  format->syntax = syntax;
  format->tools = ToolSchemas(input.tools);
  format->start = read_prompt_tail(prompt, syntax);
  format->max_calls = input.max_calls;
  return format;
}

}  // namespace

Result<ChatPrompt> chat_prompt(const LoadedModel& model, const ChatPromptInput& input) {
  if (model.tokenizer == nullptr) return unsupported("{} has no tokenizer.json", model.name);
  if (model.chat == nullptr)
    return unsupported("{} has no chat template; give it a prompt without one (completions, run --raw)",
                       model.name);
  TF_ASSIGN_OR_RETURN(const std::optional<std::chrono::local_seconds> now, parse_date(input.date));
  const ChatTemplate& chat_template = model.chat->pick(!input.tools.is_null());
  TF_RETURN_IF_ERROR(check_switches(chat_template, input.thinking, input.reasoning_effort));
  if (!input.tools.is_null() && !mentions(chat_template, "tools"))
    return unsupported("tools cannot be offered: chat template '{}' has no place for them",
                       chat_template.name());
  TF_ASSIGN_OR_RETURN(const OutputSyntax syntax, syntax_of(model, chat_template, input.settings));
  TF_ASSIGN_OR_RETURN(Json messages, prepare_messages(with_tool_calls_prepared(input.messages, chat_template),
                                                      chat_template));
  const ChatTemplate::Input variables{.messages = std::move(messages),
                                      .tools = input.tools,
                                      .documents = {},
                                      .add_generation_prompt = input.add_generation_prompt,
                                      .kwargs = template_variables(input),
                                      .special_tokens = model.chat->special_tokens,
                                      .now = now};
  TF_ASSIGN_OR_RETURN(const std::string text, chat_template.render(variables));
  return ChatPrompt{.tokens = model.tokenizer->encode(text, false),
                    .format = output_format(syntax, input, text)};
}

Status check_chat_settings(const LoadedModel& model, const ChatSettings& settings) {
  if (model.chat == nullptr || model.tokenizer == nullptr) return {};
  for (const bool has_tools : {false, true}) {
    const ChatTemplate& chat_template = model.chat->pick(has_tools);
    TF_RETURN_IF_ERROR(check_switches(chat_template, settings.thinking, settings.reasoning_effort));
    TF_RETURN_IF_ERROR(syntax_of(model, chat_template, settings).status());
  }
  return {};
}

void log_output_syntax(const LoadedModel& model, const ChatSettings& settings) {
  if (model.chat == nullptr || model.tokenizer == nullptr) return;
  const ChatTemplate& chat_template = model.chat->pick(/*has_tools=*/true);
  const Result<OutputSyntax> syntax = syntax_of(model, chat_template, settings);
  if (!syntax.ok()) return;
  log_info("{}: reasoning parser {}, tool parser {}", model.name, parser_name(syntax->reasoning),
           parser_name(syntax->tools));
  if (syntax->tools == ToolSyntax::kNone && settings.tool_parser == "auto" &&
      mentions(chat_template, "tools"))
    log_warning(
        "{}: chat template '{}' takes tools, but its format of calls is not known: calls stay text "
        "(--tool-parser names a format)",
        model.name, chat_template.name());
}

Status check_template_date(std::string_view date) { return parse_date(date).status(); }

}  // namespace tensorfold
