// See generate.h.
#include "cli/generate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <utility>
#include <vector>

namespace tensorfold {
namespace {

using Clock = std::chrono::steady_clock;

/// An event and when the engine sent it: this thread may get to it later, when several are there.
struct Arrival {
  Event event;
  Clock::time_point at;
};

/// Events on their way from the engine's thread to this one.
class EventQueue {
 public:
  void push(Event&& event) {
    {
      std::lock_guard lock(mutex_);
      events_.push_back({std::move(event), Clock::now()});
    }
    arrived_.notify_one();
  }

  /// The events so far; none after a tenth of a second without any.
  std::vector<Arrival> take() {
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, std::chrono::milliseconds(100), [this] { return !events_.empty(); });
    return std::exchange(events_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Arrival> events_;  ///< Guarded by mutex_.
};

/// What an event adds to the reply, with or without a format.
std::vector<OutputPiece> pieces_of(const Event& event) {
  std::vector<OutputPiece> pieces = event.output;
  for (const GeneratedToken& token : event.tokens)
    append_output(pieces, OutputPiece::Kind::kContent, token.text);
  append_output(pieces, OutputPiece::Kind::kContent, event.tail);
  return pieces;
}

}  // namespace

Result<GeneratedReply> generate_reply(Engine& engine, Request request, InterruptGuard* interrupts,
                                      const ReplySink& on_text) {
  // Shared with the sink, which the engine may hold a moment longer than this function runs.
  const auto queue = std::make_shared<EventQueue>();
  const Clock::time_point start = Clock::now();
  TF_ASSIGN_OR_RETURN(const RequestId id, engine.submit(std::move(request), [queue](Event&& event) {
    queue->push(std::move(event));
  }));
  GeneratedReply reply;
  for (;;) {
    if (interrupts != nullptr && interrupts->take_interrupt()) engine.cancel(id);
    for (const auto& [event, at] : queue->take()) {
      const double seconds = std::chrono::duration<double>(at - start).count();
      if (reply.first_token_s == 0 && !event.tokens.empty()) reply.first_token_s = seconds;
      for (const OutputPiece& piece : pieces_of(event)) {
        const bool is_reasoning = piece.kind == OutputPiece::Kind::kReasoning;
        (is_reasoning ? reply.reasoning : reply.text) += piece.text;
        on_text(piece.text, is_reasoning);
      }
      if (!event.finish) continue;
      if (*event.finish == FinishReason::kError) return event.status;
      reply.finish = *event.finish;
      reply.usage = event.usage;
      reply.total_s = seconds;
      return reply;
    }
  }
}

ReplyPrinter::ReplyPrinter() : is_terminal_(isatty(STDOUT_FILENO) != 0) {}

void ReplyPrinter::print(std::string_view text, bool is_reasoning) {
  if (is_reasoning && !is_terminal_) return;
  if (is_reasoning && !std::exchange(is_dim_, true)) fmt::print("\x1b[2m");
  if (!is_reasoning && std::exchange(is_dim_, false)) fmt::print("\x1b[0m\n\n");
  fmt::print("{}", text);
  std::fflush(stdout);
}

void ReplyPrinter::finish() {
  if (std::exchange(is_dim_, false)) fmt::print("\x1b[0m");
}

std::string speed_line(const GeneratedReply& reply) {
  const auto per_second = [](int64_t count, double seconds) {
    return static_cast<double>(count) / std::max(seconds, 1e-6);
  };
  std::string line = fmt::format("{} prompt tokens at {:.0f}/s", reply.usage.prompt_tokens,
                                 per_second(reply.usage.prompt_tokens, reply.first_token_s));
  // The first token comes with the prompt's pass.
  const int64_t decoded = reply.usage.completion_tokens - 1;
  if (decoded > 0)
    line += fmt::format(", {} tokens at {:.1f}/s", reply.usage.completion_tokens,
                        per_second(decoded, reply.total_s - reply.first_token_s));
  if (const DraftUsage& drafts = reply.usage.speculative; drafts.rounds > 0)
    line += fmt::format(", {} of {} guesses right", drafts.accepted, drafts.drafted);
  return line;
}

}  // namespace tensorfold
