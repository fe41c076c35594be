// Collects what an engine sends to one request, so that a test can wait for its end or for a number of
// tokens.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace tensorfold {

/// All events of one request, put together.
struct CollectedReply {
  std::vector<int32_t> tokens;
  std::string text;  ///< With the tail.
  std::vector<GeneratedToken> generated;
  std::optional<FinishReason> finish;
  Status status;
  Usage usage;
  int num_events_after_finish = 0;  ///< Must stay 0.
};

/// Made before submit(); thread-safe, and outlived by its sink.
class ReplyCollector {
 public:
  EventSink sink() {
    return [state = state_](Event&& event) {
      const std::lock_guard lock(state->mutex);
      CollectedReply& reply = state->reply;
      if (reply.finish) ++reply.num_events_after_finish;
      for (GeneratedToken& token : event.tokens) {
        reply.tokens.push_back(token.token);
        reply.text += token.text;
        reply.generated.push_back(std::move(token));
      }
      reply.text += event.tail;
      reply.finish = event.finish;
      reply.status = event.status;
      reply.usage = event.usage;
      state->changed.notify_all();
    };
  }

  /// Blocks until the last event; a request that never ends hangs the test.
  CollectedReply wait() {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] { return state_->reply.finish.has_value(); });
    return state_->reply;
  }

  /// Blocks until num_tokens tokens came, or the end.
  void wait_for_tokens(size_t num_tokens) {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock,
                         [&] { return state_->reply.tokens.size() >= num_tokens || state_->reply.finish; });
  }

  CollectedReply peek() const {
    const std::lock_guard lock(state_->mutex);
    return state_->reply;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    CollectedReply reply;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace tensorfold
