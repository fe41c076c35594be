// See chat_completions.h. A reply's reasoning is `reasoning_content`, as DeepSeek's API and local servers
// have it. A call is one entry of `tool_calls`, streamed in one chunk, because it is known to be one only
// when it is complete (text/output_parser.h).
#include "server/chat_completions.h"

#include <fmt/format.h>

#include <utility>

#include "base/hash.h"
#include "engine/chat_prompt.h"
#include "server/logprobs.h"
#include "server/openai_schema.h"
#include "server/session_key.h"

namespace tensorfold {
namespace {

/// What the pieces of a whole reply are together.
struct Message {
  std::string reasoning, content;
  std::vector<const OutputPiece*> calls;
};

Message message_of(std::span<const OutputPiece> pieces) {
  Message message;
  for (const OutputPiece& piece : pieces) {
    if (piece.kind == OutputPiece::Kind::kToolCall)
      message.calls.push_back(&piece);
    else
      (piece.kind == OutputPiece::Kind::kReasoning ? message.reasoning : message.content) += piece.text;
  }
  return message;
}

class ChatFormat : public ReplyFormat {
 public:
  ChatFormat(ServerContext& context, const GenerationFields& fields)
      : context_(context),
        has_logprobs_(fields.num_logprobs >= 0),
        num_calls_(static_cast<size_t>(fields.num_choices)) {}

  std::string_view id_prefix() const override { return "chatcmpl-"; }
  std::string_view object() const override { return "chat.completion"; }
  std::string_view chunk_object() const override { return "chat.completion.chunk"; }

  Json opening(int index) override {
    Json delta = Json::object();
    delta.set("role", "assistant");
    delta.set("content", "");
    return choice("delta", std::move(delta),
                  {.index = index, .text = {}, .output = {}, .tokens = {}, .finish = std::nullopt});
  }

  Json streamed(const ChoicePart& part) override {
    Json delta = Json::object();
    if (!part.output.empty()) {
      const OutputPiece& piece = part.output.front();
      if (piece.kind == OutputPiece::Kind::kToolCall)
        delta.set("tool_calls", Json(Json::Array{tool_call(piece, part.index, true)}));
      else
        delta.set(piece.kind == OutputPiece::Kind::kReasoning ? "reasoning_content" : "content", piece.text);
    } else if (!part.finish) {
      delta.set("content", part.text);
    }
    return choice("delta", std::move(delta), part);
  }

  Json whole(const ChoicePart& part) override {
    const Message parts = message_of(part.output);
    const std::string content = parts.content + std::string(part.text);
    Json message = Json::object();
    message.set("role", "assistant");
    message.set("content", content.empty() && !parts.calls.empty() ? Json() : Json(content));
    if (!parts.reasoning.empty()) message.set("reasoning_content", parts.reasoning);
    Json calls = Json::array();
    for (const OutputPiece* piece : parts.calls) calls.push_back(tool_call(*piece, part.index, false));
    if (!parts.calls.empty()) message.set("tool_calls", std::move(calls));
    message.set("refusal", Json());
    return choice("message", std::move(message), part);
  }

 private:
  /// The next call of a choice. `index` is its place in the message, which only streams have.
  Json tool_call(const OutputPiece& piece, int choice_index, bool is_streamed) {
    const int64_t index = num_calls_[static_cast<size_t>(choice_index)]++;
    Json function = Json::object();
    function.set("name", piece.name);
    function.set("arguments", piece.text);
    Json json = Json::object();
    if (is_streamed) json.set("index", index);
    json.set("id", fmt::format("call_{:016x}", mix64(context_.next_id++)));
    json.set("type", "function");
    json.set("function", std::move(function));
    return json;
  }

  /// A reply with calls ends with "tool_calls"; one that is cut off says so first.
  std::string_view finish_name(const ChoicePart& part) const {
    const bool has_calls = num_calls_[static_cast<size_t>(part.index)] > 0;
    return has_calls && part.finish == FinishReason::kStop ? "tool_calls" : finish_reason_name(*part.finish);
  }

  Json choice(std::string_view key, Json value, const ChoicePart& part) const {
    const bool shows_logprobs = has_logprobs_ && (key == "message" || !part.tokens.empty());
    const Tokenizer& tokenizer = *context_.engine->model().tokenizer;
    Json json = Json::object();
    json.set("index", part.index);
    json.set(key, std::move(value));
    json.set("logprobs", shows_logprobs ? chat_logprobs(tokenizer, part.tokens) : Json());
    json.set("finish_reason", part.finish ? Json(finish_name(part)) : Json());
    return json;
  }

  ServerContext& context_;
  const bool has_logprobs_;
  std::vector<int64_t> num_calls_;  ///< Of each choice so far.
};

}  // namespace

void handle_chat_completion(ServerContext& context, const HttpRequest& http,
                            std::shared_ptr<HttpReply> reply) {
  const auto refuse = [&](const ApiError& error) {
    context.metrics.count_outcome(ReplyOutcome::kRefused);
    send_error(*reply, error);
  };
  ChatRequest request;
  if (const auto error = parse_chat_request(http.body, context.defaults, request)) return refuse(*error);
  if (const auto error = check_model(context, request.generation.model)) return refuse(*error);
  const std::string& date = request.date.empty() ? context.date : request.date;
  if (const Status status = check_template_date(date); !status.ok())
    return refuse({.message = status.message(), .param = "date", .code = {}});

  Result<ChatPrompt> prompt =
      chat_prompt(context.engine->model(), {.messages = request.messages,
                                            .tools = request.tools,
                                            .template_kwargs = request.template_kwargs,
                                            .date = date,
                                            .add_generation_prompt = request.add_generation_prompt,
                                            .thinking = request.thinking,
                                            .reasoning_effort = request.reasoning_effort,
                                            .max_calls = request.parallel_tool_calls ? -1 : 1,
                                            .settings = context.chat});
  if (!prompt.ok()) return refuse(to_api_error(prompt.status()));
  if (const auto error = check_prompt_length(context, prompt->tokens.size(), "messages"))
    return refuse(*error);

  GenerationCall call{.requests = choice_requests(request.generation, std::move(prompt->tokens),
                                                  chat_session(request.generation, request.messages),
                                                  std::move(prompt->format)),
                      .choices_per_prompt = request.generation.num_choices,
                      .stream = request.generation.stream,
                      .include_usage = request.generation.include_usage};
  auto format = std::make_unique<ChatFormat>(context, request.generation);
  start_generation(context, std::move(reply), std::move(format), std::move(call));
}

}  // namespace tensorfold
