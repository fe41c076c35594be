// The narrow boundary of the engine: an immutable loaded model and requests in, events out. Owns scheduling,
// KV pages, sampling and cancellation; knows no JSON and no sockets.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "drafters/drafter.h"
#include "drafters/session_corpus.h"
#include "engine/draft_usage.h"
#include "engine/loaded_model.h"
#include "text/output_parser.h"

namespace tensorfold {

/// How tokens are drawn (arithmetic.md, "Sampling").
struct SamplingParams {
  float temperature = 1.0f;  ///< >= 0; 0 is greedy.
  int32_t top_k = 0;         ///< 0: off.
  float top_p = 1.0f;        ///< (0, 1]; 1: off.
  float min_p = 0.0f;        ///< [0, 1]; 0: off.
  /// Absent: a hash of the prompt's tokens, so that equal requests have equal replies.
  std::optional<uint64_t> seed;
};

struct Request {
  std::vector<int32_t> prompt;  ///< At least one token, each in the vocabulary.
  SamplingParams sampling;
  int64_t max_tokens = -1;        ///< Most tokens to generate; -1: until the context is full.
  std::vector<std::string> stop;  ///< The reply ends before the first of these strings that it would contain.
  bool ignore_eos = false;        ///< Benchmarks: go on past end-of-sequence tokens.
  int num_logprobs = -1;  ///< -1: none; n: log-probability of each token and of the n most likely (0..20).
  bool draft = true;      ///< false: one token a pass, whatever EngineOptions::draft says.
  /// Requests of one key are turns of one conversation: guesses are also looked for in the others' prompts
  /// and replies, what a client cuts out of the history included. Their speed is then all that tells of each
  /// other. Absent: nothing is kept of this request.
  std::optional<SessionKey> session = {};
  /// How the reply is taken apart into Event::output; null: not at all, its text is that of the tokens. With
  /// it, stop strings are looked for in the content only, and the format's own end tokens end the reply too.
  std::shared_ptr<const OutputFormat> format = {};
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

/// One generated token. `text` is what it added to the visible reply: empty while a UTF-8 sequence or a
/// possible stop string is incomplete, more than its own characters when it completes one. Always empty with
/// Request::format.
struct GeneratedToken {
  int32_t token = 0;
  std::string text;
  float logprob = 0.0f;                    ///< Valid if the request asked for logprobs.
  std::vector<TokenLogprob> top_logprobs;  ///< Most likely first.
  bool is_end = false;  ///< The end-of-sequence token: counted in Usage, no part of the reply.
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;  ///< End-of-sequence token included.
  int64_t cached_tokens = 0;      ///< Prompt tokens whose state was reused.
  DraftUsage speculative = {};
};

/// What happened to a request since the last event: tokens, several where drafts were accepted. The last one
/// has `finish`.
struct Event {
  std::vector<GeneratedToken> tokens;
  std::string tail;  ///< With finish: visible text held back until the end was certain.
  /// With Request::format: what the tokens, and the end, added to the reply, in order.
  std::vector<OutputPiece> output = {};
  std::optional<FinishReason> finish;
  Status status;  ///< Not ok exactly with kError.
  Usage usage;    ///< Complete with finish.
};

using RequestId = uint64_t;

/// Called on the engine's thread, in order, one request's events never concurrently. Must not block or call
/// back into the engine other than cancel().
using EventSink = std::function<void(Event&&)>;

class PassObserver;  // engine/pass.h

/// Who guesses tokens for the passes to verify.
enum class DraftMode : uint8_t {
  kOff,     ///< Nobody: one token a pass.
  kLookup,  ///< Prompt lookup, as many as it finds up to draft_max.
  kModel,   ///< The draft model that was loaded, else the model's own head (MTP), as many as it is sure of.
  kAuto,    ///< All drafters there are, as many as are measured to pay.
};

/// Makes the drafter of a request, or null for none. Called by submitting threads.
using DrafterFactory = std::function<std::unique_ptr<Drafter>(const Request&)>;

class PassDrafter;  // drafters/pass_drafter.h

/// Makes the drafter of an engine that computes its guesses, not prepared yet.
using PassDrafterFactory = std::function<std::unique_ptr<PassDrafter>(const LoadedModel&)>;

/// None of these changes a byte of a reply, except where a reply ends (context_tokens).
struct EngineOptions {
  /// Longest sequence, prompt and reply, which KV memory must hold. 0: the model's own limit, or what KV
  /// memory holds where that is less.
  int64_t context_tokens = 0;
  /// Limit of all KV pages and recurrent states; resident memory grows to it only with use. 0: half of the
  /// memory that is free once the model is loaded, and no more than max_sequences full contexts. When it is
  /// full, requests wait.
  int64_t kv_memory_bytes = 0;
  /// Sequences in a pass; further requests wait. Fewer where their recurrent states would take more than half
  /// of kv_memory_bytes.
  int64_t max_sequences = 64;
  /// Requests beyond max_sequences that may be outstanding; further ones are refused (kBusy).
  int64_t max_queued = 1024;
  /// Most rows of a pass; longer prompts are computed in several. While other sequences decode, prompts get a
  /// quarter of it, so that a long prompt delays the others' next token by a quarter of the time. Larger:
  /// faster prompts, more scratch memory. 0: 512, or 2,048 where the device's memory is its own (a GPU needs
  /// more rows to be busy, and is through with them sooner).
  int64_t pass_tokens = 0;
  DraftMode draft = DraftMode::kOff;
  /// Most drafted tokens of a sequence in a pass, 1 to kMaxDraftTokens. More: fewer passes where guesses are
  /// good, more work thrown away where they are not.
  int64_t draft_max = 8;
  /// A computed guess that its drafter holds right with less probability is the last of its draft.
  float draft_confidence = 0.2f;
  /// Tokens of sessions' texts that are kept, of 4 bytes each; the least recently used go first. More:
  /// guesses from further back, where there are many conversations. 0: none. Only prompt lookup uses them.
  int64_t session_tokens = int64_t{1} << 20;
  /// Tests and benchmarks: drafters of their own instead of those of `draft`, which must not be kOff.
  DrafterFactory make_drafter = {};
  PassDrafterFactory make_pass_drafter = {};
  /// Tests: sees the logits of every generated token. Null costs nothing. Must outlive the engine.
  PassObserver* observer = nullptr;
};

struct EngineStats {
  int64_t running = 0;  ///< Sequences that hold KV pages.
  int64_t queued = 0;   ///< Requests that wait, preempted ones included.
  int64_t kv_pages_used = 0;
  int64_t kv_pages_total = 0;  ///< The limit.
  int64_t kv_bytes = 0;        ///< Of the used pages.
  int64_t passes = 0;          ///< Since the engine started, as are the rest.
  int64_t prompt_tokens = 0;   ///< Of requests whose prompt is computed; recomputation is not counted twice.
  int64_t generated_tokens = 0;
  int64_t preemptions = 0;   ///< Times a sequence lost its pages to an older one and was computed again.
  int64_t draft_rounds = 0;  ///< As DraftUsage, over all requests.
  int64_t draft_tokens = 0;
  int64_t draft_accepted_tokens = 0;
  int64_t draft_zero_accept_rounds = 0;
  int64_t draft_passes_avoided = 0;
  int64_t sessions = 0;        ///< Now, as is the next.
  int64_t session_tokens = 0;  ///< Of the texts kept of them.
};

/// Runs passes on a thread of its own. All functions are thread-safe. One engine at a time per LoadedModel:
/// its ops serve one thread.
class Engine {
 public:
  /// kInvalidArgument names an option out of range, kOutOfMemory what did not fit: KV memory below one page
  /// or below context_tokens, scratch or logits.
  static Result<std::unique_ptr<Engine>> create(std::shared_ptr<LoadedModel> model,
                                                const EngineOptions& options);

  /// Ends every request with kCancelled and waits for the thread.
  ~Engine();

  /// Queues a request; its events go to `sink`, which is called at least once. Refused at once: empty or
  /// out-of-vocabulary prompt, one that leaves no room in the context, a parameter out of range, an empty
  /// stop string (kInvalidArgument), a full queue (kBusy).
  Result<RequestId> submit(Request request, EventSink sink);

  /// Stops a request within one pass; its last event is kCancelled unless it ended by itself first. Unknown
  /// or finished ids are ignored.
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
