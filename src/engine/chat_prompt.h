// The one place where the chat template is applied: messages in, the prompt's token ids out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "engine/loaded_model.h"

namespace tensorfold {

/// What a template is given. References must live for the call.
struct ChatPromptInput {
  const Json& messages;  ///< Array of {"role","content",...}, as Hugging Face's apply_chat_template takes.
  Json tools = {};       ///< Array of functions, or null.
  Json template_kwargs = {};  ///< Object of further variables (`chat_template_kwargs`), or null.
  std::string date = {};      ///< What templates print as the current date and time; "": the machine's.
  bool add_generation_prompt = true;
};

/// Renders the model's template and tokenizes the text as it stands (no special tokens are added; the
/// template wrote them). kInvalidArgument: the template refused the messages, with its own words, or the date
/// is none. kUnsupported: the model has no template or no tokenizer.
Result<std::vector<int32_t>> chat_prompt(const LoadedModel& model, const ChatPromptInput& input);

/// Whether `date` is "" or one that ChatPromptInput takes: "2026-11-29" or RFC 3339 ("2026-11-29T12:30:00Z").
Status check_template_date(std::string_view date);

}  // namespace tensorfold
