// Requests to structs. One function per group of fields; the order of the checks is the order of the
// messages' worth.
#include "server/openai_schema.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "server/request_fields.h"

namespace tensorfold {
namespace {

/// Choices of one request, and prompts of one completion request: OpenAI's limit on n.
constexpr int64_t kMaxChoices = 128;
constexpr size_t kMaxStopStrings = 16;
constexpr int64_t kMaxTopLogprobs = 20;
/// A temperature below this is greedy: its noise is smaller than what logits resolve.
constexpr double kLeastTemperature = 1e-6;
constexpr double kMostTemperature = 100;
constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
/// OpenAI's default for text completions.
constexpr int64_t kDefaultCompletionTokens = 16;

ApiError field_error(const FieldError& error) {
  return {.message = error.message, .param = error.param, .code = {}};
}

void read_sampling(RequestFields& fields, SamplingParams& sampling) {
  if (const auto value = fields.number("temperature", 0, kMostTemperature))
    sampling.temperature = *value < kLeastTemperature ? 0.0f : static_cast<float>(*value);
  if (const auto value = fields.number("top_p", 0, 1)) {
    sampling.top_p = static_cast<float>(*value);
    if (!(sampling.top_p > 0))
      fields.fail("top_p", "'top_p' must be above 0; use temperature 0 for the best token");
  }
  if (const auto value = fields.integer("top_k", -1, kMaxTokens))
    sampling.top_k = *value < 0 ? 0 : static_cast<int32_t>(*value);
  if (const auto value = fields.number("min_p", 0, 1)) sampling.min_p = static_cast<float>(*value);
  if (const auto value =
          fields.integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()))
    sampling.seed = static_cast<uint64_t>(*value);
}

void read_stop(RequestFields& fields, std::vector<std::string>& stop) {
  const Json* value = fields.take("stop");
  if (value == nullptr) return;
  const Json::Array list = value->is_array() ? value->as_array() : Json::Array{*value};
  if (list.size() > kMaxStopStrings)
    return fields.fail(
        "stop", fmt::format("'stop' has {} strings; at most {} are allowed", list.size(), kMaxStopStrings));
  for (const Json& item : list) {
    if (!item.is_string() || item.as_string().empty())
      return fields.fail(
          "stop", fmt::format("'stop' must be a string or a list of strings, none of them empty, not {}",
                              shown(*value)));
    stop.push_back(item.as_string());
  }
}

void read_stream(RequestFields& fields, GenerationFields& out) {
  out.stream = fields.boolean("stream", false);
  const Json* options = fields.take("stream_options");
  if (options == nullptr) return;
  if (!options->is_object())
    return fields.fail("stream_options",
                       fmt::format("'stream_options' must be an object, not {}", shown(*options)));
  if (!out.stream)
    return fields.fail("stream_options", "'stream_options' is only allowed with \"stream\": true");
  RequestFields inner(*options);
  out.include_usage = inner.boolean("include_usage", false);
  inner.ignore("include_obfuscation");
  inner.refuse_unread();
  if (inner.error()) fields.fail("stream_options." + inner.error()->param, inner.error()->message);
}

void read_response_format(RequestFields& fields) {
  const Json* format = fields.take("response_format");
  if (format == nullptr) return;
  const Json* type = format->find("type");
  if (type == nullptr || !type->is_string())
    return fields.fail("response_format", "'response_format' must be an object with a string 'type'");
  if (type->as_string() != "text")
    fields.fail("response_format",
                fmt::format("'response_format' of type {} is not supported; only \"text\" is", shown(*type)));
}

/// Fields that would change a reply if they were applied, with the values at which they would not.
void refuse_unsupported(RequestFields& fields) {
  static const std::pair<const char*, std::vector<std::string>> kFields[] = {
      {"presence_penalty", {"0"}},
      {"frequency_penalty", {"0"}},
      {"repetition_penalty", {"1"}},
      {"length_penalty", {"1"}},
      {"logit_bias", {"{}"}},
      {"best_of", {"1"}},
      {"use_beam_search", {"false"}},
      {"min_tokens", {"0"}},
      {"typical_p", {"1"}},
      {"mirostat", {"0"}},
      {"stop_token_ids", {"[]"}},
      {"bad_words", {"[]"}},
      {"allowed_token_ids", {}},
      {"include_stop_str_in_output", {"false"}},
      {"skip_special_tokens", {"true"}},
      {"prompt_logprobs", {"0", "false"}},
      {"grammar", {"\"\""}},
      {"structured_outputs", {}},
      {"guided_json", {}},
      {"guided_regex", {}},
      {"guided_choice", {}},
      {"guided_grammar", {}},
  };
  for (const auto& [name, neutral] : kFields) fields.unsupported(name, neutral);
}

/// Fields for the operator of a service, without a say in the reply.
void ignore_harmless(RequestFields& fields) {
  for (const char* name : {"metadata", "store", "service_tier", "prompt_cache_retention", "request_id",
                           "priority", "cache_prompt"})
    fields.ignore(name);
}

/// Names of any type will do: they are only compared.
void read_session_names(RequestFields& fields, GenerationFields& out) {
  const auto text = [&](const char* name) {
    const Json* value = fields.take(name);
    return value == nullptr ? std::string() : dump_json(*value);
  };
  const std::string user = text("user"), identifier = text("safety_identifier");
  if (!user.empty() || !identifier.empty()) out.user = dump_json(Json(Json::Array{user, identifier}));
  out.prompt_cache_key = text("prompt_cache_key");
}

void read_generation(RequestFields& fields, const SamplingDefaults& defaults, GenerationFields& out) {
  out.sampling = defaults.sampling;
  out.model = fields.text("model", "");
  read_sampling(fields, out.sampling);
  if (const auto value = fields.integer("max_tokens", 1, kMaxTokens)) out.max_tokens = *value;
  if (const auto value = fields.integer("n", 1, kMaxChoices)) out.num_choices = static_cast<int>(*value);
  out.ignore_eos = fields.boolean("ignore_eos", false);
  out.draft = fields.boolean("draft", true);
  read_stop(fields, out.stop);
  read_stream(fields, out);
  read_response_format(fields);
  refuse_unsupported(fields);
  read_session_names(fields, out);
  ignore_harmless(fields);
}

/// Parses the body and hands its fields to `read`; adds the error of an unknown field.
template <class Read>
std::optional<ApiError> read_body(std::string_view body, Read read) {
  const Result<Json> json = parse_json(body);
  if (!json.ok())
    return ApiError{.message = "the body is not JSON: " + json.status().message(), .param = {}, .code = {}};
  if (!json->is_object())
    return ApiError{.message = fmt::format("the body must be a JSON object, not {}", shown(*json)),
                    .param = {},
                    .code = {}};
  RequestFields fields(*json);
  read(fields);
  fields.refuse_unread();
  if (fields.error()) return field_error(*fields.error());
  return std::nullopt;
}

// Chat messages.

/// Templates see text only; other parts are refused here, where the field's place is known.
void check_part(RequestFields& fields, const std::string& where, const Json& part) {
  const Json* type = part.find("type");
  const Json* text = part.find("text");
  if (type == nullptr || !type->is_string())
    return fields.fail(where, fmt::format("'{}' must be an object with a string 'type'", where));
  if (type->as_string() != "text" || text == nullptr || !text->is_string())
    fields.fail(
        where,
        fmt::format("'{}' is of type {}; only parts of type \"text\" with a string 'text' are supported",
                    where, shown(*type)));
}

void check_content(RequestFields& fields, const std::string& where, const Json& content) {
  if (content.is_null() || content.is_string()) return;
  if (!content.is_array())
    return fields.fail(
        where, fmt::format("'{}' must be a string, a list of parts or null, not {}", where, shown(content)));
  for (size_t i = 0; i < content.as_array().size(); ++i)
    check_part(fields, fmt::format("{}[{}]", where, i), content.as_array()[i]);
}

void check_tool_calls(RequestFields& fields, const std::string& where, const Json& calls) {
  if (calls.is_null()) return;
  if (!calls.is_array())
    return fields.fail(where, fmt::format("'{}' must be a list, not {}", where, shown(calls)));
  for (const Json& call : calls.as_array()) {
    const Json* function = call.find("function");
    const Json* name = function == nullptr ? nullptr : function->find("name");
    if (name == nullptr || !name->is_string())
      return fields.fail(where,
                         fmt::format("each of '{}' must have a 'function' with a string 'name'", where));
    const Json* arguments = function->find("arguments");
    if (arguments != nullptr && !arguments->is_string() && !arguments->is_object())
      return fields.fail(where, fmt::format("the 'arguments' in '{}' must be a string of JSON, not {}", where,
                                            shown(*arguments)));
  }
}

void check_message(RequestFields& fields, size_t index, const Json& message) {
  const std::string where = fmt::format("messages[{}]", index);
  const Json* role = message.find("role");
  if (role == nullptr || !role->is_string() || role->as_string().empty())
    return fields.fail(where + ".role", fmt::format("'{}' must be an object with a string 'role'", where));
  if (const Json* content = message.find("content")) check_content(fields, where + ".content", *content);
  if (const Json* calls = message.find("tool_calls")) check_tool_calls(fields, where + ".tool_calls", *calls);
}

void read_messages(RequestFields& fields, Json& messages) {
  const Json* value = fields.take("messages");
  if (value == nullptr || !value->is_array() || value->as_array().empty())
    return fields.fail("messages", fmt::format("'messages' must be a non-empty list{}",
                                               value == nullptr ? "" : ", not " + shown(*value)));
  messages = *value;
  for (size_t i = 0; i < messages.as_array().size(); ++i) check_message(fields, i, messages.as_array()[i]);
}

void check_tools(RequestFields& fields, const Json& tools) {
  if (!tools.is_array())
    return fields.fail("tools", fmt::format("'tools' must be a list, not {}", shown(tools)));
  for (const Json& tool : tools.as_array()) {
    const Json* function = tool.find("function");
    const Json* name = function == nullptr ? nullptr : function->find("name");
    if (name == nullptr || !name->is_string() || name->as_string().empty())
      return fields.fail(
          "tools", fmt::format("each of 'tools' must have a 'function' with a 'name'; this has none: {}",
                               shown(tool)));
  }
}

/// A reply cannot be made to have a call: what is drawn is the model's choice.
void check_tool_choice(RequestFields& fields, const Json& choice) {
  if (choice == Json("none") || choice == Json("auto")) return;
  if (choice == Json("required") || choice.is_object())
    return fields.fail(
        "tool_choice",
        fmt::format("'tool_choice' {} is not supported: this server cannot make a model call a "
                    "function; send \"auto\" or \"none\"",
                    shown(choice)));
  fields.fail("tool_choice",
              fmt::format("'tool_choice' must be \"none\" or \"auto\", not {}", shown(choice)));
}

void read_tools(RequestFields& fields, ChatRequest& request) {
  const Json* tools = fields.take("tools");
  const Json* choice = fields.take("tool_choice");
  fields.unsupported("functions", {"[]"});
  fields.unsupported("function_call", {"\"none\"", "\"auto\""});
  request.parallel_tool_calls = fields.boolean("parallel_tool_calls", true);
  if (choice != nullptr) check_tool_choice(fields, *choice);
  if (tools == nullptr) return;
  check_tools(fields, *tools);
  const bool are_wanted = choice == nullptr || *choice != Json("none");
  if (tools->is_array() && !tools->as_array().empty() && are_wanted) request.tools = *tools;
}

/// `enable_thinking` is Qwen's spelling of the switch, `thinking` with a type that of hosted GLM and
/// DeepSeek.
void read_thinking(RequestFields& fields, ChatRequest& request) {
  if (fields.take("enable_thinking") != nullptr) request.thinking = fields.boolean("enable_thinking", true);
  const Json* thinking = fields.take("thinking");
  if (thinking == nullptr) return;
  const Json* type = thinking->find("type");
  const bool is_on = type != nullptr && *type == Json("enabled");
  if (!is_on && (type == nullptr || *type != Json("disabled")))
    return fields.fail("thinking", fmt::format("'thinking' must be {{\"type\": \"enabled\"}} or "
                                               "{{\"type\": \"disabled\"}}, not {}",
                                               shown(*thinking)));
  if (request.thinking.value_or(is_on) != is_on)
    return fields.fail("thinking", "'thinking' and 'enable_thinking' differ; send one of them");
  request.thinking = is_on;
}

void read_template_fields(RequestFields& fields, ChatRequest& request) {
  request.template_kwargs = Json::object();
  if (const Json* kwargs = fields.take("chat_template_kwargs")) {
    if (!kwargs->is_object())
      return fields.fail("chat_template_kwargs",
                         fmt::format("'chat_template_kwargs' must be an object, not {}", shown(*kwargs)));
    request.template_kwargs = *kwargs;
  }
  read_thinking(fields, request);
  request.reasoning_effort = fields.text("reasoning_effort", "");
  request.date = fields.text("date", "");
  request.add_generation_prompt = fields.boolean("add_generation_prompt", true);
}

void read_chat(RequestFields& fields, const SamplingDefaults& defaults, ChatRequest& request) {
  read_messages(fields, request.messages);
  read_generation(fields, defaults, request.generation);
  const auto newer_name = fields.integer("max_completion_tokens", 1, kMaxTokens);
  if (newer_name && request.generation.max_tokens >= 0 && request.generation.max_tokens != *newer_name)
    fields.fail("max_completion_tokens", "'max_completion_tokens' and 'max_tokens' differ; send one of them");
  if (newer_name) request.generation.max_tokens = *newer_name;
  const bool wants_logprobs = fields.boolean("logprobs", false);
  const auto top = fields.integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top && *top > 0 && !wants_logprobs)
    fields.fail("top_logprobs", "'top_logprobs' is only allowed with \"logprobs\": true");
  if (wants_logprobs) request.generation.num_logprobs = static_cast<int>(top.value_or(0));
  read_tools(fields, request);
  read_template_fields(fields, request);
  fields.unsupported("audio", {});
  fields.unsupported("modalities", {R"(["text"])"});
  fields.unsupported("prediction", {});
  fields.unsupported("web_search_options", {});
  fields.unsupported("verbosity", {"\"medium\""});
  fields.unsupported("continue_final_message", {"false"});
  fields.unsupported("echo", {"false"});
}

