// What happens to messages before a template sees them, and fixed dates.
#include <charconv>

#include "text/chat_template.h"

namespace tensorfold {
namespace {

/// JSON text of an object becomes the object. What is no object stays text: a template prints it as it came.
void parse_arguments(Json& tool_call) {
  Json* function = tool_call.find("function");
  Json* arguments = function != nullptr ? function->find("arguments") : nullptr;
  if (arguments == nullptr || !arguments->is_string()) return;
  Result<Json> parsed = parse_json(arguments->as_string());
  if (parsed.ok() && parsed->is_object()) *arguments = std::move(parsed).value();
}

void offer_reasoning(Json& message) {
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const Json* found = message.find(name);
    if (found == nullptr) continue;
    const Json reasoning = *found;
    // The order of members, which `message|tojson` shows, is that of transformers.
    Json::Object& members = message.as_object();
    if (message.find("thinking") == nullptr) members.insert(members.begin(), {"thinking", reasoning});
    message.set("reasoning_content", reasoning);
    return;
  }
}

/// Text parts as one string.
Status join_parts(Json& content, size_t index, const ChatTemplate& chat_template) {
  std::string text;
  bool is_first = true;
  for (const Json& part : content.as_array()) {
    const Json* type = part.find("type");
    const Json* part_text = part.find("text");
    if (part_text == nullptr || !part_text->is_string()) {
      return unsupported("messages[{}]: a content part of type '{}' (chat template '{}' takes text only)",
                         index, type != nullptr && type->is_string() ? type->as_string() : "",
                         chat_template.name());
    }
    if (!is_first) text += '\n';
    text += part_text->as_string();
    is_first = false;
  }
  content = Json(std::move(text));
  return Status();
}

Status prepare_message(Json& message, size_t index, const ChatTemplate& chat_template) {
  if (!message.is_object())
    return invalid_argument("messages[{}]: expected an object, found {}", index, message.kind_name());
  std::erase_if(message.as_object(), [](const Json::Member& member) { return member.second.is_null(); });
  if (Json* calls = message.find("tool_calls"); calls != nullptr && calls->is_array()) {
    for (Json& call : calls->as_array()) parse_arguments(call);
  }
  offer_reasoning(message);
  Json* role = message.find("role");
  const bool is_developer = role != nullptr && role->is_string() && role->as_string() == "developer";
  if (is_developer && chat_template.source().find("developer") == std::string::npos) *role = Json("system");
  Json* content = message.find("content");
  if (content != nullptr && content->is_array() && !chat_template.accepts_content_parts()) {
    return join_parts(*content, index, chat_template);
  }
  return Status();
}

/// Reads exactly `count` digits at text[at].
bool read_digits(std::string_view text, size_t at, size_t count, int& value) {
  const std::string_view digits = text.substr(std::min(at, text.size()), count);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return digits.size() == count && digits[0] != '-' && error == std::errc() && end == digits.data() + count;
}

}  // namespace

Result<Json> prepare_messages(const Json& messages, const ChatTemplate& chat_template) {
  if (!messages.is_array())
    return invalid_argument("messages: expected an array, found {}", messages.kind_name());
  Json prepared = messages;
  for (size_t i = 0; i < prepared.as_array().size(); ++i) {
    TF_RETURN_IF_ERROR(prepare_message(prepared.as_array()[i], i, chat_template));
  }
  return prepared;
}

Result<std::chrono::local_seconds> parse_chat_date(std::string_view text) {
  namespace chrono = std::chrono;
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0;
  bool is_valid = read_digits(text, 0, 4, year) && read_digits(text, 5, 2, month) &&
                  read_digits(text, 8, 2, day) && text[4] == '-' && text[7] == '-';
  if (is_valid && text.size() > 10) {
    is_valid = text.size() == 19 && (text[10] == 'T' || text[10] == ' ') && text[13] == ':' &&
               text[16] == ':' && read_digits(text, 11, 2, hour) && read_digits(text, 14, 2, minute) &&
               read_digits(text, 17, 2, second);
  }
  const chrono::year_month_day date(chrono::year(year), chrono::month(static_cast<unsigned>(month)),
                                    chrono::day(static_cast<unsigned>(day)));
  if (!is_valid || !date.ok() || year < 1 || hour > 23 || minute > 59 || second > 59) {
    return invalid_argument("'{}' is not a date (expected 2025-06-30 or 2025-06-30T17:05:00)", text);
  }
  return chrono::local_days(date) + chrono::hours(hour) + chrono::minutes(minute) + chrono::seconds(second);
}

}  // namespace tensorfold
