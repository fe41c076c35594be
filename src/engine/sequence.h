// One request inside the engine: its tokens, how many of them are computed, its pages, its text and who is
// told.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "drafters/drafter.h"
#include "drafters/policy.h"
#include "engine/draft_branches.h"
#include "engine/engine.h"
#include "engine/kv_pages.h"
#include "engine/state_slots.h"
#include "engine/text_stream.h"

namespace tensorfold {

/// Who made a draft.
enum class DraftSource : uint8_t { kDrafter, kPassDrafter };
inline constexpr int kNumDraftSources = 2;

/// What the engine's PassDrafter needs to know of a sequence.
struct ComputedDrafts {
  bool is_wanted = false;             ///< Whether it drafts for this sequence.
  std::vector<int32_t> rows;          ///< As DraftTask, of the last pass.
  int64_t first_pos = 0;              ///< As DraftTask.
  int64_t num_absorbed = 0;           ///< As DraftTask.
  GuessRate chance = GuessRate(0.7);  ///< That after right guesses a guess is right.
  double turn_ms = 0;  ///< This sequence's share of the last turn, as far as it counts as a loss.

  /// The sequence starts over.
  void reset() {
    rows.clear();
    num_absorbed = 0;
  }
};

/// What the engine knows of a sequence's drafts. Without a drafter of either kind it is decoded serially.
struct SequenceDrafts {
  explicit SequenceDrafts(KvPagePool& pool) : branches(pool) {}

  std::unique_ptr<Drafter> drafter;
  int64_t num_shown = 0;  ///< Tokens of the sequence that the drafter was told.
  ComputedDrafts computed;
  Draft draft;             ///< What the next pass verifies of a proposal.
  DraftBranches branches;  ///< Of the draft, while a pass verifies it.
  DraftSource source = DraftSource::kDrafter;
  int64_t num_accepted = 0;        ///< By the last pass, of the draft: guesses that follow each other.
  int64_t last_accepted = -1;      ///< The last of them; -1: none.
  int64_t num_passes_avoided = 0;  ///< By the last pass.
  std::array<Acceptance, kNumDraftSources> acceptance;
  std::array<DraftLoss, kNumDraftSources>
      losses;  ///< Of each: one that is dear must not cost the other's gains.
  DraftUsage usage;

  bool has_drafter() const { return drafter != nullptr || computed.is_wanted; }
  DraftLoss& loss_of(DraftSource of) { return losses[static_cast<size_t>(of)]; }
  const DraftLoss& loss_of(DraftSource of) const { return losses[static_cast<size_t>(of)]; }
  Acceptance& acceptance_of_draft() { return acceptance[static_cast<size_t>(source)]; }
};

/// A request on its way. Owned by the scheduler (or, before the engine's thread has seen it, by the queue of
/// new requests); engine thread only from then on.
///
/// State is transactional: positions [0, num_computed) are committed, a pass writes the rows after them, and
/// only commit() makes them count. A pass that fails, or drafted rows that are not accepted, leave the
/// sequence as it was.
struct Sequence {
  Sequence(KvPagePool& pool, StateSlotPool& slots, TextStream text_stream)
      : pages(pool), state(slots), text(std::move(text_stream)), drafts(pool) {}

  RequestId id = 0;             ///< Given when the request is queued; later requests have larger ones.
  std::vector<int32_t> tokens;  ///< The prompt, then what was generated.
  int64_t num_prompt_tokens = 0;
  int64_t num_computed = 0;  ///< Positions whose keys and values are in `pages`; at most tokens.size() - 1
                             ///< between passes, as the last token's row yields the next one.
  int64_t max_total_tokens = 0;  ///< The reply ends when `tokens` is this long.
  SamplingParams sampling;
  uint64_t seed = 0;
  int num_logprobs = -1;  ///< As Request.
  bool ignore_eos = false;
  std::optional<SessionKey> session;  ///< As Request.
  PageTable pages;
  StateSlot state;  ///< Held from admission to the end or to preemption; empty without recurrent layers.
  TextStream text;
  SequenceDrafts drafts;
  EventSink sink;
  std::chrono::steady_clock::time_point submitted_at = {};
  std::chrono::steady_clock::time_point first_token_at = {};  ///< Valid once there is one.

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  int64_t num_pending() const { return num_tokens() - num_computed; }

  /// Whether only the newest token is not computed: one row yields the next token.
  bool is_decoding() const { return num_pending() == 1; }

  /// Accepts the first num_rows rows that a pass computed.
  void commit(int64_t num_rows) { num_computed += num_rows; }

  /// Gives pages and state back; the tokens are computed again later, with the same bits.
  void preempt() {
    pages.clear();
    state.clear();
    drafts.computed.reset();
    num_computed = 0;
  }

  Usage usage() const {
    Usage usage{.prompt_tokens = num_prompt_tokens, .completion_tokens = num_tokens() - num_prompt_tokens};
    usage.speculative = drafts.usage;
    if (drafts.drafter != nullptr) usage.speculative.search = drafts.drafter->stats();
    return usage;
  }
};

/// What the log says of a request that has ended, now: "request 7: length, 12 prompt tokens, 40 completion
/// tokens, 0.524 s, 81.3 tokens/s". The seconds are all since it was submitted; the rate is that after the
/// first token, and left out where there is none. Drafts follow where some were verified.
std::string finished_line(const Sequence& sequence, FinishReason reason);

/// What bounds a request.
struct SequenceLimits {
  int64_t vocab_size = 0;
  int64_t context_tokens = 0;  ///< Longest sequence; all KV pages together hold it.
};

/// The refusals of Engine::submit, a full queue apart.
Status check_request(const Request& request, const SequenceLimits& limits, bool has_tokenizer);

/// Makes the sequence of a request that was checked. Thread-safe as long as the sequence stays away from the
/// engine's thread; takes no page.
std::unique_ptr<Sequence> make_sequence(Request request, EventSink sink, const SequenceLimits& limits,
                                        const std::shared_ptr<const Tokenizer>& tokenizer, KvPagePool& pool,
                                        StateSlotPool& slots);

}  // namespace tensorfold
