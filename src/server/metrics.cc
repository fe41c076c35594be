// See metrics.h. Names follow Prometheus' conventions: base units, _total for counters.
#include "server/metrics.h"

#include <fmt/format.h>

#include <string_view>

namespace tensorfold {
namespace {

void add_header(std::string& out, std::string_view name, std::string_view type, std::string_view help) {
  fmt::format_to(std::back_inserter(out), "# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

void add_value(std::string& out, std::string_view name, std::string_view type, std::string_view help,
               int64_t value) {
  add_header(out, name, type, help);
  fmt::format_to(std::back_inserter(out), "{} {}\n", name, value);
}

void add_summary(std::string& out, std::string_view name, std::string_view help, int64_t sum_us,
                 int64_t count) {
  add_header(out, name, "summary", help);
  fmt::format_to(std::back_inserter(out), "{0}_sum {1:.6f}\n{0}_count {2}\n", name,
                 static_cast<double>(sum_us) / 1e6, count);
}

}  // namespace

std::string Metrics::text(const EngineStats& engine, int64_t num_connections) const {
  std::string out;
  add_value(out, "tensorfold_http_requests_total", "counter", "HTTP requests received.", requests_);
  add_value(out, "tensorfold_http_connections", "gauge", "Open connections.", num_connections);
  add_header(out, "tensorfold_replies_total", "counter", "Generation requests by how they ended.");
  constexpr std::string_view kOutcomes[] = {"done", "refused", "failed", "cancelled"};
  for (size_t i = 0; i < outcomes_.size(); ++i)
    fmt::format_to(std::back_inserter(out), "tensorfold_replies_total{{outcome=\"{}\"}} {}\n", kOutcomes[i],
                   outcomes_[i].load());
  add_summary(out, "tensorfold_time_to_first_token_seconds", "From the request to its first token.",
              first_token_us_, first_tokens_);
  add_summary(out, "tensorfold_reply_seconds", "From the request to the end of its reply.", reply_us_,
              replies_);
  add_value(out, "tensorfold_sequences_running", "gauge", "Sequences in the passes.", engine.running);
  add_value(out, "tensorfold_sequences_queued", "gauge", "Sequences that wait.", engine.queued);
  add_value(out, "tensorfold_kv_pages_used", "gauge", "KV pages in use.", engine.kv_pages_used);
  add_value(out, "tensorfold_kv_pages_limit", "gauge", "KV pages there may be.", engine.kv_pages_total);
  add_value(out, "tensorfold_kv_bytes", "gauge", "Bytes of the KV pages in use.", engine.kv_bytes);
  add_value(out, "tensorfold_passes_total", "counter", "Passes through the model.", engine.passes);
  add_value(out, "tensorfold_prompt_tokens_total", "counter", "Prompt tokens computed.",
            engine.prompt_tokens);
  add_value(out, "tensorfold_generated_tokens_total", "counter", "Tokens generated.",
            engine.generated_tokens);
  add_value(out, "tensorfold_preemptions_total", "counter", "Sequences that lost their KV pages for a while.",
            engine.preemptions);
  add_value(out, "tensorfold_draft_rounds_total", "counter", "Verifications of a sequence's guessed tokens.",
            engine.draft_rounds);
  add_value(out, "tensorfold_draft_tokens_total", "counter", "Guessed tokens that were verified.",
            engine.draft_tokens);
  add_value(out, "tensorfold_draft_accepted_tokens_total", "counter", "Guessed tokens that were right.",
            engine.draft_accepted_tokens);
  add_value(out, "tensorfold_draft_zero_accept_rounds_total", "counter", "Rounds without a right guess.",
            engine.draft_zero_accept_rounds);
  add_value(out, "tensorfold_draft_passes_avoided_total", "counter",
            "Generated tokens that took no pass of their own.", engine.draft_passes_avoided);
  add_value(out, "tensorfold_sessions", "gauge", "Conversations whose texts are kept for guesses.",
            engine.sessions);
  add_value(out, "tensorfold_session_tokens", "gauge", "Tokens of these texts.", engine.session_tokens);
  return out;
}

}  // namespace tensorfold
