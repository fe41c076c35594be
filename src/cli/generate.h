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
  std::string text;                           ///< The answer.
  std::string reasoning;                      ///< What the model wrote before it.
  FinishReason finish = FinishReason::kStop;  ///< kCancelled: stopped by Ctrl-C.
  Usage usage;
  double first_token_s = 0;  ///< From the request to its first token.
  double total_s = 0;        ///< From the request to the end.
};

/// Called with each piece of a reply as it comes. Only requests with a format have reasoning.
using ReplySink = std::function<void(std::string_view text, bool is_reasoning)>;

/// Runs the request, which offers no tools, to its end. `on_text` is called on this thread. Ctrl-C, where
/// `interrupts` is given, ends the reply early and is no error.
Result<GeneratedReply> generate_reply(Engine& engine, Request request, InterruptGuard* interrupts,
                                      const ReplySink& on_text);

/// Prints a reply on standard output: on a terminal reasoning is dim, and an empty line is between it and the
/// answer; elsewhere the answer is alone.
class ReplyPrinter {
 public:
  ReplyPrinter();
  void print(std::string_view text, bool is_reasoning);
  /// Ends the dim text of a reply that was all reasoning.
  void finish();

 private:
  const bool is_terminal_;
  bool is_dim_ = false;
};

/// "12 prompt tokens at 340/s, 80 tokens at 52.1/s, 31 of 40 guesses right".
std::string speed_line(const GeneratedReply& reply);

}  // namespace tensorfold
