// The chat in the terminal: a history of messages, a few commands, replies as they come.
#pragma once

#include <string>

#include "base/json.h"
#include "base/status.h"
#include "engine/chat_prompt.h"
#include "engine/engine.h"

namespace tensorfold {

struct ChatOptions {
  std::string system;  ///< System message; "": none.
  std::string date;    ///< For templates that print one; "": today's.
  ChatSettings settings;
  SamplingParams sampling;
  int64_t max_tokens = -1;  ///< Of one reply; -1: until the context is full.
  bool quiet = false;       ///< No line about speed.
};

/// Talks until /exit or the end of the input.
Status run_chat(Engine& engine, const ChatOptions& options);

/// The list of messages a conversation begins with.
Json first_messages(const std::string& system);

/// {"role": role, "content": content}
Json chat_message(std::string_view role, std::string_view content);

}  // namespace tensorfold
