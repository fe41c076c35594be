// The flags of commands that chat: what the template is told, and how replies are taken apart.
#pragma once

#include <string>

#include "base/status.h"
#include "cli/flags.h"
#include "engine/chat_prompt.h"

namespace tensorfold {

struct ChatFlags {
  std::string thinking = "auto";
  std::string reasoning_effort;
  std::string template_kwargs;  ///< JSON text; "": none.
  std::string reasoning_parser = "auto";
  std::string tool_parser = "auto";
};

/// `has_tools`: the command takes requests that offer tools.
void add_chat_flags(Flags& flags, ChatFlags& chat, bool has_tools);

/// kInvalidArgument names a flag whose value is no JSON object.
Result<ChatSettings> chat_settings(const ChatFlags& flags);

}  // namespace tensorfold
