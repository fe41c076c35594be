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

/// Who drafts for a sequence, as its usage says it ("lookup+mtp"): `searching` may be null, `computing` is
/// empty where nobody computes guesses for it.
void name_drafters(SequenceDrafts& drafts, const Drafter* searching, std::string_view computing);

}  // namespace tensorfold
