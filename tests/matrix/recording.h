// What one request got from an engine, down to the logits of each token, and where two such records differ.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/pass.h"

namespace tensorfold {

/// All that must not change.
struct Recording {
  std::vector<int32_t> tokens;
  std::string text;
  FinishReason finish = FinishReason::kError;
  std::string error;                       ///< Message of the Status with kError.
  std::vector<std::vector<float>> logits;  ///< [V] for each token.
  std::vector<GeneratedToken> generated;   ///< Their log-probabilities, where the request asked.
};

/// The first thing in which `found` differs from `expected`, as a sentence; nothing if no byte does.
/// Log-probabilities are compared where both have them.
std::optional<std::string> first_difference(const Recording& expected, const Recording& found);

/// Keeps the logits of every request of an engine. Thread-safe; must outlive the engine.
class LogitsRecorder final : public PassObserver {
 public:
  /// While closed, the engine stops at the first token, so that what is submitted meanwhile is company for
  /// certain.
  void close();
  void open();

  void on_token(RequestId id, int64_t pos, int32_t token, std::span<const float> logits) override;

  /// The logits of a request's tokens so far, which are forgotten.
  std::vector<std::vector<float>> take(RequestId id);

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ = true;                                          // guarded by mutex_
  std::map<RequestId, std::vector<std::vector<float>>> logits_;  // guarded by mutex_
};

}  // namespace tensorfold
