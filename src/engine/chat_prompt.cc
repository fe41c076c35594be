// See chat_prompt.h.
#include "engine/chat_prompt.h"

#include <utility>

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

}  // namespace

Result<std::vector<int32_t>> chat_prompt(const LoadedModel& model, const ChatPromptInput& input) {
  if (model.tokenizer == nullptr) return unsupported("{} has no tokenizer.json", model.name);
  if (model.chat == nullptr)
    return unsupported("{} has no chat template; give it a prompt without one (completions, run --raw)",
                       model.name);
  TF_ASSIGN_OR_RETURN(const std::optional<std::chrono::local_seconds> now, parse_date(input.date));
  const ChatTemplate& chat_template = model.chat->pick(!input.tools.is_null());
  TF_ASSIGN_OR_RETURN(Json messages, prepare_messages(input.messages, chat_template));
  ChatTemplate::Input variables{.messages = std::move(messages),
                                .tools = input.tools,
                                .documents = {},
                                .add_generation_prompt = input.add_generation_prompt,
                                .kwargs = {},
                                .special_tokens = model.chat->special_tokens,
                                .now = now};
  if (input.template_kwargs.is_object()) variables.kwargs = input.template_kwargs.as_object();
  TF_ASSIGN_OR_RETURN(const std::string text, chat_template.render(variables));
  return model.tokenizer->encode(text, false);
}

Status check_template_date(std::string_view date) { return parse_date(date).status(); }

}  // namespace tensorfold
