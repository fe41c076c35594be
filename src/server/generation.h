// One reply to a generation request: its choices run as requests of the engine, their events become a JSON
// body or a stream of events. What the endpoints have in common; how each spells a choice is its ReplyFormat.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "engine/chat_prompt.h"
#include "engine/engine.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/openai_schema.h"

namespace tensorfold {

/// What the endpoints share. Owned by ApiServer, outlives every reply.
struct ServerContext {
  Engine* engine = nullptr;
  Metrics metrics;
  SamplingDefaults defaults;
  std::string model_name;
  std::string fingerprint;  ///< `system_fingerprint`: what, beside the request, decides a reply's bytes.
  std::string date;         ///< Default of the request's `date`; "": none.
  ChatSettings chat;        ///< What holds for chats where a request says nothing.
  std::atomic<uint64_t> next_id{0};  ///< Random start, so that ids are not those of the last run.
};

/// Part of a choice, or all of it.
struct ChoicePart {
  int index = 0;
  std::string_view text;                   ///< Of requests without a format.
  std::span<const OutputPiece> output;     ///< Of requests with one; of a streamed part, at most one piece.
  std::span<const GeneratedToken> tokens;  ///< Empty unless logprobs were asked for.
  std::optional<FinishReason> finish;
};

/// How an endpoint spells its replies. One object per reply; called on the connection's thread.
class ReplyFormat {
 public:
  virtual ~ReplyFormat() = default;
  virtual std::string_view id_prefix() const = 0;     ///< "chatcmpl-".
  virtual std::string_view object() const = 0;        ///< Of a whole reply.
  virtual std::string_view chunk_object() const = 0;  ///< Of a streamed part.
  /// The entry of `choices` that opens a choice of a stream; null for none.
  virtual Json opening(int index) = 0;
  virtual Json streamed(const ChoicePart& part) = 0;
  virtual Json whole(const ChoicePart& choice) = 0;
};

struct GenerationCall {
  std::vector<Request>
      requests;  ///< At least one; one per choice, in the order of indices, with equal num_logprobs.
  int choices_per_prompt = 1;
  bool stream = false;
  bool include_usage = false;
};

/// Submits the call and answers `reply`, also when that fails. On the connection's thread; returns at once.
void start_generation(ServerContext& context, std::shared_ptr<HttpReply> reply,
                      std::unique_ptr<ReplyFormat> format, GenerationCall call);

/// The requests of one prompt's choices: equal but for their seeds. Choice 0 draws as the request alone
/// would; the others from seeds derived from its own (or from the prompt, where the request has none), so
/// that a repeated request has the same choices.
std::vector<Request> choice_requests(const GenerationFields& fields, std::vector<int32_t> prompt,
                                     std::optional<SessionKey> session,
                                     std::shared_ptr<const OutputFormat> format = nullptr);

/// The refusal of a prompt that leaves no room for a reply, or nothing.
std::optional<ApiError> check_prompt_length(const ServerContext& context, size_t num_tokens,
                                            std::string_view param);

/// The refusal of a `model` that is not the one served, or nothing. Its name without the organization will
/// do, and none at all.
std::optional<ApiError> check_model(const ServerContext& context, std::string_view model);

/// Answers with the error, as JSON.
void send_error(HttpReply& reply, const ApiError& error);

}  // namespace tensorfold
