// Trees of guesses from what a block drafter found (specs/drafters.md §4.5): several candidates for a place,
// where the best one alone is too unsure.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "drafters/drafter.h"
#include "models/block_drafter.h"
#include "ops/ops.h"

namespace tensorfold {

struct BlockTreeLimits {
  int64_t max_tokens = 0;
  float least_confidence = 0;  ///< Nothing follows a guess that is held right with less probability.
};

/// Grows trees best first: each time the guess is added that is the likeliest to be right together with all
/// that it follows, so a tree has the likeliest of all guesses. How likely a candidate is, is the softmax
/// over its row's candidates of score / T plus the noise that Ops::sample adds at the position (greedy: of
/// the score), so that the order of candidates is the one in which the target would draw them if it agreed
/// with the drafter. Equal ones are taken in the order in which they became known: the same proposals always
/// give the same tree. Kept between turns, so that its memory is. One thread.
class BlockTree {
 public:
  /// The tree of a sequence, into `draft`, whose content is replaced. Of `sampling` only temperature and seed
  /// count. At most max_tokens guesses, parents first, and none where the first row has no candidate.
  void grow(const BlockProposals& proposals, int64_t sequence, const SampleRow& sampling,
            const BlockTreeLimits& limits, Draft& draft);

 private:
  /// What may follow one guess, or the sequence's last token.
  struct Candidate {
    int32_t candidate = 0;  ///< Its index in the row.
    double log_probability = 0;
  };
  struct Followers {
    int32_t parent = -1;          ///< The guess, of the draft.
    int64_t row = 0;              ///< Of the sequence.
    double log_probability = 0;   ///< Of the guess and all that it follows.
    size_t first = 0, count = 0;  ///< Of candidates_, likeliest first.
  };
  /// The next candidate of some followers.
  struct Next {
    double log_probability = 0;  ///< With all that it follows.
    int64_t followers = 0;
    size_t rank = 0;

    bool operator<(const Next& other) const {
      if (log_probability != other.log_probability) return log_probability < other.log_probability;
      return std::pair(followers, rank) > std::pair(other.followers, other.rank);
    }
  };
  struct Source {
    const BlockProposals& proposals;
    int64_t sequence = 0;
    const SampleRow& sampling;
  };

  void add_followers(const Source& source, int32_t parent, int64_t row, int32_t previous,
                     double log_probability);
  std::span<Candidate> find_candidates(const Source& source, int64_t row, int32_t previous);
  void add_next(int64_t followers, size_t rank);

  std::vector<Followers> followers_;
  std::vector<Candidate> candidates_;
  std::vector<Next> next_;  ///< A heap.
  std::vector<float> scores_;
};

}  // namespace tensorfold
