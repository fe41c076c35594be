// Which drafters EngineOptions::draft means: that of each request, and the one that computes for all of them.
#pragma once

#include <memory>
#include <string_view>

#include "base/status.h"
#include "drafters/drafter.h"
#include "drafters/pass_drafter.h"
#include "drafters/session_corpus.h"
#include "engine/engine.h"
#include "engine/loaded_model.h"
#include "engine/sequence.h"

namespace tensorfold {

/// The drafter of a request, which has its prompt and what its session keeps beside it; null where the mode
/// has none, or the request declines. `sessions` may be null. Takes time with the length of the prompt.
/// Thread-safe.
std::unique_ptr<Drafter> make_drafter(const EngineOptions& options, SessionCorpus* sessions,
                                      const Request& request);

/// The drafter that computes its guesses for all requests, not prepared yet: the draft model that was loaded,
/// else the model's own head. Null where the mode has none; with DraftMode::kModel that is kInvalidArgument.
Result<std::unique_ptr<PassDrafter>> make_pass_drafter(const EngineOptions& options,
                                                       const LoadedModel& model);

/// Says in the usage of a sequence who drafts for it ("lookup+mtp"): its own drafter, and `computing` where
/// it wants computed guesses. Empty: nobody computes any, so it no longer wants them.
void name_drafters(SequenceDrafts& drafts, std::string_view computing);

}  // namespace tensorfold