// Prompts of text completions.

bool is_token_id(const Json& value, int64_t vocab_size) {
  return value.is_int() && value.as_int() >= 0 && value.as_int() < vocab_size;
}

void add_token_prompt(RequestFields& fields, const Json::Array& ids, int64_t vocab_size,
                      CompletionRequest& request) {
  CompletionRequest::Prompt prompt{.text = {}, .tokens = {}, .is_tokens = true};
  if (ids.empty()) return fields.fail("prompt", "'prompt' must not hold an empty list of token ids");
  for (const Json& id : ids) {
    if (!is_token_id(id, vocab_size))
      return fields.fail(
          "prompt", fmt::format("'prompt' holds {}, which is no token id of this model (0 to {})", shown(id),
                                vocab_size - 1));
    prompt.tokens.push_back(static_cast<int32_t>(id.as_int()));
  }
  request.prompts.push_back(std::move(prompt));
}

void read_prompt(RequestFields& fields, const SamplingDefaults& defaults, CompletionRequest& request) {
  const Json* value = fields.take("prompt");
  const auto refuse = [&] {
    fields.fail(
        "prompt",
        fmt::format("'prompt' must be a string, a list of strings, of token ids or of lists of these{}",
                    value == nullptr ? "" : ", not " + shown(*value)));
  };
  if (value == nullptr) return refuse();
  if (value->is_string())
    return request.prompts.push_back({.text = value->as_string(), .tokens = {}}), void();
  if (!value->is_array() || value->as_array().empty()) return refuse();
  const Json::Array& list = value->as_array();
  if (list[0].is_number()) return add_token_prompt(fields, list, defaults.vocab_size, request);
  for (const Json& item : list) {
    if (item.is_string())
      request.prompts.push_back({.text = item.as_string(), .tokens = {}});
    else if (item.is_array())
      add_token_prompt(fields, item.as_array(), defaults.vocab_size, request);
    else
      return refuse();
  }
}

