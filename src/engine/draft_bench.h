// What drafts are worth and whether they are exact, on a loaded model: `tensorfold bench drafts|verify`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/bench.h"
#include "engine/engine.h"

namespace tensorfold {

/// A prompt and how long its reply may be.
struct DraftWorkload {
  std::string name;
  std::vector<int32_t> prompt;
  int64_t max_tokens = 0;
};

/// One workload, decoded serially and with drafts in turn. Rates are of the tokens after the first.
struct DraftRate {
  BenchRate serial;
  BenchRate drafted;
  double speed_up = 0;  ///< Median over the pairs of drafted rate over serial rate.
  int64_t num_tokens = 0;
  DraftUsage usage;        ///< Of the last drafted reply.
  std::string difference;  ///< Where a drafted reply is not the serial one; empty: it is, byte for byte.
};

/// Runs the workload num_samples times each way, serial first. The engine drafts (EngineOptions::draft);
/// nothing else may use it meanwhile. Errors: a request is refused or fails, or the reply has less than two
/// tokens.
Result<DraftRate> bench_drafts(Engine& engine, const DraftWorkload& workload, const SamplingParams& sampling,
                               int64_t num_samples);

/// The same with guesses that are always right, a tape of the serial reply, options.draft_max in every
/// pass that has so many left: the most that drafts of that length can gain. Starts engines of its own;
/// `draft` and `make_drafter` are set here.
Result<DraftRate> bench_tape(const std::shared_ptr<LoadedModel>& model, EngineOptions options,
                             const DraftWorkload& workload, const SamplingParams& sampling,
                             int64_t num_samples);

/// What `bench verify` runs.
struct VerifyBench {
  std::vector<DraftWorkload> workloads;
  std::vector<float> temperatures = {0.0f, 1.0f};
  EngineOptions engine;  ///< draft_max and limits; `draft`, `make_drafter` and `observer` are set here.
};

/// One drafter at one temperature, over all workloads.
struct VerifyResult {
  std::string drafter;
  float temperature = 0;
  int64_t num_tokens = 0;
  DraftUsage usage;
  std::string
      difference;  ///< The first thing that is not as in serial decoding; empty: equal, logits included.
};

/// Decodes each workload serially, then with a drafter that is always wrong, one that is wrong at each place
/// in turn, one that is always right (a tape of the serial reply), trees with the reply in their last branch
/// and trees that part from it at each depth in turn, and each real drafter, and compares tokens and the bits
/// of their logits. Errors: an engine does not start, or a request is refused or fails.
Result<std::vector<VerifyResult>> verify_drafts(const std::shared_ptr<LoadedModel>& model,
                                                const VerifyBench& bench);

}  // namespace tensorfold
