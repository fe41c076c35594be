// `tensorfold run MODEL [PROMPT]`: one reply, or a chat in the terminal.
#include "cli/run.h"

#include <fmt/format.h>

#include <cstdio>
#include <limits>
#include <utility>

#include "cli/chat.h"
#include "cli/command.h"
#include "cli/generate.h"
#include "cli/model_flags.h"
#include "cli/progress.h"
#include "engine/chat_prompt.h"

namespace tensorfold {
namespace {

/// What is wrong with a prompt that has no words, or nothing.
Status check_prompt(const std::string& prompt) {
  return prompt.empty() ? invalid_argument("the prompt is empty") : Status();
}

Result<ChatPrompt> make_prompt(const LoadedModel& model, const RunFlags& flags, const std::string& prompt) {
  if (!flags.raw) {
    Json messages = first_messages(flags.chat.system);
    messages.push_back(chat_message("user", prompt));
    return chat_prompt(model,
                       {.messages = messages, .date = flags.chat.date, .settings = flags.chat.settings});
  }
  if (model.tokenizer == nullptr) return unsupported("{} has no tokenizer.json", model.name);
  return ChatPrompt{.tokens = model.tokenizer->encode(prompt, true), .format = nullptr};
}

std::string_view finish_name(FinishReason reason) {
  return reason == FinishReason::kLength      ? "length"
         : reason == FinishReason::kCancelled ? "cancelled"
                                              : "stop";
}

void print_json(const GeneratedReply& reply) {
  Json json = Json::object();
  json.set("text", reply.text);
  if (!reply.reasoning.empty()) json.set("reasoning", reply.reasoning);
  json.set("finish_reason", finish_name(reply.finish));
  json.set("prompt_tokens", reply.usage.prompt_tokens);
  json.set("completion_tokens", reply.usage.completion_tokens);
  if (!reply.usage.speculative.drafter.empty())
    json.set("speculative", speculative_json(reply.usage.speculative));
  json.set("first_token_s", reply.first_token_s);
  json.set("total_s", reply.total_s);
  fmt::print("{}\n", dump_json(json));
}

Status run_prompt(Engine& engine, const RunFlags& flags, const std::string& prompt) {
  TF_RETURN_IF_ERROR(check_prompt(prompt));
  TF_ASSIGN_OR_RETURN(ChatPrompt made, make_prompt(engine.model(), flags, prompt));
  Request request{.prompt = std::move(made.tokens),
                  .sampling = flags.chat.sampling,
                  .max_tokens = flags.chat.max_tokens,
                  .stop = {},
                  .format = std::move(made.format)};
  ReplyPrinter printer;
  Result<GeneratedReply> outcome =
      generate_reply(engine, std::move(request), nullptr, [&](std::string_view text, bool is_reasoning) {
        if (!flags.json) printer.print(text, is_reasoning);
      });
  printer.finish();
  TF_ASSIGN_OR_RETURN(const GeneratedReply reply, std::move(outcome));
  flags.json ? print_json(reply) : fmt::print("\n");
  std::fflush(stdout);
  if (!flags.chat.quiet) fmt::print(stderr, "[{}]\n", speed_line(reply));
  return {};
}

class RunCommand : public Command {
 public:
  CommandInfo info() const override {
    return {.name = "run",
            .summary = "Answer one prompt, or chat in the terminal.",
            .details =
                "  tensorfold run demo \"Why is the sky blue?\"\n"
                "  tensorfold run demo < question.txt\n"
                "  tensorfold run demo                        (a chat)"};
  }

  void add_flags(Flags& flags) override {
    add_model_argument(flags, flags_.model.model);
    add_run_flags(flags, flags_);
  }
  Status run() override { return run_by_flags(flags_); }

 private:
  RunFlags flags_;
};

}  // namespace

void add_run_flags(Flags& flags, RunFlags& run) {
  flags.argument("PROMPT",
                 "The prompt; a word that begins with a dash goes behind --. Without one: standard input, or "
                 "a chat where that is a terminal.",
                 run.prompt, false);
  add_model_flags(flags, run.model);
  flags.text("system", "TEXT",
             "System message. Default: none, which lets the model's template put in its own.",
             run.chat.system);
  flags.integer("max-tokens", "Most tokens of a reply. Default: until the context is full.", run.max_tokens,
                1, std::numeric_limits<int32_t>::max());
  add_sampling_flags(flags, run.sampling);
  add_engine_flags(flags, run.engine);
  add_draft_flags(flags, run.engine);
  add_chat_flags(flags, run.chat_flags, /*has_tools=*/false);
  flags.text("date", "DATE", "Date that chat templates print, as 2026-11-29. Default: today's.",
             run.chat.date);
  flags.toggle("raw", "Give the model the prompt as it is, without its chat template.", run.raw);
  flags.toggle("json", "Print one JSON object with the reply and its counts.", run.json);
  flags.toggle("quiet", "No progress, no line about speed.", run.chat.quiet);
}

Status run_by_flags(RunFlags& flags) {
  TF_RETURN_IF_ERROR(check_template_date(flags.chat.date));
  const bool is_chat = flags.prompt.empty() && is_stdin_terminal() && !flags.raw && !flags.json;
  const std::string prompt = is_chat || !flags.prompt.empty() ? flags.prompt : read_all_input();
  if (!is_chat) TF_RETURN_IF_ERROR(check_prompt(prompt));
  TF_ASSIGN_OR_RETURN(flags.chat.settings, chat_settings(flags.chat_flags));
  flags.model.quiet = flags.chat.quiet;
  // One request at a time: KV memory for more would never be used.
  flags.engine.max_sequences = 1;
  TF_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, load_engine(flags.model, flags.engine));
  if (!flags.raw) TF_RETURN_IF_ERROR(check_chat_settings(engine->model(), flags.chat.settings));
  flags.chat.sampling = sampling_params(flags.sampling, engine->model().generation);
  flags.chat.max_tokens = flags.max_tokens.value_or(-1);
  return is_chat ? run_chat(*engine, flags.chat) : run_prompt(*engine, flags, prompt);
}

std::unique_ptr<Command> make_run_command() { return std::make_unique<RunCommand>(); }

}  // namespace tensorfold
