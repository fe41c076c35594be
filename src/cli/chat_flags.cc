// See chat_flags.h.
#include "cli/chat_flags.h"

#include <utility>
#include <vector>

namespace tensorfold {

void add_chat_flags(Flags& flags, ChatFlags& chat, bool has_tools) {
  flags.choice("thinking",
               "Whether the model reasons before it answers; auto leaves it to the chat template.",
               chat.thinking, {"auto", "on", "off"});
  flags.text("reasoning-effort", "WORD",
             "How much it reasons, in a word that its chat template knows: low, medium, high.",
             chat.reasoning_effort);
  flags.text("chat-template-kwargs", "JSON",
             "Object of further variables of the chat template, such as {\"preserve_thinking\": true}.",
             chat.template_kwargs);
  flags.choice(
      "reasoning-parser",
      "How reasoning is told from the answer; auto goes by the chat template and the tokenizer, none "
      "leaves it in the answer.",
      chat.reasoning_parser, {std::begin(kReasoningParserNames), std::end(kReasoningParserNames)});
  if (!has_tools) return;
  flags.choice(
      "tool-parser",
      "How calls of tools are found in a reply; auto goes by the chat template, none leaves them text.",
      chat.tool_parser, {std::begin(kToolParserNames), std::end(kToolParserNames)});
}

Result<ChatSettings> chat_settings(const ChatFlags& flags) {
  ChatSettings settings{.reasoning_parser = flags.reasoning_parser, .tool_parser = flags.tool_parser};
  settings.reasoning_effort = flags.reasoning_effort;
  if (flags.thinking != "auto") settings.thinking = flags.thinking == "on";
  if (flags.template_kwargs.empty()) return settings;
  Result<Json> kwargs = parse_json(flags.template_kwargs);
  if (!kwargs.ok()) return invalid_argument("--chat-template-kwargs: {}", kwargs.status().message());
  if (!kwargs->is_object())
    return invalid_argument("--chat-template-kwargs must be a JSON object, not {}", kwargs->kind_name());
  settings.template_kwargs = std::move(kwargs).value();
  return settings;
}

}  // namespace tensorfold
