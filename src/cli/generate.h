// One reply, waited for: what `run` and the chat have in common.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "cli/terminal.h"
#include "engine/engine.h"

namespace tensorfold {

struct GeneratedReply {
  std::string text;
  FinishReason finish = FinishReason::kStop;  ///< kCancelled: stopped by Ctrl-C.
  Usage usage;
  double first_token_s = 0;  ///< From the request to its first token.
  double total_s = 0;        ///< From the request to the end.
};

/// Runs the request to its end. `on_text` is called on this thread with each piece of text as it comes.
/// Ctrl-C, where `interrupts` is given, ends the reply early and is no error.
Result<GeneratedReply> generate_reply(Engine& engine, Request request, InterruptGuard* interrupts,
                                      const std::function<void(std::string_view)>& on_text);

/// "12 prompt tokens at 340/s, 80 tokens at 52.1/s".
std::string speed_line(const GeneratedReply& reply);

}  // namespace tensorfold
