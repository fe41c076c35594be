// The bodies of OpenAI's endpoints as structs: requests checked field by field, errors and the common parts
// of replies. Every value is validated here, once. Follows OpenAI's API reference for chat completions and
// completions; what is beyond it (top_k, min_p, ignore_eos, draft, chat_template_kwargs, enable_thinking,
// date) is spelled as other local servers spell it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "engine/engine.h"

namespace tensorfold {

/// An error as OpenAI's clients read it. Empty `param` and `code` are written as null.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;
  std::string code;
};

/// {"error":{"message":...,"type":...,"param":...,"code":...}}
std::string error_json(const ApiError& error);

/// The HTTP status and type that a failure of the engine or a template has for a client.
ApiError to_api_error(const Status& status);

/// Values of fields that a request leaves out: those of the server's flags and the model's
/// generation_config.json.
struct SamplingDefaults {
  SamplingParams sampling;
  int64_t vocab_size = 0;  ///< Token ids of prompts are below it.
};

/// What chat and text completions share.
struct GenerationFields {
  std::string model;  ///< "" when left out.
  SamplingParams sampling;
  int64_t max_tokens = -1;  ///< -1: until the context is full.
  std::vector<std::string> stop;
  int num_choices = 1;  ///< `n`.
  bool stream = false;
  bool include_usage = false;  ///< `stream_options.include_usage`.
  int num_logprobs = -1;       ///< As Request::num_logprobs.
  bool ignore_eos = false;
  bool draft = true;  ///< false: decoded serially. The reply is the same.
  /// JSON of the client's names for whom and what a request is (server/session_key.h); "" when left out.
  std::string user;  ///< `user` and `safety_identifier`.
  std::string prompt_cache_key;
};

struct ChatRequest {
  GenerationFields generation;
  /// Checked: a non-empty array of objects with a string `role`; `content` is a string, a list of text parts
  /// or null; tool calls name their function. Otherwise as sent.
  Json messages;
  Json tools;  ///< Array of functions with names, or null: none, or none wanted (`tool_choice: "none"`).
  bool parallel_tool_calls = true;  ///< false: the reply ends with its first call.
  Json template_kwargs;             ///< Object: `chat_template_kwargs`.
  std::optional<bool> thinking;     ///< `enable_thinking`, or `thinking` as {"type": "enabled"}.
  std::string reasoning_effort;     ///< "" when left out.
  std::string date;                 ///< As sent; "" when left out.
  bool add_generation_prompt = true;
};

struct CompletionRequest {
  GenerationFields generation;
  struct Prompt {
    std::string text;             ///< When is_tokens is false.
    std::vector<int32_t> tokens;  ///< When is_tokens.
    bool is_tokens = false;
  };
  std::vector<Prompt> prompts;  ///< At least one.
  bool echo = false;            ///< The reply begins with the prompt.
};

/// Reads a body into `request`. On an error the content of `request` means nothing.
std::optional<ApiError> parse_chat_request(std::string_view body, const SamplingDefaults& defaults,
                                           ChatRequest& request);
std::optional<ApiError> parse_completion_request(std::string_view body, const SamplingDefaults& defaults,
                                                 CompletionRequest& request);

/// "stop" or "length"; the other reasons are errors and have no name here (TF_CHECK).
std::string_view finish_reason_name(FinishReason reason);

/// {"prompt_tokens":...,"completion_tokens":...,"total_tokens":...,"prompt_tokens_details":{"cached_tokens":...}}
/// and, where a drafter guessed, "speculative" (engine/draft_usage.h).
Json usage_json(const Usage& usage);

}  // namespace tensorfold
