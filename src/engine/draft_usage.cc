// See draft_usage.h.
#include "engine/draft_usage.h"

#include <algorithm>

namespace tensorfold {

DrafterUsage& DraftUsage::entry_of(std::string_view name) {
  for (DrafterUsage& usage : drafters)
    if (usage.name == name) return usage;
  return drafters.emplace_back(DrafterUsage{.name = std::string(name)});
}

void DraftUsage::add(const DraftUsage& other) {
  if (drafter.empty()) drafter = other.drafter;
  rounds += other.rounds;
  drafted += other.drafted;
  accepted += other.accepted;
  zero_accept_rounds += other.zero_accept_rounds;
  passes_avoided += other.passes_avoided;
  search.searches += other.search.searches;
  search.matches += other.search.matches;
  search.match_tokens += other.search.match_tokens;
  computing_ms += other.computing_ms;
  for (const DrafterUsage& its : other.drafters) {
    DrafterUsage& own = entry_of(its.name);
    own.rounds += its.rounds;
    own.drafted += its.drafted;
    own.accepted += its.accepted;
  }
}

Json speculative_json(const DraftUsage& usage) {
  Json json = Json::object();
  json.set("drafter", usage.drafter);
  json.set("rounds", usage.rounds);
  json.set("drafted", usage.drafted);
  json.set("accepted", usage.accepted);
  json.set("accepted_per_pass", usage.accepted_per_pass());
  json.set("acceptance_rate", usage.acceptance_rate());
  json.set("zero_accept_rounds", usage.zero_accept_rounds);
  json.set("passes_avoided", usage.passes_avoided);
  json.set("searches", usage.search.searches);
  json.set("matches", usage.search.matches);
  json.set("mean_match_tokens", static_cast<double>(usage.search.match_tokens) /
                                    static_cast<double>(std::max<int64_t>(usage.search.matches, 1)));
  json.set("computing_ms", usage.computing_ms);
  Json drafters = Json::array();
  for (const DrafterUsage& its : usage.drafters) {
    Json entry = Json::object();
    entry.set("name", its.name);
    entry.set("rounds", its.rounds);
    entry.set("drafted", its.drafted);
    entry.set("accepted", its.accepted);
    drafters.push_back(std::move(entry));
  }
  json.set("drafters", std::move(drafters));
  return json;
}

}  // namespace tensorfold
