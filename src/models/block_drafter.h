// Draft models that fill a block of positions in one pass, from residual streams of the target
// (Outputs::taps) and with the target's own embedding and head. What they guess is verified by the target, so
// their arithmetic changes speed only. Facts: specs/drafters.md §3 and §4.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/status.h"
#include "base/view.h"
#include "formats/hf_config.h"
#include "memory/weight_table.h"
#include "memory/weights.h"
#include "models/model.h"
#include "ops/ops.h"

namespace tensorfold {

/// Most candidates of a drafted row.
inline constexpr int64_t kMaxCandidates = kMaxTopTokens;

/// What the engine must know of a block drafter.
struct BlockDrafterSpec {
  std::string architecture;  ///< "DFlash2DraftModel".
  int64_t num_layers = 0;
  int64_t block_size = 0;              ///< Rows of a block as trained: the anchor and block_size - 1 drafts.
  int32_t mask_token_id = 0;           ///< Stands for a drafted token.
  int64_t num_candidates = 0;          ///< Of each drafted row, at most kMaxCandidates.
  int64_t context_tokens = 0;          ///< Positions before a block that it reads at most; 0: all.
  std::vector<int32_t> target_layers;  ///< What Outputs::taps must hold, in this order: Taps::layers.
  std::vector<KvShape> kv_layers;      ///< One per layer.
  int64_t rank = 0;                    ///< Of the factors of a pair's score; 0: pairs add nothing.
};

/// Blocks of any mix of sequences, to be filled. The first row of a sequence is its anchor, its last
/// committed token, at the anchor's position; the rows after it are drafted: row r is the token at position p
/// + r. A sequence has 2 rows or more, and no more than the drafter's window where it has one.
struct DraftBlocks {
  std::span<const int32_t> anchors;  ///< [S], of each of rows.sequences; in [0, vocab_size).
  /// The keys and values of the rows are written to the drafter's pages, where the context's will take their
  /// place: page tables must cover them.
  RowBatch rows;
  int64_t num_drawable_tokens = 0;  ///< Only tokens below are candidates; 0: the whole vocabulary.
};

/// A token that the drafter chose.
struct DraftedToken {
  int32_t token = -1;
  int32_t candidate = -1;  ///< Its index among the row's candidates.
  float confidence = 0;    ///< Its probability among them, at the temperature it was drawn with (greedy: 1).
};

/// What a pass over blocks found: the candidates of every drafted row, with scores that depend on the token
/// before. On the host; kept by its user from pass to pass, so that its memory is. One thread.
///
/// Drafted rows are counted over all sequences: those of sequence s are [first_row(s), first_row(s) +
/// num_rows(s)), one less than its block has, for the tokens at first_pos(s) and after.
class BlockProposals {
 public:
  int64_t num_sequences() const { return std::ssize(sequences_); }
  int64_t first_row(int64_t sequence) const { return sequences_[sequence].first_row; }
  int64_t num_rows(int64_t sequence) const { return sequences_[sequence].num_rows; }
  int64_t first_pos(int64_t sequence) const { return sequences_[sequence].first_pos; }
  int64_t num_candidates() const { return k_; }

  /// [num_candidates] by falling logit; -1 where a row has no more.
  std::span<const int32_t> tokens(int64_t row) const { return std::span(tokens_).subspan(row * k_, k_); }
  /// [num_candidates] the target's head's, after the drafter's own multiplier and cap.
  std::span<const float> logits(int64_t row) const { return std::span(logits_).subspan(row * k_, k_); }

  /// Scores of the row's candidates if candidate `previous` of the row before is the token before (of a first
  /// row -1, the anchor): out [num_candidates], -inf where there is none. The logarithm of a probability, up
  /// to a constant.
  void score(int64_t sequence, int64_t row, int64_t previous, std::span<float> out) const;

