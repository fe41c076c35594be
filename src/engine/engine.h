// The narrow boundary of the engine: an immutable loaded model and requests in, events out. Owns scheduling, KV pages,
// sampling and cancellation; knows no JSON and no sockets.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/loaded_model.h"

namespace tensorfold {

/// How tokens are drawn (arithmetic.md, "Sampling").
struct SamplingParams {
  float temperature = 1.0f;  ///< >= 0; 0 is greedy.
  int32_t top_k = 0;         ///< 0: off.
  float top_p = 1.0f;        ///< (0, 1]; 1: off.
  float min_p = 0.0f;        ///< [0, 1]; 0: off.
  std::optional<uint64_t> seed;  ///< Absent: a hash of the prompt's tokens, so equal requests have equal replies.
};

struct Request {
  std::vector<int32_t> prompt;   ///< At least one token, each in the vocabulary.
  SamplingParams sampling;
  int64_t max_tokens = -1;       ///< Most tokens to generate; -1: until the context is full.
  std::vector<std::string> stop; ///< The reply ends before the first of these strings that it would contain.
  bool ignore_eos = false;       ///< Benchmarks: go on past end-of-sequence tokens.
  int num_logprobs = -1;         ///< -1: none; n: log-probability of each token and of the n most likely (0..20).
};

enum class FinishReason {
  kStop,       ///< An end-of-sequence token or a stop string.
  kLength,     ///< max_tokens, or the context is full.
  kCancelled,  ///< cancel() was called.
  kError,      ///< Event::status says why.
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0.0f;  ///< Natural logarithm of the softmax of the logits (temperature 1, no cuts).
};

/// One generated token. `text` is what it added to the visible reply: empty while a UTF-8 sequence or a possible stop
/// string is incomplete, more than its own characters when it completes one.
struct GeneratedToken {
  int32_t token = 0;
  std::string text;
  float logprob = 0.0f;                     ///< Valid if the request asked for logprobs.
  std::vector<TokenLogprob> top_logprobs;   ///< Most likely first.
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;  ///< End-of-sequence token included.
  int64_t cached_tokens = 0;      ///< Prompt tokens whose state was reused.
};

/// What happened to a request since the last event. The last one has `finish`.
struct Event {
  std::vector<GeneratedToken> tokens;
  std::string tail;  ///< With finish: visible text held back until the end was certain.
  std::optional<FinishReason> finish;
  Status status;     ///< Not ok exactly with kError.
  Usage usage;       ///< Complete with finish.
};

using RequestId = uint64_t;

/// Called on the engine's thread, in order, one request's events never concurrently. Must not block or call back into
/// the engine other than cancel().
using EventSink = std::function<void(Event&&)>;

struct EngineOptions {
  int64_t context_tokens = 0;   ///< Longest sequence, prompt and reply. 0: the model's own, at most what KV memory holds.
  int64_t kv_memory_bytes = 0;  ///< Limit of all KV pages. 0: chosen from free memory (engine/kv_pages.h).
  int64_t max_sequences = 64;   ///< Sequences in a pass; further requests wait.
  int64_t max_queued = 1024;    ///< Requests waiting; further ones are refused (kBusy).
  int64_t pass_tokens = 512;    ///< Most rows of a pass; prompts are cut into chunks that fit beside decoding rows.
};

struct EngineStats {
  int64_t running = 0, queued = 0;
  int64_t kv_pages_used = 0, kv_pages_total = 0;
  int64_t kv_bytes = 0;
  int64_t passes = 0, prompt_tokens = 0, generated_tokens = 0, preemptions = 0;
};

/// Runs passes on a thread of its own. All functions are thread-safe.
class Engine {
 public:
  static Result<std::unique_ptr<Engine>> create(std::shared_ptr<LoadedModel> model, const EngineOptions& options);
  /// Cancels what is running and waits for the thread.
  ~Engine();

  /// Queues a request; its events go to `sink`. Refused at once: empty or out-of-vocabulary prompt, prompt longer than
  /// the context, one that KV memory can never hold (kInvalidArgument), a full queue (kBusy).
  Result<RequestId> submit(Request request, EventSink sink);

  /// Stops a request within one pass; its last event is kCancelled. Unknown or finished ids are ignored.
  void cancel(RequestId id);

  EngineStats stats() const;
  int64_t context_tokens() const;
  const LoadedModel& model() const;

 private:
  Engine();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tensorfold
