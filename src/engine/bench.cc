// The measurements of engine/bench.h.
#include "engine/bench.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "base/hash.h"
#include "base/thread_pool.h"
#include "device/cuda_device.h"
#include "device/device.h"
#include "engine/weight_traffic.h"

namespace tensorfold {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

/// When the tokens of one request came. Shared with its sink.
class TokenTimes {
 public:
  EventSink sink() {
    return [state = state_](Event&& event) {
      const Clock::time_point now = Clock::now();
      const std::lock_guard lock(state->mutex);
      state->times.insert(state->times.end(), event.tokens.size(), now);
      state->status = event.status;
      state->done = event.finish.has_value();
      if (state->done) state->changed.notify_all();
    };
  }

  /// Blocks until the reply is complete.
  Result<std::vector<Clock::time_point>> wait() {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] { return state_->done; });
    if (!state_->status.ok()) return state_->status;
    return state_->times;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Clock::time_point> times;
    Status status;
    bool done = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

Request make_request(const Engine& engine, int64_t prompt_tokens, int64_t max_tokens, uint64_t seed) {
  const auto vocab_size = static_cast<uint64_t>(engine.model().model->spec().vocab_size);
  Request request;
  for (int64_t i = 0; i < prompt_tokens; ++i) {
    request.prompt.push_back(static_cast<int32_t>(mix64(seed << 32 | static_cast<uint64_t>(i)) % vocab_size));
  }
  request.sampling.temperature = 0.0f;
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return request;
}

Result<std::vector<Clock::time_point>> run_one(Engine& engine, Request request) {
  const int64_t max_tokens = request.max_tokens;
  TokenTimes times;
  TF_RETURN_IF_ERROR(engine.submit(std::move(request), times.sink()).status());
  TF_ASSIGN_OR_RETURN(std::vector<Clock::time_point> tokens, times.wait());
  if (std::ssize(tokens) < max_tokens) {
    return invalid_argument("the context of {} tokens ended a reply after {} of {} tokens",
                            engine.context_tokens(), tokens.size(), max_tokens);
  }
  return tokens;
}

Status warm_up(Engine& engine) { return run_one(engine, make_request(engine, 8, 4, 1)).status(); }

Status check_at_least(const char* name, int64_t value, int64_t least) {
  if (value >= least) return {};
  return invalid_argument("{} is {}, expected {} or more", name, value, least);
}

Result<BenchRate> measure_decode(Engine& engine, const DecodeBench& bench, int64_t context_tokens) {
  const int64_t n = bench.tokens_per_sample;
  // The first token ends the prompt's pass; what is measured lies between it and the last.
  TF_ASSIGN_OR_RETURN(const auto times,
                      run_one(engine, make_request(engine, context_tokens, n * bench.num_samples + 1,
                                                   static_cast<uint64_t>(context_tokens) + 2)));
  std::vector<double> rates;
  for (int64_t i = 0; i < bench.num_samples; ++i) {
    rates.push_back(static_cast<double>(n) / seconds(times[(i + 1) * n] - times[i * n]));
  }
  return summarize_rates(std::move(rates));
}

Result<BenchRate> measure_prefill(Engine& engine, const PrefillBench& bench, int64_t prompt_tokens) {
  std::vector<double> rates;
  for (int64_t i = 0; i < bench.num_samples; ++i) {
    Request request = make_request(engine, prompt_tokens, 1, static_cast<uint64_t>(i) + 3);
    const Clock::time_point start = Clock::now();
    TF_ASSIGN_OR_RETURN(const auto times, run_one(engine, std::move(request)));
    rates.push_back(static_cast<double>(prompt_tokens) / seconds(times[0] - start));
  }
  return summarize_rates(std::move(rates));
}

/// Tokens per second of all streams from when the last of them started to when the first ended.
Result<double> measure_streams(Engine& engine, const BatchBench& bench, int64_t streams, uint64_t round) {
  std::vector<TokenTimes> replies(static_cast<size_t>(streams));
  for (int64_t i = 0; i < streams; ++i) {
    const uint64_t seed = (round << 16) + static_cast<uint64_t>(i) + 5;
    Request request = make_request(engine, bench.prompt_tokens, bench.tokens_per_stream, seed);
    TF_RETURN_IF_ERROR(engine.submit(std::move(request), replies[static_cast<size_t>(i)].sink()).status());
  }
  std::vector<std::vector<Clock::time_point>> times;
  for (TokenTimes& reply : replies) {
    TF_ASSIGN_OR_RETURN(std::vector<Clock::time_point> tokens, reply.wait());
    times.push_back(std::move(tokens));
  }
  Clock::time_point start = times[0].front(), end = times[0].back();
  for (const auto& stream : times) {
    start = std::max(start, stream.front());
    end = std::min(end, stream.back());
  }
  if (end <= start) {
    return invalid_argument(
        "{} streams never decoded all at once: raise tokens_per_stream from {}, or KV memory", streams,
        bench.tokens_per_stream);
  }
  int64_t num_tokens = 0;
  for (const auto& stream : times) {
    num_tokens += std::count_if(stream.begin(), stream.end(), [&](auto t) { return t > start && t <= end; });
  }
  return static_cast<double>(num_tokens) / seconds(end - start);
}

}  // namespace

