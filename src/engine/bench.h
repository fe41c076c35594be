// Measurements of a loaded model through the engine, as a client would see it: `tensorfold bench
// decode|prefill|batch`.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"

namespace tensorfold {

/// Repeated measurements of one thing.
struct BenchRate {
  double median = 0;  ///< Tokens per second.
  double lowest = 0;
  double highest = 0;
  int64_t num_samples = 0;
};

/// Of at least one sample.
BenchRate summarize_rates(std::vector<double> samples);

struct DecodeBench {
  std::vector<int64_t> contexts = {128};  ///< Prompt tokens before the first measured one; each >= 1.
  int64_t tokens_per_sample = 32;
  int64_t num_samples = 5;  ///< One after the other in one reply, so the context grows by their tokens.
};

struct DecodeRate {
  int64_t context_tokens = 0;  ///< At the start of the first sample.
  BenchRate rate;
  int64_t bytes_per_token =
      0;  ///< Weights, keys and values that a token reads, states that it reads and writes; mean context.
};

struct PrefillBench {
  std::vector<int64_t> prompt_tokens = {512};  ///< Each >= 1.
  int64_t num_samples = 3;                     ///< Different prompts, so that no cache can help.
};

struct PrefillRate {
  int64_t prompt_tokens = 0;
  BenchRate rate;  ///< Prompt tokens over the time to the first token.
};

struct BatchBench {
  std::vector<int64_t> streams = {1, 4, 16};  ///< Requests at once; each >= 1.
  int64_t prompt_tokens = 32;
  int64_t tokens_per_stream = 64;  ///< At least 2.
  int64_t num_samples = 3;
};

struct BatchRate {
  int64_t streams = 0;
  BenchRate rate;  ///< Tokens of all streams while all of them decode.
};

/// Greedy, past end-of-sequence tokens, on prompts of pseudo-random tokens. Nothing else may use the engine
/// meanwhile. Each runs a short reply first as warm-up. Errors: a request is refused or fails, or a number is
/// below its least.
Result<std::vector<DecodeRate>> bench_decode(Engine& engine, const DecodeBench& bench);
Result<std::vector<PrefillRate>> bench_prefill(Engine& engine, const PrefillBench& bench);
Result<std::vector<BatchRate>> bench_batch(Engine& engine, const BatchBench& bench);

/// Bytes per second at which num_threads threads (0: all usable CPUs) read host memory: 64-bit sums over a
/// buffer far larger than the caches, best of several rounds. The limit that decoding is compared with.
/// kOutOfMemory: no room for the buffer.
Result<double> measure_read_bandwidth(int num_threads);

/// Bytes per second that a copy within the memory of the model's device reads and writes together: the limit on GPUs.
Result<double> measure_copy_bandwidth(const LoadedModel& model);

}  // namespace tensorfold