  /// Chooses one token a row, each given the one before: the best score or, at a temperature, the best of
  /// score / T plus the noise that Ops::sample adds at the token's position (ops/sampling_math.h), so that
  /// where drafter and target agree they draw alike. Of `sampling` only temperature and seed count. Ends at a
  /// row without candidates. `chain` is replaced.
  void choose(int64_t sequence, const SampleRow& sampling, std::vector<DraftedToken>& chain) const;

 private:
  friend class BlockProposalsBuilder;
  struct Rows {
    int64_t first_row = 0;
    int64_t num_rows = 0;
    int64_t first_pos = 0;  ///< Of the first drafted row.
  };

  int64_t k_ = 0, rank_ = 0;
  std::vector<Rows> sequences_;
  std::vector<int32_t> tokens_;      ///< [R, k]
  std::vector<float> logits_;        ///< [R, k]
  std::vector<float> hidden_;        ///< [R, rank]: what a row multiplies a pair's factors by.
  std::vector<float> predecessors_;  ///< [S + R*k, rank]: of the anchors, then of all candidates.
  std::vector<float> successors_;    ///< [R*k, rank]
};

/// The model whose embedding and head a drafter uses.
struct DraftTarget {
  const Model& model;  ///< With token_ends().
  Weights& weights;
};

/// An immutable loaded drafter. Thread-safe; its weights are leased from a Weights of its own.
class BlockDrafter {
 public:
  virtual ~BlockDrafter() = default;
  virtual const BlockDrafterSpec& spec() const = 0;

  /// Scratch that absorb() and propose() take from their arena for up to num_rows rows. The latter's has room
  /// for logits.
  virtual int64_t absorb_scratch_bytes(int64_t num_rows) const = 0;
  virtual int64_t propose_scratch_bytes(int64_t num_rows) const = 0;

  /// Turns the target's taps [T, n*E] (activation dtype) of `rows` into context: writes keys and values at
  /// the rows' positions. Inside a pass with these rows (Ops::begin_pass), which may be the target's own,
  /// after its forward(): drafted rows too may be absorbed before it is known whether they hold, as whatever
  /// is written at later positions than a block's anchor is written over before anyone reads it. A block at
  /// position p reads what was absorbed below p.
  virtual void absorb(const RowBatch& rows, View taps, Ops& ops, Weights& weights,
                      std::span<const KvPages> kv_layers, Arena& scratch) const = 0;

  /// Runs the blocks, in a pass of its own, and waits for it; the error is the pass's.
  virtual Status propose(const DraftBlocks& blocks, Ops& ops, Weights& weights, const DraftTarget& target,
                         std::span<const KvPages> kv_layers, Arena& scratch,
                         BlockProposals& proposals) const = 0;
};

/// What a drafter is made of: its own config.json and checkpoint, and the model that it drafts for.
struct BlockDrafterSource {
  const HfConfig& config;
  WeightTable& table;
  const ModelSpec& target;
  /// Length that dynamic and longrope angles take. 0: the drafter's max_position_embeddings.
  int64_t context_tokens = 0;
};

/// Whether the folder's config.json is that of a block drafter, by `architectures`.
bool is_block_drafter(const HfConfig& config);

/// The drafter that config.json describes, its weights declared in source.table and checked. It computes in
/// the target's activation dtype. kUnsupported names unknown architectures; kInvalidArgument what does not
/// fit the target.
Result<std::unique_ptr<BlockDrafter>> make_block_drafter(const BlockDrafterSource& source);

/// Fills a BlockProposals: for the drafters' own use.
class BlockProposalsBuilder {
 public:
  explicit BlockProposalsBuilder(BlockProposals& proposals) : to_(proposals) {}

  /// Takes the blocks' shape; everything else follows in this order.
  void begin(const DraftBlocks& blocks, int64_t num_candidates, int64_t rank);
  std::span<int32_t> tokens() { return to_.tokens_; }
  std::span<float> logits() { return to_.logits_; }
  std::span<float> hidden() { return to_.hidden_; }
  std::span<float> predecessors() { return to_.predecessors_; }
  std::span<float> successors() { return to_.successors_; }

 private:
  BlockProposals& to_;
};

}  // namespace tensorfold
