// Prompt lookup: a reply often repeats what the prompt or the reply already has (Saxena 2023, "Prompt Lookup
// Decoding"), so the tokens that followed an earlier occurrence of its last ones are a good guess. Costs no
// pass of its own.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "drafters/drafter.h"

namespace tensorfold {

/// None of these changes a reply.
struct LookupOptions {
  int64_t max_match = 32;  ///< Longest suffix that is compared; of longer ones the most recent wins.
  /// Earlier occurrences of each order that a search looks at, most recent first. Bounds the time of a
  /// search.
  int64_t max_candidates = 64;
  /// Tokens that are searched; when there are as many, the older half is forgotten. Bounds memory, at some 24
  /// bytes a token. At least 16.
  int64_t max_tokens = int64_t{1} << 20;
  /// Continuations that a proposal offers where the longest occurrences were followed by different tokens; 1:
  /// the most recent one, a chain. More: the guesses asked for are spread over as many branches of a tree.
  int64_t max_branches = 1;
};

/// The most recent of the longest earlier occurrences of the sequence's last tokens, 2 tokens at least, and
/// what followed it. Where that runs past the end of the text it goes on with the proposal itself, so that a
/// text of any period is proposed as far as is asked. Of occurrences of that length that were followed by
/// other tokens up to max_branches - 1 more are offered, the most recent first, each as a branch from the
/// start; the guesses are then in order of depth, so that a shorter draft has the start of every branch.
///
/// The index is a hash chain for each of two orders: positions whose last `order` tokens hash alike, most
/// recent first. A suffix of the higher order is looked up there, which finds long matches that are far back
/// among many short ones. Adding a token takes constant time; a search compares at most 2 * max_candidates *
/// max_match tokens.
class LookupDrafter final : public Drafter {
 public:
  explicit LookupDrafter(const LookupOptions& options = {});

  /// A text to search beside the sequence, such as an earlier reply of the session. Before the first
  /// extend().
  void add_text(std::span<const int32_t> tokens);

  std::string_view name() const override { return "lookup"; }
  void extend(std::span<const int32_t> tokens) override;
  void propose(int64_t max_tokens, Draft& draft) override;
  DrafterStats stats() const override { return stats_; }

  /// Tokens that are held, ends of texts included.
  int64_t num_tokens() const { return static_cast<int64_t>(tokens_.size()); }
  /// Earlier occurrences that searches have looked at.
  int64_t num_candidates() const { return num_candidates_; }

 private:
  struct Match {
    int64_t end = 0;  ///< The position after the occurrence.
    int64_t length = 0;
  };
  /// What a proposal guesses after a match.
  struct Branch {
    std::vector<int32_t> tokens;
    int64_t last = -1;  ///< Of the proposal: the last of them.
  };
  /// Positions by the hash of the `order` tokens that end there.
  struct Chains {
    int64_t order = 0;
    std::vector<int32_t> heads;     ///< By hash: the most recent position, or -1. A power of two of them.
    std::vector<int32_t> previous;  ///< By position: the one before it in its chain, or -1.
  };

  void push(int32_t token);
  void insert(Chains& chains);
  void rebuild(Chains& chains);
  size_t bucket(const Chains& chains, int64_t pos) const;
  int64_t match_length(int64_t pos) const;
  void find(const Chains& chains);
  bool is_followed_anew(int64_t end) const;
  void extend_branches(int64_t count, Draft& draft);
  void forget_older_half();

  LookupOptions options_;
  std::vector<int32_t> tokens_;       ///< Texts, kEndOfText after each, then the sequence.
  std::vector<int32_t> run_lengths_;  ///< By position: tokens since the last kEndOfText, itself included.
  std::array<Chains, 2> chains_;      ///< Higher order first.
  /// Of the last search: the longest, most recent first, each followed by another token.
  std::vector<Match> matches_;
  std::vector<Branch> branches_;  ///< Of the last proposal: max_branches, one after each match.
  DrafterStats stats_;
  int64_t num_candidates_ = 0;
};

}  // namespace tensorfold
