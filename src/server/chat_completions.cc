// See chat_completions.h. Replies are text as the model wrote it: calls of tools inside it are not taken
// apart.
#include "server/chat_completions.h"

#include <utility>

#include "engine/chat_prompt.h"
#include "server/logprobs.h"
#include "server/openai_schema.h"

namespace tensorfold {
namespace {

class ChatFormat : public ReplyFormat {
 public:
  ChatFormat(const LoadedModel& model, bool has_logprobs) : model_(model), has_logprobs_(has_logprobs) {}

  std::string_view id_prefix() const override { return "chatcmpl-"; }
  std::string_view object() const override { return "chat.completion"; }
  std::string_view chunk_object() const override { return "chat.completion.chunk"; }

  Json opening(int index) override {
    Json delta = Json::object();
    delta.set("role", "assistant");
    delta.set("content", "");
    return choice("delta", std::move(delta),
                  {.index = index, .text = {}, .tokens = {}, .finish = std::nullopt});
  }

  Json streamed(const ChoicePart& part) override {
    Json delta = Json::object();
    if (!part.finish) delta.set("content", part.text);
    return choice("delta", std::move(delta), part);
  }

  Json whole(const ChoicePart& part) override {
    Json message = Json::object();
    message.set("role", "assistant");
    message.set("content", part.text);
    message.set("refusal", Json());
    return choice("message", std::move(message), part);
  }

 private:
  Json choice(std::string_view key, Json value, const ChoicePart& part) const {
    const bool shows_logprobs = has_logprobs_ && (key == "message" || !part.tokens.empty());
    Json json = Json::object();
    json.set("index", part.index);
    json.set(key, std::move(value));
    json.set("logprobs", shows_logprobs ? chat_logprobs(*model_.tokenizer, part.tokens) : Json());
    json.set("finish_reason", part.finish ? Json(finish_reason_name(*part.finish)) : Json());
    return json;
  }

  const LoadedModel& model_;
  const bool has_logprobs_;
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

  const LoadedModel& model = context.engine->model();
  Result<std::vector<int32_t>> prompt =
      chat_prompt(model, {.messages = request.messages,
                          .tools = request.tools,
                          .template_kwargs = request.template_kwargs,
                          .date = date,
                          .add_generation_prompt = request.add_generation_prompt});
  if (!prompt.ok()) return refuse(to_api_error(prompt.status()));
  if (const auto error = check_prompt_length(context, prompt->size(), "messages")) return refuse(*error);

  GenerationCall call{.requests = choice_requests(request.generation, std::move(prompt).value()),
                      .choices_per_prompt = request.generation.num_choices,
                      .stream = request.generation.stream,
                      .include_usage = request.generation.include_usage};
  auto format = std::make_unique<ChatFormat>(model, request.generation.num_logprobs >= 0);
  start_generation(context, std::move(reply), std::move(format), std::move(call));
}

}  // namespace tensorfold
