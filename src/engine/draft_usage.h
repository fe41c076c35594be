// What drafts did for a request, as its usage tells clients, logs and benchmarks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "drafters/drafter.h"

namespace tensorfold {

/// What one drafter's guesses came to.
struct DrafterUsage {
  std::string name;
  int64_t rounds = 0;  ///< As DraftUsage.
  int64_t drafted = 0;
  int64_t accepted = 0;
};

/// Counts of one request, or of several.
struct DraftUsage {
  std::string drafter;  ///< Its name, or several: "lookup+mtp"; empty where the request was decoded serially.
  int64_t rounds = 0;   ///< Passes that verified drafted tokens.
  int64_t drafted = 0;  ///< Tokens that were verified.
  int64_t accepted = 0;                     ///< Of them, those that serial decoding would have produced.
  int64_t zero_accept_rounds = 0;           ///< Rounds that accepted none.
  int64_t passes_avoided = 0;               ///< Tokens of the reply that took no pass of their own.
  double computing_ms = 0;                  ///< Spent on guesses that come of passes of their own.
  DrafterStats search = {};                 ///< Of the drafter that searches.
  std::vector<DrafterUsage> drafters = {};  ///< Of those whose guesses were verified: what the policy chose.

  double accepted_per_pass() const {
    return rounds == 0 ? 0 : static_cast<double>(accepted) / static_cast<double>(rounds);
  }
  double acceptance_rate() const {
    return drafted == 0 ? 0 : static_cast<double>(accepted) / static_cast<double>(drafted);
  }

  /// The entry of a drafter, made where there is none.
  DrafterUsage& entry_of(std::string_view name);

  /// Adds the counts of another request.
  void add(const DraftUsage& other);
};

/// {"drafter":"lookup","rounds":...,"drafted":...,"accepted":...,"accepted_per_pass":...,"acceptance_rate":...,
///  "zero_accept_rounds":...,"passes_avoided":...,"searches":...,"matches":...,"mean_match_tokens":...,
///  "computing_ms":...,"drafters":[{"name":"lookup","rounds":...,"drafted":...,"accepted":...}]}
Json speculative_json(const DraftUsage& usage);

}  // namespace tensorfold
