// Recordings and their comparison (tests/matrix/recording.h).
#include "tests/matrix/recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace tensorfold {
namespace {

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

std::optional<std::string> logits_difference(const std::vector<float>& expected,
                                             const std::vector<float>& found, size_t token_idx) {
  if (expected.size() != found.size()) return fmt::format("token {} has {} logits", token_idx, found.size());
  const auto differs = [](float a, float b) { return !same_bits(a, b); };
  size_t num_different = 0, first = 0;
  for (size_t v = expected.size(); v-- > 0;) {
    if (!differs(expected[v], found[v])) continue;
    ++num_different;
    first = v;
  }
  if (num_different == 0) return std::nullopt;
  return fmt::format("token {}: {} of {} logits differ, first logit {}: {:a}, expected {:a}", token_idx,
                     num_different, expected.size(), first, found[first], expected[first]);
}

std::optional<std::string> logprobs_difference(const GeneratedToken& expected, const GeneratedToken& found) {
  if (expected.top_logprobs.empty() || found.top_logprobs.empty()) return std::nullopt;
  if (!same_bits(expected.logprob, found.logprob)) return fmt::format("logprob of token {}", expected.token);
  const size_t num_both = std::min(expected.top_logprobs.size(), found.top_logprobs.size());
  for (size_t i = 0; i < num_both; ++i) {
    const TokenLogprob &a = expected.top_logprobs[i], &b = found.top_logprobs[i];
    if (a.token != b.token || !same_bits(a.logprob, b.logprob)) return fmt::format("top logprob {}", i);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> first_difference(const Recording& expected, const Recording& found) {
  if (found.error != expected.error)
    return fmt::format("error '{}', expected '{}'", found.error, expected.error);
  const size_t num_both = std::min(expected.logits.size(), found.logits.size());
  for (size_t i = 0; i < num_both; ++i) {
    if (auto difference = logits_difference(expected.logits[i], found.logits[i], i)) return difference;
    if (expected.tokens[i] != found.tokens[i]) {
      return fmt::format("token {} is {}, expected {}, from equal logits", i, found.tokens[i],
                         expected.tokens[i]);
    }
    if (auto difference = logprobs_difference(expected.generated[i], found.generated[i])) return difference;
  }
  if (found.tokens.size() != expected.tokens.size() || found.logits.size() != expected.logits.size()) {
    return fmt::format("{} tokens ({} with logits), expected {}", found.tokens.size(), found.logits.size(),
                       expected.tokens.size());
  }
  if (found.text != expected.text) return fmt::format("text '{}', expected '{}'", found.text, expected.text);
  if (found.finish != expected.finish) return std::string("finish reason");
  return std::nullopt;
}

void LogitsRecorder::close() {
  const std::lock_guard lock(mutex_);
  is_open_ = false;
}

void LogitsRecorder::open() {
  const std::lock_guard lock(mutex_);
  is_open_ = true;
  opened_.notify_all();
}

void LogitsRecorder::on_token(RequestId id, int64_t, int32_t, std::span<const float> logits) {
  std::unique_lock lock(mutex_);
  opened_.wait(lock, [&] { return is_open_; });
  logits_[id].emplace_back(logits.begin(), logits.end());
}

std::vector<std::vector<float>> LogitsRecorder::take(RequestId id) {
  const std::lock_guard lock(mutex_);
  return std::exchange(logits_[id], {});
}

}  // namespace tensorfold
