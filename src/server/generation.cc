// See generation.h. A GenerationReply lives as long as the engine's sinks and the connection hold it;
// everything in it happens on the connection's thread, to which the sinks carry the engine's events.
#include "server/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "base/hash.h"
#include "server/sse.h"

namespace tensorfold {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Joins pieces of one kind that follow each other.
void append_pieces(std::vector<OutputPiece>& out, std::vector<OutputPiece>& pieces) {
  for (OutputPiece& piece : pieces) {
    if (piece.kind == OutputPiece::Kind::kToolCall)
      out.push_back(std::move(piece));
    else
      append_output(out, piece.kind, piece.text);
  }
}

/// One choice as far as it has come.
struct Choice {
  std::string text;                    ///< Whole replies only.
  std::vector<OutputPiece> output;     ///< Whole replies with a format only.
  std::vector<GeneratedToken> tokens;  ///< Whole replies with logprobs only.
  std::optional<FinishReason> finish;
  Usage usage;
};

class GenerationReply : public std::enable_shared_from_this<GenerationReply> {
 public:
  GenerationReply(ServerContext& context, std::shared_ptr<HttpReply> reply,
                  std::unique_ptr<ReplyFormat> format, const GenerationCall& call)
      : context_(context),
        reply_(std::move(reply)),
        format_(std::move(format)),
        stream_(call.stream),
        include_usage_(call.include_usage),
        wants_logprobs_(call.requests.front().num_logprobs >= 0),
        choices_per_prompt_(call.choices_per_prompt),
        choices_(call.requests.size()),
        num_open_(call.requests.size()),
        id_(fmt::format("{}{:016x}", format_->id_prefix(), mix64(context.next_id++))),
        created_(static_cast<int64_t>(std::time(nullptr))) {}

  void start(std::vector<Request> requests) {
    for (size_t i = 0; i < requests.size(); ++i) {
      auto sink = [self = shared_from_this(), i](Event&& event) {
        self->reply_->post(
            [self, i, event = std::move(event)]() mutable { self->on_event(i, std::move(event)); });
      };
      const Result<RequestId> id = context_.engine->submit(std::move(requests[i]), std::move(sink));
      if (!id.ok()) return fail(to_api_error(id.status()), ReplyOutcome::kRefused);
      engine_ids_.push_back(*id);
    }
    reply_->on_cancel([self = shared_from_this()] { self->cancel_choices(); });
  }

 private:
  void on_event(size_t index, Event&& event) {
    if (ended_) return;
    if (event.finish == FinishReason::kError) return fail(to_api_error(event.status), ReplyOutcome::kFailed);
    if (event.finish == FinishReason::kCancelled)
      return fail(to_api_error(Status(StatusCode::kCancelled, "the reply was cancelled")),
                  ReplyOutcome::kCancelled);
    if (std::exchange(is_first_event_, false))
      context_.metrics.add_time_to_first_token(seconds_since(start_time_));

    std::string text;
    for (const GeneratedToken& token : event.tokens) text += token.text;
    text += event.tail;
    if (!wants_logprobs_) event.tokens.clear();
    if (!event.tokens.empty() && event.tokens.back().is_end)
      event.tokens.pop_back();  // as OpenAI's logprobs do

    Choice& choice = choices_[index];
    choice.usage = event.usage;
    choice.finish = event.finish;
    if (stream_) {
      stream_part(static_cast<int>(index), text, event);
    } else {
      choice.text += text;
      append_pieces(choice.output, event.output);
      std::move(event.tokens.begin(), event.tokens.end(), std::back_inserter(choice.tokens));
    }
    if (event.finish && --num_open_ == 0) complete();
  }

  /// Text, each piece of another kind, and the end go out as chunks of their own: some clients read only one
  /// field from a chunk. Log-probabilities are with the first.
  void stream_part(int index, const std::string& text, const Event& event) {
    std::string out;
    if (!started_) out += open_stream();
    std::span<const GeneratedToken> tokens = event.tokens;
    for (const OutputPiece& piece : event.output) {
      out += chunk(format_->streamed({.index = index,
                                      .text = {},
                                      .output = std::span(&piece, 1),
                                      .tokens = std::exchange(tokens, {}),
                                      .finish = std::nullopt}));
    }
    if (!text.empty() || !tokens.empty())
      out += chunk(format_->streamed(
          {.index = index, .text = text, .output = {}, .tokens = tokens, .finish = std::nullopt}));
    if (event.finish)
      out += chunk(format_->streamed(
          {.index = index, .text = {}, .output = {}, .tokens = {}, .finish = event.finish}));
    send_stream(std::move(out));
  }

  std::string open_stream() {
    std::string out;
    for (size_t i = 0; i < choices_.size(); ++i) {
      Json opening = format_->opening(static_cast<int>(i));
      if (!opening.is_null()) out += chunk(std::move(opening));
    }
    return out;
  }

  void send_stream(std::string text) {
    if (text.empty()) return;
    if (std::exchange(started_, true)) return reply_->write(std::move(text));
    reply_->start_stream({.status = 200,
                          .content_type = std::string(kSseContentType),
                          .body = std::move(text),
                          .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}});
  }

  Json head(std::string_view object) const {
    Json json = Json::object();
    json.set("id", id_);
    json.set("object", object);
    json.set("created", created_);
    json.set("model", context_.model_name);
    json.set("system_fingerprint", context_.fingerprint);
    return json;
  }

  std::string chunk(Json choice) const {
    Json json = head(format_->chunk_object());
    json.set("choices", Json(Json::Array{std::move(choice)}));
    if (include_usage_) json.set("usage", Json());
    return sse_event(dump_json(json));
  }

