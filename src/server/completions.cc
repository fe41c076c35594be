// See completions.h.
#include "server/completions.h"

#include <fmt/format.h>

#include <utility>

#include "server/logprobs.h"
#include "server/openai_schema.h"
#include "server/session_key.h"

namespace tensorfold {
namespace {

class CompletionFormat : public ReplyFormat {
 public:
  /// `echoes`: what each choice begins with, one per choice.
  CompletionFormat(const LoadedModel& model, bool has_logprobs, std::vector<std::string> echoes)
      : model_(model),
        has_logprobs_(has_logprobs),
        echoes_(std::move(echoes)),
        text_offsets_(echoes_.size()) {}

  std::string_view id_prefix() const override { return "cmpl-"; }
  std::string_view object() const override { return "text_completion"; }
  std::string_view chunk_object() const override { return "text_completion"; }

  Json opening(int index) override {
    const std::string& echo = echoes_[static_cast<size_t>(index)];
    return echo.empty()
               ? Json()
               : choice({.index = index, .text = echo, .output = {}, .tokens = {}, .finish = std::nullopt});
  }
  Json streamed(const ChoicePart& part) override { return choice(part); }
  Json whole(const ChoicePart& part) override {
    const std::string text = echoes_[static_cast<size_t>(part.index)] + std::string(part.text);
    return choice(
        {.index = part.index, .text = text, .output = {}, .tokens = part.tokens, .finish = part.finish});
  }

 private:
  Json choice(const ChoicePart& part) {
    Json json = Json::object();
    json.set("index", part.index);
    json.set("text", part.text);
    json.set("logprobs", has_logprobs_ ? completion_logprobs(*model_.tokenizer, part.tokens,
                                                             text_offsets_[static_cast<size_t>(part.index)])
                                       : Json());
    json.set("finish_reason", part.finish ? Json(finish_reason_name(*part.finish)) : Json());
    return json;
  }

  const LoadedModel& model_;
  const bool has_logprobs_;
  const std::vector<std::string> echoes_;
  std::vector<int64_t> text_offsets_;  ///< Characters of each choice so far, for its logprobs.
};

}  // namespace

void handle_completion(ServerContext& context, const HttpRequest& http, std::shared_ptr<HttpReply> reply) {
  const auto refuse = [&](const ApiError& error) {
    context.metrics.count_outcome(ReplyOutcome::kRefused);
    send_error(*reply, error);
  };
  CompletionRequest request;
  if (const auto error = parse_completion_request(http.body, context.defaults, request))
    return refuse(*error);
  if (const auto error = check_model(context, request.generation.model)) return refuse(*error);
  const LoadedModel& model = context.engine->model();
  if (model.tokenizer == nullptr)
    return refuse(to_api_error(unsupported("{} has no tokenizer.json", model.name)));

  GenerationCall call{.requests = {},
                      .choices_per_prompt = request.generation.num_choices,
                      .stream = request.generation.stream,
                      .include_usage = request.generation.include_usage};
  std::vector<std::string> echoes;
  for (CompletionRequest::Prompt& prompt : request.prompts) {
    std::vector<int32_t> tokens =
        prompt.is_tokens ? std::move(prompt.tokens) : model.tokenizer->encode(prompt.text, true);
    if (const auto error = check_prompt_length(context, tokens.size(), "prompt")) return refuse(*error);
    std::string echo;
    if (request.echo) echo = prompt.is_tokens ? model.tokenizer->decode(tokens, true) : prompt.text;
    echoes.insert(echoes.end(), static_cast<size_t>(request.generation.num_choices), echo);
    const std::optional<SessionKey> session = completion_session(request.generation, tokens);
    for (Request& each : choice_requests(request.generation, std::move(tokens), session))
      call.requests.push_back(std::move(each));
  }
  auto format =
      std::make_unique<CompletionFormat>(model, request.generation.num_logprobs >= 0, std::move(echoes));
  start_generation(context, std::move(reply), std::move(format), std::move(call));
}

}  // namespace tensorfold
