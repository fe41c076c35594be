// See draft_bench.h.
#include "engine/draft_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/hash.h"
#include "drafters/tape.h"
#include "engine/pass.h"

namespace tensorfold {
namespace {

using Clock = std::chrono::steady_clock;

/// A reply and when its first and last tokens came.
struct TimedReply {
  std::vector<int32_t> tokens;
  Clock::time_point first, last;
  DraftUsage usage;
  Status status;
};

/// Submits a request and waits for its end.
Result<TimedReply> ask(Engine& engine, Request request) {
  struct State {
    std::mutex mutex;
    std::condition_variable ended;
    bool is_ended = false;
    TimedReply reply;
  };
  const auto state = std::make_shared<State>();
  const auto sink = [state](Event&& event) {
    const Clock::time_point now = Clock::now();
    const std::lock_guard lock(state->mutex);
    TimedReply& reply = state->reply;
    if (reply.tokens.empty()) reply.first = now;
    if (!event.tokens.empty()) reply.last = now;
    for (const GeneratedToken& token : event.tokens) reply.tokens.push_back(token.token);
    if (!event.finish) return;
    reply.status = event.status;
    reply.usage = event.usage.speculative;
    state->is_ended = true;
    state->ended.notify_all();
  };
  TF_RETURN_IF_ERROR(engine.submit(std::move(request), sink).status());
  std::unique_lock lock(state->mutex);
  state->ended.wait(lock, [&] { return state->is_ended; });
  if (!state->reply.status.ok()) return state->reply.status;
  return std::move(state->reply);
}

Request request_of(const DraftWorkload& workload, const SamplingParams& sampling) {
  Request request;
  request.prompt = workload.prompt;
  request.sampling = sampling;
  request.max_tokens = workload.max_tokens;
  return request;
}

/// Where two lists of tokens part, in words; empty where they do not.
std::string tokens_difference(const std::vector<int32_t>& serial, const std::vector<int32_t>& drafted) {
  const size_t both = std::min(serial.size(), drafted.size());
  for (size_t i = 0; i < both; ++i)
    if (serial[i] != drafted[i]) return fmt::format("token {} is {}, serially {}", i, drafted[i], serial[i]);
  if (serial.size() == drafted.size()) return {};
  return fmt::format("the reply has {} tokens, serially {}", drafted.size(), serial.size());
}

Result<double> rate_of(const TimedReply& reply, const std::string& name) {
  const double seconds = std::chrono::duration<double>(reply.last - reply.first).count();
  if (reply.tokens.size() < 2 || seconds <= 0)
    return invalid_argument("workload {}: the reply has {} tokens in one pass, which has no speed", name,
                            reply.tokens.size());
  // What came with the first token of a drafted reply is that token alone: the prompt's pass drafts nothing.
  return static_cast<double>(reply.tokens.size() - 1) / seconds;
}

/// Hashes of the logits of each token of the request that runs.
class LogitsHashes final : public PassObserver {
 public:
  void on_token(RequestId, int64_t, int32_t, std::span<const float> logits) override {
    const std::lock_guard lock(mutex_);
    hashes_.push_back(hash_bytes(std::as_bytes(logits)));
  }
  std::vector<uint64_t> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(hashes_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<uint64_t> hashes_;
};

struct CheckedReply {
  std::vector<int32_t> tokens;
  std::vector<uint64_t> logits;
};

std::string reply_difference(const CheckedReply& serial, const CheckedReply& drafted) {
  const size_t both = std::min(serial.logits.size(), drafted.logits.size());
  for (size_t i = 0; i < both && serial.tokens[i] == drafted.tokens[i]; ++i)
    if (serial.logits[i] != drafted.logits[i]) return fmt::format("token {} has other logits", i);
  return tokens_difference(serial.tokens, drafted.tokens);
}

/// A drafter under test; without a factory it is the one of `mode`.
struct NamedDrafter {
  std::string name;
  DraftMode mode = DraftMode::kLookup;
  DrafterFactory factory = {};
};

/// All of them, for serial replies known by prompt.
std::vector<NamedDrafter> drafters_under_test(const LoadedModel& model,
                                              const std::vector<DraftWorkload>& workloads,
                                              const std::vector<CheckedReply>& serial) {
  const int64_t vocab_size = model.model->spec().vocab_size;
  const auto reply_to = [&workloads, &serial](const Request& request) {
    size_t i = 0;
    while (i < workloads.size() && workloads[i].prompt != request.prompt) ++i;
    TF_CHECK(i < serial.size(), "a request that is no workload's");
    return serial[i].tokens;
  };
  const auto adversary = [reply_to, vocab_size](int64_t num_right) {
    return [reply_to, vocab_size, num_right](const Request& request) {
      return std::make_unique<AdversaryDrafter>(std::ssize(request.prompt), reply_to(request), vocab_size,
                                                num_right);
    };
  };
  const auto tree = [reply_to, vocab_size](int64_t num_after, int64_t num_right) {
    return [=](const Request& request) {
      const TreeTapeDrafter::Shape shape{.num_before = 1, .num_after = num_after, .num_right = num_right};
      return std::make_unique<TreeTapeDrafter>(std::ssize(request.prompt), reply_to(request), vocab_size,
                                               shape);
    };
  };
  std::vector<NamedDrafter> drafters = {{.name = "always wrong", .factory = adversary(0)},
                                        {.name = "wrong here and there", .factory = adversary(-1)},
                                        {.name = "always right",
                                         .factory =
                                             [reply_to](const Request& request) {
                                               return std::make_unique<TapeDrafter>(
                                                   std::ssize(request.prompt), reply_to(request));
                                             }},
                                        {.name = "trees, right last", .factory = tree(0, kMaxDraftTokens)},
                                        {.name = "trees, wrong somewhere", .factory = tree(1, -1)},
                                        {.name = "lookup", .mode = DraftMode::kLookup},
                                        {.name = "auto", .mode = DraftMode::kAuto}};
  if (model.draft_model != nullptr) {
    drafters.push_back({.name = model.draft_model->name, .mode = DraftMode::kModel});
  } else if (model.model->draft_head() != nullptr) {
    drafters.push_back({.name = "mtp", .mode = DraftMode::kModel});
  }
  return drafters;
}

/// All workloads, one after the other in one engine.
Result<std::vector<CheckedReply>> run_workloads(const std::shared_ptr<LoadedModel>& model,
                                                const VerifyBench& bench, const NamedDrafter& drafter,
                                                float temperature, DraftUsage& usage) {
  LogitsHashes hashes;
  EngineOptions options = bench.engine;
  options.draft = drafter.mode;
  options.make_drafter = drafter.factory;
  options.observer = &hashes;
  TF_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::create(model, options));
  std::vector<CheckedReply> replies;
  for (const DraftWorkload& workload : bench.workloads) {
    SamplingParams sampling;
    sampling.temperature = temperature;
    TF_ASSIGN_OR_RETURN(TimedReply reply, ask(*engine, request_of(workload, sampling)));
    usage.add(reply.usage);
    replies.push_back({std::move(reply.tokens), hashes.take()});
  }
  return replies;
}

}  // namespace

Result<DraftRate> bench_drafts(Engine& engine, const DraftWorkload& workload, const SamplingParams& sampling,
                               int64_t num_samples) {
  if (num_samples < 1) return invalid_argument("num_samples is {}, expected 1 or more", num_samples);
  DraftRate rate;
  std::vector<double> serial_rates, drafted_rates, ratios;
  for (int64_t i = 0; i < num_samples; ++i) {
    Request request = request_of(workload, sampling);
    request.draft = false;
    TF_ASSIGN_OR_RETURN(const TimedReply serial, ask(engine, request));
    request.draft = true;
    TF_ASSIGN_OR_RETURN(const TimedReply drafted, ask(engine, request));
    TF_ASSIGN_OR_RETURN(const double drafted_rate, rate_of(drafted, workload.name));
    TF_ASSIGN_OR_RETURN(const double serial_rate, rate_of(serial, workload.name));
    serial_rates.push_back(serial_rate);
    drafted_rates.push_back(drafted_rate);
    ratios.push_back(drafted_rate / serial_rate);
    if (rate.difference.empty()) rate.difference = tokens_difference(serial.tokens, drafted.tokens);
    rate.num_tokens = std::ssize(serial.tokens);
    rate.usage = drafted.usage;
  }
  rate.serial = summarize_rates(std::move(serial_rates));
  rate.drafted = summarize_rates(std::move(drafted_rates));
  rate.speed_up = summarize_rates(std::move(ratios)).median;
  return rate;
}

Result<DraftRate> bench_tape(const std::shared_ptr<LoadedModel>& model, EngineOptions options,
                             const DraftWorkload& workload, const SamplingParams& sampling,
                             int64_t num_samples) {
  TimedReply serial;
  {
    options.draft = DraftMode::kOff;
    TF_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::create(model, options));
    TF_ASSIGN_OR_RETURN(serial, ask(*engine, request_of(workload, sampling)));
  }
  options.draft = DraftMode::kLookup;
  options.make_drafter = [&serial](const Request& request) {
    return std::make_unique<TapeDrafter>(std::ssize(request.prompt), serial.tokens);
  };
  TF_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::create(model, options));
  return bench_drafts(*engine, workload, sampling, num_samples);
}