BenchRate summarize_rates(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const size_t n = samples.size(), middle = n / 2;
  const double median = n % 2 == 1 ? samples[middle] : 0.5 * (samples[middle - 1] + samples[middle]);
  return {.median = median,
          .lowest = samples.front(),
          .highest = samples.back(),
          .num_samples = std::ssize(samples)};
}

Result<std::vector<DecodeRate>> bench_decode(Engine& engine, const DecodeBench& bench) {
  TF_RETURN_IF_ERROR(check_at_least("tokens_per_sample", bench.tokens_per_sample, 1));
  TF_RETURN_IF_ERROR(check_at_least("num_samples", bench.num_samples, 1));
  const int64_t fixed_bytes = decode_weight_bytes(engine.model()) + decode_state_bytes(engine.model());
  TF_RETURN_IF_ERROR(warm_up(engine));
  std::vector<DecodeRate> rates;
  for (const int64_t context_tokens : bench.contexts) {
    TF_RETURN_IF_ERROR(check_at_least("context", context_tokens, 1));
    TF_ASSIGN_OR_RETURN(const BenchRate rate, measure_decode(engine, bench, context_tokens));
    const int64_t mean_context = context_tokens + bench.tokens_per_sample * bench.num_samples / 2;
    rates.push_back({.context_tokens = context_tokens,
                     .rate = rate,
                     .bytes_per_token = fixed_bytes + decode_kv_bytes(engine.model(), mean_context)});
  }
  return rates;
}

Result<std::vector<PrefillRate>> bench_prefill(Engine& engine, const PrefillBench& bench) {
  TF_RETURN_IF_ERROR(check_at_least("num_samples", bench.num_samples, 1));
  TF_RETURN_IF_ERROR(warm_up(engine));
  std::vector<PrefillRate> rates;
  for (const int64_t prompt_tokens : bench.prompt_tokens) {
    TF_RETURN_IF_ERROR(check_at_least("prompt_tokens", prompt_tokens, 1));
    TF_ASSIGN_OR_RETURN(const BenchRate rate, measure_prefill(engine, bench, prompt_tokens));
    rates.push_back({.prompt_tokens = prompt_tokens, .rate = rate});
  }
  return rates;
}

Result<std::vector<BatchRate>> bench_batch(Engine& engine, const BatchBench& bench) {
  TF_RETURN_IF_ERROR(check_at_least("num_samples", bench.num_samples, 1));
  TF_RETURN_IF_ERROR(check_at_least("tokens_per_stream", bench.tokens_per_stream, 2));
  TF_RETURN_IF_ERROR(check_at_least("prompt_tokens", bench.prompt_tokens, 1));
  TF_RETURN_IF_ERROR(warm_up(engine));
  std::vector<BatchRate> rates;
  for (const int64_t streams : bench.streams) {
    TF_RETURN_IF_ERROR(check_at_least("streams", streams, 1));
    std::vector<double> samples;
    for (int64_t i = 0; i < bench.num_samples; ++i) {
      TF_ASSIGN_OR_RETURN(const double rate,
                          measure_streams(engine, bench, streams, static_cast<uint64_t>(i)));
      samples.push_back(rate);
    }
    rates.push_back({.streams = streams, .rate = summarize_rates(std::move(samples))});
  }
  return rates;
}

Result<double> measure_copy_bandwidth(const LoadedModel& model) {
  return measure_copy_bandwidth(model.ops->device());
}

Result<double> measure_read_bandwidth(int num_threads) {
  constexpr int64_t kLargest_bytes = int64_t{1} << 30;  // most caches hold less than a tenth of it
  constexpr int64_t kPiece_bytes = int64_t{4} << 20, kPiece_words = kPiece_bytes / int64_t{sizeof(uint64_t)};
  constexpr int kRounds = 5;
  const int64_t wanted_bytes = std::min(kLargest_bytes, cpu_device().free_bytes() / 4);
  const int64_t num_pieces = std::max<int64_t>(wanted_bytes / kPiece_bytes, 1);
  const int64_t buffer_bytes = num_pieces * kPiece_bytes;
  TF_ASSIGN_OR_RETURN(const Buffer buffer,
                      cpu_device().allocate(buffer_bytes, "buffer of the bandwidth measurement"));
  auto* words = reinterpret_cast<uint64_t*>(buffer.data());
  ThreadPool pool(num_threads > 0 ? num_threads : num_usable_cpus());
  // Written first: untouched pages would all be the kernel's one page of zeros, which stays in the cache.
  pool.run(num_pieces, [&](int64_t piece) {
    for (int64_t i = 0; i < kPiece_words; ++i) words[piece * kPiece_words + i] = static_cast<uint64_t>(i);
  });
  std::atomic<uint64_t> total{0};  // keeps the sums from being optimized away
  double best_s = 1e30;
  for (int round = 0; round < kRounds; ++round) {
    const Clock::time_point start = Clock::now();
    pool.run(num_pieces, [&](int64_t piece) {
      const uint64_t* from = words + piece * kPiece_words;
      uint64_t sums[8] = {};
      for (int64_t i = 0; i < kPiece_words; i += 8) {
        for (int lane = 0; lane < 8; ++lane) sums[lane] += from[i + lane];
      }
      total.fetch_add(sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7]);
    });
    best_s = std::min(best_s, seconds(Clock::now() - start));
  }
  return static_cast<double>(buffer_bytes) / best_s;
}

}  // namespace tensorfold
