// The drafter behind a model that fills a block of positions in one pass (models/block_drafter.h): DFlash,
// DFlash2.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "drafters/block_tree.h"
#include "drafters/pass_drafter.h"
#include "drafters/pass_layout.h"
#include "models/block_drafter.h"

namespace tensorfold {

/// A block drafter, its target and what both run on, which outlive the drafter.
struct BlockModel {
  std::string name;
  const BlockDrafter& drafter;
  Ops& ops;
  Weights& weights;
  DraftTarget target;
  int64_t num_drawable_tokens = 0;
  float least_confidence = 0;  ///< As GuessLimits.
  bool offers_trees = false;   ///< Else each row has one guess, a chain.
};

/// Takes in what the target's layers made of each position, in step with the target; positions that the
/// target computed while nobody ran the drafter are missed for good, and cost acceptance only. A turn has one
/// pass for what is new and one for the guesses, however many.
class BlockPassDrafter final : public PassDrafter {
 public:
  explicit BlockPassDrafter(const BlockModel& parts) : parts_(parts) {}

  std::string_view name() const override { return parts_.name; }
  std::span<const KvShape> kv_layers() const override { return parts_.drafter.spec().kv_layers; }
  std::span<const int32_t> target_layers() const override { return parts_.drafter.spec().target_layers; }
  bool offers_trees() const override { return parts_.offers_trees; }
  int64_t max_positions() const override { return parts_.target.model.spec().max_position_embeddings; }
  Status prepare(int64_t max_tasks, int64_t max_rows, int64_t max_guesses) override;
  int64_t scratch_bytes() const override;
  Status run(std::span<DraftTask> tasks, const ModelRows& model, const State& state, Arena& scratch) override;

 private:
  Status absorb(std::span<DraftTask> tasks, const ModelRows& model, const State& state, Arena& scratch);
  Status propose(const State& state, Arena& scratch);
  void take_chain(int64_t sequence, DraftTask& task);
  void take_tree(int64_t sequence, DraftTask& task);

  BlockModel parts_;
  int64_t max_rows_ = 0;        ///< That a turn takes in.
  int64_t max_block_rows_ = 0;  ///< Of all blocks of a turn.
  Buffer taps_;                 ///< [max_rows, n*E] activation dtype: those of the rows that a turn takes in.
  PassLayout layout_;
  std::vector<int32_t> rows_;   ///< Of the target's pass, in the order of layout_.
  std::vector<int32_t> block_;  ///< Tokens of one sequence's block.
  std::vector<int32_t> anchors_;
  std::vector<DraftTask*> guessing_;  ///< In the order of anchors_.
  BlockProposals proposals_;
  std::vector<DraftedToken> chain_;
  BlockTree tree_;
};

}  // namespace tensorfold