Result<std::vector<VerifyResult>> verify_drafts(const std::shared_ptr<LoadedModel>& model,
                                                const VerifyBench& bench) {
  std::vector<VerifyResult> results;
  for (const float temperature : bench.temperatures) {
    DraftUsage unused;
    const NamedDrafter nobody{.name = "serial", .mode = DraftMode::kOff};
    TF_ASSIGN_OR_RETURN(const std::vector<CheckedReply> serial,
                        run_workloads(model, bench, nobody, temperature, unused));
    for (const NamedDrafter& drafter : drafters_under_test(*model, bench.workloads, serial)) {
      VerifyResult result;
      result.drafter = drafter.name;
      result.temperature = temperature;
      TF_ASSIGN_OR_RETURN(const std::vector<CheckedReply> drafted,
                          run_workloads(model, bench, drafter, temperature, result.usage));
      for (size_t i = 0; i < serial.size(); ++i) {
        result.num_tokens += std::ssize(serial[i].tokens);
        const std::string difference = reply_difference(serial[i], drafted[i]);
        if (result.difference.empty() && !difference.empty())
          result.difference = fmt::format("{}: {}", bench.workloads[i].name, difference);
      }
      results.push_back(std::move(result));
    }
  }
  return results;
}

}  // namespace tensorfold
