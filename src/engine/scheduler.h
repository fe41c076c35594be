// Who runs: the queue, admission, the rows of the next pass, and preemption when KV pages run out.
// The order of everything here may change speed only; arithmetic.md is why it cannot change a reply.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/kv_pages.h"
#include "engine/sequence.h"

namespace tensorfold {

/// The next num_rows rows of a sequence, from position num_computed on, and after them those of its draft.
struct PlannedRows {
  Sequence* sequence = nullptr;
  int64_t num_rows = 0;
  int64_t num_drafted = 0;  ///< Tokens of the draft.
  /// Rows of tokens that other rows of the sequence have as well, at the same position: in each branch after
  /// the first one (SequenceDrafts::branches) the last known token and the guesses that it shares. 0: no
  /// branches.
  int64_t num_repeated = 0;

  /// Rows of the pass.
  int64_t num_pass_rows() const { return num_rows + num_drafted + num_repeated; }

  /// Those of them that are drafted rows to the model: with branches even the known one (draft_branches.h).
  int64_t num_drafted_rows() const { return num_repeated > 0 ? num_pass_rows() : num_drafted; }

  /// Whether these are all rows that are known, so that the last one yields a token, and each drafted one
  /// that is accepted another.
  bool wants_logits() const { return num_rows == sequence->num_pending(); }
};

/// Owns the sequences of an engine. Engine thread only.
///
/// A pass has one row of every decoding sequence, then prompt chunks, oldest sequence first; drafted rows are
/// added where rows and pages are left, and take nothing from anyone. Sequences are
/// admitted in order of arrival while pages for all their tokens are free. When a running sequence needs a
/// page and none is free, the youngest running one loses its pages and goes back to the head of the queue, so
/// the oldest always gets on.
class Scheduler {
 public:
  struct Options {
    int64_t max_sequences = 0;
    int64_t pass_tokens = 0;       ///< As EngineOptions.
    int64_t max_drafted_rows = 0;  ///< Of a pass.
  };
  Scheduler(const Options& options, KvPagePool& pool);

  /// Puts a sequence at the end of the queue. It must fit into an empty pool (make_sequence sees to that).
  void add(std::unique_ptr<Sequence> sequence);

  /// The sequence of a request, running or waiting; null for an unknown id.
  Sequence* find(RequestId id) const;

  /// The oldest sequence, running or waiting; null when there is none.
  Sequence* oldest() const;

  /// Takes out a sequence that is running or waiting, and frees its pages.
  std::unique_ptr<Sequence> remove(const Sequence& sequence);

  /// The rows of the next pass, each with pages; empty only when there is no sequence. Valid until the next
  /// call of plan() or until one of the sequences is removed. Fails only where the device fails to clear a
  /// page.
  Result<std::span<const PlannedRows>> plan();

  /// Drafted rows that the planned pass has room for.
  int64_t num_draft_rows() const;

  /// Adds the drafts of the planned sequences that decode, each cut to the rows and pages that are left:
  /// first everyone's first branch, then the others. Fails only where the device fails to clear or copy a
  /// page.
  Status add_drafts();

  /// Takes pages for `most` more positions than the sequence has tokens, as far as pages are free. Returns
  /// for how many there are. Fails only where the device fails to clear a page.
  Result<int64_t> reserve_guesses(Sequence& sequence, int64_t most);

  /// Gives back the pages that only guesses needed, which nobody else could have had.
  void return_draft_pages();

  /// Oldest first.
  std::span<const std::unique_ptr<Sequence>> running() const { return running_; }

  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t num_preemptions() const { return num_preemptions_; }

  /// Most rows that a pass can have.
  static int64_t max_pass_rows(const Options& options);

 private:
  void admit();
  int64_t num_unclaimed_pages() const;
  int64_t prompt_row_budget() const;
  void preempt_youngest();
  Status add_first_branch(PlannedRows& rows, int64_t& room);
  Status add_other_branches(PlannedRows& rows, int64_t& room);

  Options options_;
  KvPagePool& pool_;
  std::vector<std::unique_ptr<Sequence>> running_;  ///< By arrival, oldest first.
  std::deque<std::unique_ptr<Sequence>> waiting_;   ///< By arrival; preempted ones are older than the rest.
  std::vector<PlannedRows> planned_;                ///< Of this pass: decoding rows first.
  std::vector<PlannedRows> prompt_chunks_;          ///< Scratch of plan().
  int64_t num_preemptions_ = 0;
};

}  // namespace tensorfold
