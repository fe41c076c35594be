// See chat.h.
#include "cli/chat.h"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "cli/generate.h"
#include "cli/terminal.h"
#include "engine/chat_prompt.h"

namespace tensorfold {
namespace {

constexpr const char* kHelp =
    "/clear  forget the conversation\n/exit   leave (so does Ctrl-D)\n/help   this list\nCtrl-C stops a "
    "reply.\n";

class Chat {
 public:
  Chat(Engine& engine, const ChatOptions& options)
      : engine_(engine), options_(options), messages_(first_messages(options.system)) {}

  Status run() {
    fmt::print("{}. /help lists the commands, Ctrl-D leaves.\n", engine_.model().name);
    std::string line;
    for (;;) {
      fmt::print("\n> ");
      std::fflush(stdout);
      const LineEvent event = read_line(line);
      if (event == LineEvent::kEnd) return fmt::print("\n"), Status();
      if (event == LineEvent::kInterrupt) {
        interrupts_.take_interrupt();
        fmt::print("\n(/exit or Ctrl-D leaves)");
        continue;
      }
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      if (line == "/exit" || line == "/quit") return {};
      if (line.starts_with("/"))
        run_command(line);
      else
        TF_RETURN_IF_ERROR(answer(line));
    }
  }

 private:
  void run_command(const std::string& line) {
    if (line == "/clear") {
      messages_ = first_messages(options_.system);
      ++session_;
      fmt::print("The conversation is forgotten.\n");
    } else {
      fmt::print("{}{}", line == "/help" ? "" : "There is no command " + line + ".\n", kHelp);
    }
  }

  /// One turn. A turn that cannot be answered is taken back, and the chat goes on.
  Status answer(const std::string& line) {
    messages_.push_back(chat_message("user", line));
    const Result<GeneratedReply> reply = generate();
    if (!reply.ok()) {
      messages_.as_array().pop_back();
      fmt::print("(no reply: {})\n", reply.status().message());
      return reply.status().code() == StatusCode::kInternal ? reply.status() : Status();
    }
    fmt::print("{}\n", reply->finish == FinishReason::kCancelled ? " (stopped)" : "");
    std::fflush(stdout);
    if (!options_.quiet) fmt::print(stderr, "[{}]\n", speed_line(*reply));
    Json message = chat_message("assistant", reply->text);
    // The template decides whether earlier reasoning is shown to the model.
    if (!reply->reasoning.empty()) message.set("reasoning_content", reply->reasoning);
    messages_.push_back(std::move(message));
    return {};
  }

  Result<GeneratedReply> generate() {
    TF_ASSIGN_OR_RETURN(ChatPrompt prompt, chat_prompt(engine_.model(), {.messages = messages_,
                                                                         .date = options_.date,
                                                                         .settings = options_.settings}));
    Request request{.prompt = std::move(prompt.tokens),
                    .sampling = options_.sampling,
                    .max_tokens = options_.max_tokens,
                    .stop = {},
                    .session = session_,
                    .format = std::move(prompt.format)};
    ReplyPrinter printer;
    Result<GeneratedReply> reply = generate_reply(
        engine_, std::move(request), &interrupts_,
        [&printer](std::string_view text, bool is_reasoning) { printer.print(text, is_reasoning); });
    printer.finish();
    return reply;
  }

  Engine& engine_;
  const ChatOptions& options_;
  InterruptGuard interrupts_;
  Json messages_;
  SessionKey session_ = 0;  ///< Of the conversation.
};

}  // namespace

Json chat_message(std::string_view role, std::string_view content) {
  Json message = Json::object();
  message.set("role", role);
  message.set("content", content);
  return message;
}

Json first_messages(const std::string& system) {
  Json messages = Json::array();
  if (!system.empty()) messages.push_back(chat_message("system", system));
  return messages;
}

Status run_chat(Engine& engine, const ChatOptions& options) { return Chat(engine, options).run(); }

}  // namespace tensorfold
