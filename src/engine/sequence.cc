// The edge of the engine: what is checked of a request before it becomes a Sequence.
#include "engine/sequence.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/sampler.h"

namespace tensorfold {
namespace {

constexpr int kMaxLogprobs = 20;

Status check_tokens(const std::vector<int32_t>& prompt, int64_t vocab_size) {
  if (prompt.empty()) return invalid_argument("the prompt has no tokens");
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] < 0 || prompt[i] >= vocab_size) {
      return invalid_argument("prompt token {} is {}, expected 0 to {}", i, prompt[i], vocab_size - 1);
    }
  }
  return {};
}

Status check_stop(const std::vector<std::string>& stop, bool has_tokenizer) {
  if (!stop.empty() && !has_tokenizer)
    return invalid_argument("stop strings need a tokenizer; this model has none");
  for (size_t i = 0; i < stop.size(); ++i) {
    if (stop[i].empty()) return invalid_argument("stop string {} is empty", i);
  }
  return {};
}

Status check_length(const Request& request, int64_t context_tokens) {
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (request.max_tokens < -1)
    return invalid_argument("max_tokens is {}, expected 0 or more", request.max_tokens);
  if (prompt_tokens < context_tokens || (request.max_tokens == 0 && prompt_tokens == context_tokens))
    return {};
  return invalid_argument(
      "the prompt has {} tokens, which leaves no room for a reply in a context of {} tokens", prompt_tokens,
      context_tokens);
}

/// How long the sequence of a checked request may become.
int64_t longest_sequence(const Request& request, int64_t context_tokens) {
  if (request.max_tokens < 0) return context_tokens;
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  return prompt_tokens + std::min(request.max_tokens, context_tokens - prompt_tokens);
}

std::string_view reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "";
}

}  // namespace

std::string finished_line(const Sequence& sequence, FinishReason reason) {
  using Seconds = std::chrono::duration<double>;
  const auto now = std::chrono::steady_clock::now();
  const Usage usage = sequence.usage();
  std::string line = fmt::format("request {}: {}, {} prompt tokens, {} completion tokens, {:.3f} s",
                                 sequence.id, reason_name(reason), usage.prompt_tokens,
                                 usage.completion_tokens, Seconds(now - sequence.submitted_at).count());
  if (usage.completion_tokens > 1)
    line += fmt::format(", {:.1f} tokens/s", static_cast<double>(usage.completion_tokens - 1) /
                                                 Seconds(now - sequence.first_token_at).count());
  if (const DraftUsage& drafts = usage.speculative; drafts.rounds > 0)
    line += fmt::format(", {} of {} drafted tokens accepted ({})", drafts.accepted, drafts.drafted,
                        drafts.drafter);
  return line;
}

Status check_request(const Request& request, const SequenceLimits& limits, bool has_tokenizer) {
  TF_RETURN_IF_ERROR(check_tokens(request.prompt, limits.vocab_size));
  TF_RETURN_IF_ERROR(check_sampling(request.sampling));
  TF_RETURN_IF_ERROR(check_stop(request.stop, has_tokenizer));
  if (request.num_logprobs < -1 || request.num_logprobs > kMaxLogprobs) {
    return invalid_argument("logprobs is {}, expected 0 to {}", request.num_logprobs, kMaxLogprobs);
  }
  return check_length(request, limits.context_tokens);
}

std::unique_ptr<Sequence> make_sequence(Request request, EventSink sink, const SequenceLimits& limits,
                                        const std::shared_ptr<const Tokenizer>& tokenizer, KvPagePool& pool,
                                        StateSlotPool& slots) {
  const int64_t max_total_tokens = longest_sequence(request, limits.context_tokens);
  auto sequence =
      std::make_unique<Sequence>(pool, slots, TextStream(tokenizer, request.stop, std::move(request.format)));
  sequence->num_prompt_tokens = static_cast<int64_t>(request.prompt.size());
  sequence->seed = request.sampling.seed ? *request.sampling.seed : default_seed(request.prompt);
  sequence->tokens = std::move(request.prompt);
  sequence->max_total_tokens = max_total_tokens;
  sequence->sampling = request.sampling;
  sequence->num_logprobs = request.num_logprobs;
  sequence->ignore_eos = request.ignore_eos;
  sequence->session = request.session;
  sequence->sink = std::move(sink);
  sequence->submitted_at = std::chrono::steady_clock::now();
  return sequence;
}

}  // namespace tensorfold
