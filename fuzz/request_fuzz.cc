// Bodies of both generation endpoints: whatever comes in, the answer is a request or one error with a message.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "server/openai_schema.h"

namespace {

void check_error(const tensorfold::ApiError& error) {
  TF_CHECK(error.status == 400);
  TF_CHECK(!error.message.empty() && error.message.size() < 1000);
  TF_CHECK(tensorfold::parse_json(tensorfold::error_json(error)).ok());
}

void check_generation(const tensorfold::GenerationFields& fields) {
  TF_CHECK(fields.sampling.temperature >= 0 && fields.sampling.temperature <= 100);
  TF_CHECK(fields.sampling.top_p > 0 && fields.sampling.top_p <= 1);
  TF_CHECK(fields.sampling.min_p >= 0 && fields.sampling.min_p <= 1);
  TF_CHECK(fields.sampling.top_k >= 0);
  TF_CHECK(fields.max_tokens == -1 || fields.max_tokens >= 1);
  TF_CHECK(fields.num_choices >= 1 && fields.num_logprobs >= -1 && fields.num_logprobs <= 20);
  for (const std::string& stop : fields.stop) TF_CHECK(!stop.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const tensorfold::SamplingDefaults defaults{.sampling = {}, .vocab_size = 1000};
  tensorfold::ChatRequest chat;
  if (const auto error = tensorfold::parse_chat_request(body, defaults, chat)) {
    check_error(*error);
  } else {
    check_generation(chat.generation);
    TF_CHECK(chat.messages.is_array() && !chat.messages.as_array().empty());
  }
  tensorfold::CompletionRequest completion;
  if (const auto error = tensorfold::parse_completion_request(body, defaults, completion)) {
    check_error(*error);
  } else {
    check_generation(completion.generation);
    TF_CHECK(!completion.prompts.empty());
    for (const auto& prompt : completion.prompts)
      for (const int32_t token : prompt.tokens) TF_CHECK(token >= 0 && token < 1000);
  }
  return 0;
}