  /// A prompt counts once, however many choices it has.
  Usage total_usage() const {
    Usage total;
    for (size_t i = 0; i < choices_.size(); ++i) {
      total.completion_tokens += choices_[i].usage.completion_tokens;
      total.speculative.add(choices_[i].usage.speculative);
      if (i % static_cast<size_t>(choices_per_prompt_) != 0) continue;
      total.prompt_tokens += choices_[i].usage.prompt_tokens;
      total.cached_tokens += choices_[i].usage.cached_tokens;
    }
    return total;
  }

  void complete() {
    stream_ ? complete_stream() : complete_body();
    end(ReplyOutcome::kDone);
  }

  void complete_stream() {
    std::string out;
    if (include_usage_) {
      Json json = head(format_->chunk_object());
      json.set("choices", Json::array());
      json.set("usage", usage_json(total_usage()));
      out += sse_event(dump_json(json));
    }
    send_stream(out + sse_done());
    reply_->end_stream();
  }

  void complete_body() {
    Json choices = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      const Choice& choice = choices_[i];
      choices.push_back(format_->whole({.index = static_cast<int>(i),
                                        .text = choice.text,
                                        .output = choice.output,
                                        .tokens = choice.tokens,
                                        .finish = choice.finish}));
    }
    Json json = head(format_->object());
    json.set("choices", std::move(choices));
    json.set("usage", usage_json(total_usage()));
    reply_->send({.status = 200, .body = dump_json(json), .headers = {}});
  }

  /// An error in the middle of a stream is an event of its own, and no [DONE] follows: never half a reply
  /// that looks whole.
  void fail(const ApiError& error, ReplyOutcome outcome) {
    if (ended_) return;
    cancel_choices();
    if (started_) {
      reply_->write(sse_event(error_json(error)));
      reply_->end_stream();
    } else {
      send_error(*reply_, error);
    }
    end(outcome);
  }

  void end(ReplyOutcome outcome) {
    ended_ = true;
    context_.metrics.count_outcome(outcome);
    context_.metrics.add_reply_time(seconds_since(start_time_));
  }

  /// Within one pass each of them ends with an event, which then ends this reply.
  void cancel_choices() {
    for (const RequestId id : engine_ids_) context_.engine->cancel(id);
  }

  ServerContext& context_;
  std::shared_ptr<HttpReply> reply_;
  std::unique_ptr<ReplyFormat> format_;
  const bool stream_;
  const bool include_usage_;
  const bool wants_logprobs_;
  const int choices_per_prompt_;
  std::vector<RequestId> engine_ids_;
  std::vector<Choice> choices_;
  size_t num_open_;  ///< Choices without an end.
  const std::string id_;
  const int64_t created_;  ///< Unix seconds.
  const std::chrono::steady_clock::time_point start_time_ = std::chrono::steady_clock::now();
  bool is_first_event_ = true;
  bool started_ = false;  ///< The head of a stream is out.
  bool ended_ = false;
};

}  // namespace

void start_generation(ServerContext& context, std::shared_ptr<HttpReply> reply,
                      std::unique_ptr<ReplyFormat> format, GenerationCall call) {
  auto generation = std::make_shared<GenerationReply>(context, std::move(reply), std::move(format), call);
  generation->start(std::move(call.requests));
}

std::vector<Request> choice_requests(const GenerationFields& fields, std::vector<int32_t> prompt,
                                     std::optional<SessionKey> session,
                                     std::shared_ptr<const OutputFormat> format) {
  const uint64_t base =
      fields.sampling.seed ? *fields.sampling.seed : hash_bytes(std::as_bytes(std::span(prompt)));
  std::vector<Request> requests;
  for (int i = 0; i < fields.num_choices; ++i) {
    Request request{.prompt = prompt,
                    .sampling = fields.sampling,
                    .max_tokens = fields.max_tokens,
                    .stop = fields.stop,
                    .ignore_eos = fields.ignore_eos,
                    .num_logprobs = fields.num_logprobs,
                    .draft = fields.draft,
                    .session = session,
                    .format = format};
    if (i > 0) request.sampling.seed = mix64(base + static_cast<uint64_t>(i));
    requests.push_back(std::move(request));
  }
  return requests;
}

std::optional<ApiError> check_prompt_length(const ServerContext& context, size_t num_tokens,
                                            std::string_view param) {
  const int64_t limit = context.engine->context_tokens();
  if (num_tokens == 0)
    return ApiError{.message = "the prompt is empty", .param = std::string(param), .code = {}};
  if (static_cast<int64_t>(num_tokens) < limit) return std::nullopt;
  return ApiError{
      .message = fmt::format("the prompt has {} tokens, which leaves no room for a reply in the context of "
                             "{} tokens",
                             num_tokens, limit),
      .param = std::string(param),
      .code = "context_length_exceeded"};
}

std::optional<ApiError> check_model(const ServerContext& context, std::string_view model) {
  const std::string_view served = context.model_name;
  if (model.empty() || model == served || model == served.substr(served.rfind('/') + 1)) return std::nullopt;
  return ApiError{
      .status = 404,
      .message = fmt::format("the model '{}' is not served here; '{}' is", model.substr(0, 200), served),
      .param = "model",
      .code = "model_not_found"};
}

void send_error(HttpReply& reply, const ApiError& error) {
  std::vector<HttpHeader> headers;
  if (error.status == 503) headers.push_back({"Retry-After", "1"});
  reply.send({.status = error.status, .body = error_json(error), .headers = std::move(headers)});
}

}  // namespace tensorfold