void read_completion(RequestFields& fields, const SamplingDefaults& defaults, CompletionRequest& request) {
  read_prompt(fields, defaults, request);
  read_generation(fields, defaults, request.generation);
  if (request.generation.max_tokens < 0) request.generation.max_tokens = kDefaultCompletionTokens;
  if (const auto count = fields.integer("logprobs", 0, kMaxTopLogprobs))
    request.generation.num_logprobs = static_cast<int>(*count);
  request.echo = fields.boolean("echo", false);
  if (request.echo && request.generation.num_logprobs >= 0)
    fields.fail(
        "echo",
        "'echo' together with 'logprobs' is not supported: the prompt's own logprobs are not computed");
  const int64_t num_choices = static_cast<int64_t>(request.prompts.size()) * request.generation.num_choices;
  if (num_choices > kMaxChoices)
    fields.fail("n", fmt::format("'prompt' and 'n' ask for {} choices; at most {} are allowed", num_choices,
                                 kMaxChoices));
  fields.unsupported("suffix", {"\"\""});
}

}  // namespace

std::string error_json(const ApiError& error) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  Json inner = Json::object();
  inner.set("message", error.message);
  inner.set("type", error.type);
  inner.set("param", or_null(error.param));
  inner.set("code", or_null(error.code));
  Json outer = Json::object();
  outer.set("error", std::move(inner));
  return dump_json(outer);
}

