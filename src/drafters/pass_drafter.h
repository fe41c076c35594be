// A drafter whose guesses come of passes of its own: a head of the model, a small model, a block drafter. One
// serves all sequences of an engine. What it keeps of them lies in layers of its own beside the model's, in
// the same KV pages and state slots, so it comes and goes with the sequence.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/arena.h"
#include "base/status.h"
#include "drafters/drafter.h"
#include "models/model.h"

namespace tensorfold {

/// What the model's last pass left on the device.
struct ModelRows {
  View hidden = {};  ///< [T, E] f32: Outputs::hidden; data == nullptr where the drafter does not want it.
  View taps = {};    ///< [T, n*E] activation dtype: Outputs::taps of its target_layers(); likewise.
};

/// One sequence's part of a turn.
struct DraftTask {
  std::span<const int32_t> tokens;  ///< Of the sequence; those of positions [0, tokens.size()) are known.
  /// Rows of ModelRows that belong to the sequence: of the positions first_pos, first_pos + 1, ..., which the
  /// model computed since the last turn. The token after each is known.
  std::span<const int32_t> rows;
  int64_t first_pos = 0;
  /// Positions, from 0 on, that the drafter's own state holds: as its last turn left it, 0 where the sequence
  /// has new pages. In and out.
  int64_t num_absorbed = 0;
  /// The sequence's pages and slot; the pages cover the rows and, where guesses are wanted, tokens.size() +
  /// max_depth positions. What a turn writes at positions from tokens.size() on is gone by the next one.
  const int32_t* page_table = nullptr;
  int32_t state_slot = -1;
  int64_t max_tokens = 0;  ///< Guesses wanted; 0: none, the rows are taken in only.
  int64_t max_depth = 0;   ///< Most of them that follow each other. As many, but for who offers_trees().
  /// Of a drafter that does not follow the model, where no guesses are wanted: positions that it takes in.
  int64_t num_catch_up = 0;
  std::span<const SampleRow>
      sampling;            ///< [max_depth]: how the model's token would be drawn in place of each guess.
  Draft* draft = nullptr;  ///< Out: empty, or up to max_tokens guesses.
};

/// One thread at a time.
class PassDrafter {
 public:
  virtual ~PassDrafter() = default;

  /// For logs and statistics: "mtp".
  virtual std::string_view name() const = 0;

  /// What it keeps of a sequence.
  virtual std::span<const KvShape> kv_layers() const = 0;
  virtual std::span<const RecurrentShape> recurrent_layers() const { return {}; }

  /// What it reads of ModelRows: the hidden states, and the residual streams after these layers.
  virtual bool wants_hidden() const { return false; }
  virtual std::span<const int32_t> target_layers() const { return {}; }

  /// Whether it reads any of that: rows of the model that it is not shown are missed for good then. Otherwise
  /// it takes in what it lacks when it is next asked for guesses, or before that where it is told to.
  bool follows_model() const { return wants_hidden() || !target_layers().empty(); }

  /// Whether its drafts may be trees: it has several guesses for a place, and may be asked for more than
  /// follow each other. Otherwise its drafts are chains.
  virtual bool offers_trees() const { return false; }

  /// Longest sequence it can follow; it has no guess beyond.
  virtual int64_t max_positions() const = 0;

  /// Allocates what a turn takes beside its arena: of up to max_tasks sequences, max_rows rows of the model
  /// and max_guesses guesses in all. Once, before the first run(). kOutOfMemory names what did not fit.
  virtual Status prepare(int64_t max_tasks, int64_t max_rows, int64_t max_guesses) = 0;

  /// Scratch that run() takes from its arena, after prepare().
  virtual int64_t scratch_bytes() const = 0;

  /// Takes in the rows of all tasks and guesses for those that want it. `state` has its own layers. Waits for
  /// the device. An error is a fault of the backend; the sequences are as they were.
  virtual Status run(std::span<DraftTask> tasks, const ModelRows& model, const State& state,
                     Arena& scratch) = 0;
};

}  // namespace tensorfold
