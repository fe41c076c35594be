// The one place where the chat template is applied: messages in, the prompt's token ids out, and how the
// reply to them is to be read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "engine/loaded_model.h"
#include "text/output_parser.h"

namespace tensorfold {

/// What holds for every chat with a model where a request does not say: flags of the server and the terminal.
struct ChatSettings {
  std::string reasoning_parser = "auto";  ///< One of kReasoningParserNames.
  std::string tool_parser = "auto";       ///< One of kToolParserNames.
  Json template_kwargs = {};              ///< Object of variables of the template, or null.
  std::optional<bool> thinking = {};  ///< The template's `enable_thinking`; absent: as the template has it.
  std::string reasoning_effort = {};  ///< The template's variable of this name; "": as the template has it.
};

/// What a template is given. References must live for the call.
struct ChatPromptInput {
  const Json& messages;  ///< Array of {"role","content",...}, as Hugging Face's apply_chat_template takes.
  Json tools = {};       ///< Array of functions, or null.
  Json template_kwargs = {};  ///< Object of further variables (`chat_template_kwargs`), or null.
  std::string date = {};      ///< What templates print as the current date and time; "": the machine's.
  bool add_generation_prompt = true;
  std::optional<bool> thinking = {};  ///< As in ChatSettings. These three win over the settings.
  std::string reasoning_effort = {};
  int64_t max_calls = -1;  ///< As OutputFormat::max_calls.
  const ChatSettings& settings = {};
};

struct ChatPrompt {
  std::vector<int32_t> tokens;
  std::shared_ptr<const OutputFormat> format;  ///< For Request::format; null where all of a reply is content.
};

/// Renders the model's template and tokenizes the text as it stands (no special tokens are added; the
/// template wrote them). kInvalidArgument: the template refused the messages, with its own words, has no
/// place for the tools, or no switch of that name, or the date is none. kUnsupported: the model has no
/// template or no tokenizer.
///
/// Messages are prepared as prepare_messages() does, and so that what this program replied can be sent back:
///  - a message with tool calls and no content has the content "", as some templates join it to other text;
///  - arguments without any text are {}, and a list of no calls is none;
///  - where the template takes only one of content and reasoning beside a call (GPT-OSS), both go to the
///  reasoning.
Result<ChatPrompt> chat_prompt(const LoadedModel& model, const ChatPromptInput& input);

/// Whether the model's template and tokenizer can do what the settings say; ok for a model without a
/// template.
Status check_chat_settings(const LoadedModel& model, const ChatSettings& settings);

/// Says in the log how replies with tools are taken apart, and warns where the template takes tools but
/// nobody knows how its model writes a call. The settings are checked.
void log_output_syntax(const LoadedModel& model, const ChatSettings& settings);

/// Whether `date` is "" or one that ChatPromptInput takes: "2026-11-29" or RFC 3339 ("2026-11-29T12:30:00Z").
Status check_template_date(std::string_view date);

}  // namespace tensorfold
