// What /metrics shows: counters of the server, and the engine's statistics, in Prometheus' text format 0.0.4.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "engine/engine.h"

namespace tensorfold {

/// How a reply to a generation request ended.
enum class ReplyOutcome { kDone, kRefused, kFailed, kCancelled };

/// Counters since the start. Thread-safe.
class Metrics {
 public:
  void count_request() { ++requests_; }
  void count_outcome(ReplyOutcome outcome) { ++outcomes_[static_cast<size_t>(outcome)]; }
  void add_time_to_first_token(double seconds) { add(first_token_us_, first_tokens_, seconds); }
  void add_reply_time(double seconds) { add(reply_us_, replies_, seconds); }

  std::string text(const EngineStats& engine, int64_t num_connections) const;

 private:
  static void add(std::atomic<int64_t>& sum_us, std::atomic<int64_t>& count, double seconds) {
    sum_us += static_cast<int64_t>(seconds * 1e6);
    ++count;
  }

  std::atomic<int64_t> requests_{0};
  std::array<std::atomic<int64_t>, 4> outcomes_{};  ///< By ReplyOutcome.
  std::atomic<int64_t> first_token_us_{0}, first_tokens_{0};
  std::atomic<int64_t> reply_us_{0}, replies_{0};
};

}  // namespace tensorfold
