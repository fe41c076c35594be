// How a draft that is a tree is verified: as its root-to-leaf branches, each a run of rows with a page table
// of its own, so that to the model a branch is a sequence like any other. A guess that several branches share
// is computed in each; its bits are the same by arithmetic.md, and so is the token drawn after it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "drafters/drafter.h"
#include "engine/kv_pages.h"

namespace tensorfold {

/// The guesses from the sequence's last token to one that nothing follows.
struct DraftBranch {
  explicit DraftBranch(KvPagePool& pool) : pages(pool) {}

  std::vector<int32_t> nodes;  ///< Their indices in the draft, in order.
  int64_t num_shared = 0;      ///< The first of them, which earlier branches have as well.
  std::vector<int32_t> tokens;
  PageTable pages;  ///< Of the sequence and `tokens`; empty for the first branch, which has the sequence's.

  /// Of the pass: the sequence's last token, and the guesses after it.
  int64_t num_rows() const { return 1 + std::ssize(nodes); }
};

/// Rows that each guess adds to a pass that has those before it: one, and where it begins a branch those of
/// the last known token and of the guesses that lead to it again. Fills rows [draft.size()].
void count_added_rows(const Draft& draft, std::span<int32_t> rows);

/// Puts the guesses of a draft in the order in which they are worth their rows: of those that follow what is
/// there already each time the one with the most gain per row that it adds, the first of equals. So what is
/// cut off at any place is worth least, and where rows are dear a chain is left. gains [draft.size()] are put
/// in order with them.
void order_by_gain(Draft& draft, std::span<double> gains);

/// The branches of the draft of one sequence that decodes, from the plan of a pass until its tokens are
/// accepted; none where the draft is a chain, which takes the sequence's own rows and pages. Owned by the
/// sequence; engine thread only.
///
/// The branches depend on one recurrent state, so none of them may store: in a pass of several branches all
/// rows of the sequence are drafted ones, that of its last token too, and commit takes that in with the
/// guesses that were right.
class DraftBranches {
 public:
  explicit DraftBranches(KvPagePool& pool) : pool_(&pool) {}

  /// Splits a draft. The first branch is that of the first guess; each further one begins with the first
  /// guess that is in none yet. On from there a branch takes the first guess of those that follow.
  void split(const Draft& draft);

  /// What keep() may take.
  struct Room {
    int64_t num_first = 0;  ///< Guesses of the first branch, at most those it has.
    int64_t num_rows = 0;   ///< Drafted rows beside these guesses.
    int64_t last_pos = 0;   ///< Position of the sequence's last known token.
  };
  /// Keeps the start of the first branch, and of the others, in order, those for which there are rows and
  /// free pages, and gives these their pages. `draft` keeps the guesses that are in one of them, in the order
  /// of the branches. `pages` covers the first branch. Fails only where the device fails to clear or copy a
  /// page.
  Status keep(Draft& draft, const Room& room, const PageTable& pages);

  /// Without branches the draft is a chain.
  bool is_empty() const { return branches_.empty(); }
  std::span<const DraftBranch> branches() const { return branches_; }

  /// Of all branches.
  int64_t num_rows() const;

  /// Ends the branches of a pass of which guess `last` (-1: none) and all that it follows were right: gives
  /// the pages of the branch that has them to `pages`, and the others' back. Returns the first row of that
  /// branch among the sequence's rows of the pass. There must be branches.
  int64_t accept(int64_t last, PageTable& pages);

  /// Gives the pages back.
  void clear() { branches_.clear(); }

 private:
  Result<bool> take_pages(DraftBranch& branch, int64_t last_pos, const PageTable& pages);

  KvPagePool* pool_;
  std::vector<DraftBranch> branches_;
};

}  // namespace tensorfold