ApiError to_api_error(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kUnsupported:
      return {.status = 400, .message = status.message(), .param = {}, .code = {}};
    case StatusCode::kNotFound:
      return {.status = 404, .message = status.message(), .param = {}, .code = {}};
    case StatusCode::kBusy:
    case StatusCode::kOutOfMemory:
      return {.status = 503,
              .message = status.message(),
              .type = "server_error",
              .param = {},
              .code = "overloaded"};
    case StatusCode::kCancelled:
      return {.status = 503,
              .message = status.message(),
              .type = "server_error",
              .param = {},
              .code = "cancelled"};
    default:
      return {.status = 500, .message = status.message(), .type = "server_error", .param = {}, .code = {}};
  }
}

std::optional<ApiError> parse_chat_request(std::string_view body, const SamplingDefaults& defaults,
                                           ChatRequest& request) {
  return read_body(body, [&](RequestFields& fields) { read_chat(fields, defaults, request); });
}

std::optional<ApiError> parse_completion_request(std::string_view body, const SamplingDefaults& defaults,
                                                 CompletionRequest& request) {
  return read_body(body, [&](RequestFields& fields) { read_completion(fields, defaults, request); });
}

std::string_view finish_reason_name(FinishReason reason) {
  TF_CHECK(reason == FinishReason::kStop || reason == FinishReason::kLength);
  return reason == FinishReason::kStop ? "stop" : "length";
}

Json usage_json(const Usage& usage) {
  Json details = Json::object();
  details.set("cached_tokens", usage.cached_tokens);
  Json json = Json::object();
  json.set("prompt_tokens", usage.prompt_tokens);
  json.set("completion_tokens", usage.completion_tokens);
  json.set("total_tokens", usage.prompt_tokens + usage.completion_tokens);
  json.set("prompt_tokens_details", std::move(details));
  if (!usage.speculative.drafter.empty()) json.set("speculative", speculative_json(usage.speculative));
  return json;
}

}  // namespace tensorfold
