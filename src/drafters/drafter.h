// What a drafter is: something that guesses the next tokens of one sequence. The engine verifies every guess
// in one pass, so a drafter changes speed only, never a reply; how rows are verified is not its business.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace tensorfold {

/// Most tokens of a proposal, whatever is asked for.
inline constexpr int64_t kMaxDraftTokens = 64;

/// How sure a drafter may be of a guess: 0 (least) to kNumEvidence - 1. What a class is worth is measured
/// (drafters/policy.h), not promised.
inline constexpr int kNumEvidence = 6;

/// Evidence of a guess that its drafter holds right with this probability. Of the guesses of a tree many are
/// unlikely, so those are told apart too.
constexpr int evidence_of_probability(float probability) {
  constexpr float kBorders[kNumEvidence - 1] = {0.08f, 0.2f, 0.4f, 0.7f, 0.9f};
  int evidence = 0;
  while (evidence < kNumEvidence - 1 && !(probability < kBorders[evidence])) ++evidence;
  return evidence;
}

/// Guessed tokens as a tree: each follows another guess, or the sequence's last token. Parents come before
/// their children; a chain is the tree in which each follows the one before it.
struct Draft {
  std::vector<int32_t> tokens;
  std::vector<int32_t> parents;   ///< Index of the guess that a token follows; -1: the sequence's last token.
  std::vector<uint8_t> evidence;  ///< Of each guess, in [0, kNumEvidence).

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  bool is_empty() const { return tokens.empty(); }
  /// Guesses of its longest branch.
  int64_t depth() const {
    std::vector<int32_t> depths;
    for (const int32_t parent : parents) depths.push_back(parent < 0 ? 1 : depths[parent] + 1);
    return depths.empty() ? 0 : *std::ranges::max_element(depths);
  }
  bool is_chain() const {
    for (int64_t i = 0; i < size(); ++i)
      if (parents[i] != i - 1) return false;
    return true;
  }

  void clear() {
    tokens.clear();
    parents.clear();
    evidence.clear();
  }
  /// Lengthens a chain.
  void append(int32_t token, int token_evidence = 0) { append_to(size() - 1, token, token_evidence); }
  /// Adds a guess that follows guess `parent`, or the sequence's last token (-1).
  void append_to(int64_t parent, int32_t token, int token_evidence = 0) {
    parents.push_back(static_cast<int32_t>(parent));
    tokens.push_back(token);
    evidence.push_back(static_cast<uint8_t>(token_evidence));
  }
  /// The guess of `token` that follows guess `parent`, or the sequence's last token (-1); -1: there is none.
  int64_t find_child(int64_t parent, int32_t token) const {
    for (int64_t i = parent + 1; i < size(); ++i)
      if (parents[i] == parent && tokens[i] == token) return i;
    return -1;
  }
  /// Keeps the first `count` guesses: a tree still, because parents come first.
  void truncate(int64_t count) {
    if (count >= size()) return;
    tokens.resize(static_cast<size_t>(count));
    parents.resize(static_cast<size_t>(count));
    evidence.resize(static_cast<size_t>(count));
  }
  /// Keeps these guesses, by index, in this order; what a guess follows must be kept and come before it.
  void keep(std::span<const int32_t> order) {
    Draft kept;
    std::vector<int32_t> index_of(tokens.size(), -1);
    for (const int32_t i : order) {
      index_of[i] = static_cast<int32_t>(kept.size());
      kept.append_to(parents[i] < 0 ? -1 : index_of[parents[i]], tokens[i], evidence[i]);
    }
    *this = std::move(kept);
  }
};

/// What a drafter found while it looked; counts since it was made.
struct DrafterStats {
  int64_t searches = 0;      ///< Calls of propose().
  int64_t matches = 0;       ///< Searches that gave a proposal.
  int64_t match_tokens = 0;  ///< Tokens that the proposals rest on, over all matches.
};

/// The drafter of one sequence, owned by it. One thread at a time.
class Drafter {
 public:
  virtual ~Drafter() = default;

  /// For logs and statistics: "lookup".
  virtual std::string_view name() const = 0;

  /// The sequence has grown by these tokens: first its prompt, later what was generated. Tokens are in [0,
  /// vocabulary size).
  virtual void extend(std::span<const int32_t> tokens) = 0;

  /// Proposes what follows the tokens so far, at most max_tokens (0 to kMaxDraftTokens), into `draft`, whose
  /// content is replaced. Nothing where it has no guess.
  virtual void propose(int64_t max_tokens, Draft& draft) = 0;

  /// Of the last proposal num_drafted tokens were verified, and num_accepted of them were right. extend()
  /// tells which tokens came instead.
  virtual void verified(int64_t num_drafted, int64_t num_accepted) {
    static_cast<void>(num_drafted);
    static_cast<void>(num_accepted);
  }

  virtual DrafterStats stats() const { return {}; }
};

}  // namespace tensorfold
