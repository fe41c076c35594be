// The rows of the exactness matrix: what is changed, none of which may change a byte (testing.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/loaded_model.h"
#include "tests/matrix/recording.h"

namespace tensorfold {

/// How the requests of the workload meet.
enum class Company {
  kAlone,      ///< One after the other, each in an engine of its own.
  kOneEngine,  ///< One after the other in one engine.
  kTogether,   ///< All at once, in the reverse order.
  kCrowd,      ///< One after the other, each among 15 others that join, leave or are cancelled meanwhile.
  kCancelled,  ///< Each is asked, cancelled after three tokens, and asked again.
};

/// Who guesses tokens.
enum class Guesser {
  kNobody,
  kLookup,
  kLookupMeasured,  ///< As many guesses as are measured to pay: EngineOptions' kAuto.
  kTape,            ///< Right each time.
  kHead,            ///< The model's own draft head; other models do not run the row.
  kBlock,           ///< A random block drafter made for the model: wrong but by chance.
  kBlockTree,       ///< The same, with several guesses for a place: trees whatever they cost.
  kItself,          ///< The model as its own draft model: right each time, since both draw alike.
  kAdversary,       ///< Wrong at the first, the second, ... guess of each proposal in turn, right after it.
  kTree,            ///< Trees whose last branch is right: never the first.
  kTreeAdversary,   ///< Trees of which no branch is right beyond no, one, two, ... guesses in turn.
};

struct Variation {
  std::string name;
  Company company = Company::kAlone;
  EngineOptions engine = {};
  LoadOptions load = {};
  bool is_restarted = false;  ///< The model is loaded anew.
  bool must_preempt =
      false;  ///< KV memory is as small as it can be; a run without a preemption proves nothing.
  Guesser guesser = Guesser::kNobody;
  std::vector<int64_t> widths = {};  ///< With a guesser: most guesses of a pass, each in a run of its own.
  bool toggle_logprobs = false;  ///< Requests that ask for log-probabilities do not, and the other way round.
  bool is_slow = false;          ///< Left out of runs on large models unless asked for.
  std::string not_run;           ///< Why this machine cannot run it; empty: it can.
};

/// One request, one thread, one pass after the other, nothing shared.
Variation baseline();

/// Every other row of the table, in order. Sets of instructions that this CPU lacks are there, with not_run.
std::vector<Variation> all_variations();

/// The requests that every variation asks: greedy and sampled, of one token and of several pages, with and
/// without log-probabilities, seeds and end-of-sequence tokens; replies of up to max_tokens tokens.
std::vector<Request> make_workload(const ModelSpec& spec, int64_t max_tokens);

/// Asks the workload of the model and records each reply, in the order of the workload. `expected`: the
/// replies of the baseline, for guessers that know them; empty for the baseline itself. Errors: the engine
/// did not start or refused a request, nothing was preempted where it had to be, or guesses were not right or
/// wrong as they had to be.
Result<std::vector<Recording>> run_variation(const Variation& variation,
                                             const std::shared_ptr<LoadedModel>& model,
                                             const std::vector<Request>& workload,
                                             const std::vector<Recording>& expected);

}  // namespace tensorfold
