// A small model as the drafter of a large one with the same tokenizer (Leviathan et al. 2022,
// arXiv:2211.17192, without its rejection sampling: a guess is right exactly if it is the token that the
// large model draws).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "drafters/guesses.h"
#include "drafters/pass_drafter.h"
#include "drafters/pass_layout.h"

namespace tensorfold {

/// The small model and what it runs on, which outlive the drafter.
struct SmallModel {
  std::string name;
  const Model& model;
  Ops& ops;  ///< Those of the large model: both run on one thread.
  Weights& weights;
  int64_t num_drawable_tokens = 0;
  float least_confidence = 0;  ///< As GuessLimits.
};

/// Follows the sequence with a state of its own, whatever the large model does: a turn takes in what it has
/// missed, up to max_rows rows in one pass, so that nobody waits long for someone's prompt, and guesses once
/// nothing is missing; or it only catches up on as much as it is told. Its guesses are rows that its state is
/// left without, so a wrong one costs nothing to take back.
class DraftModelDrafter final : public PassDrafter {
 public:
  explicit DraftModelDrafter(const SmallModel& parts) : parts_(parts) {}

  std::string_view name() const override { return parts_.name; }
  std::span<const KvShape> kv_layers() const override { return parts_.model.spec().kv_layers; }
  std::span<const RecurrentShape> recurrent_layers() const override {
    return parts_.model.spec().recurrent_layers;
  }
  int64_t max_positions() const override { return parts_.model.spec().max_position_embeddings; }
  Status prepare(int64_t max_tasks, int64_t max_rows, int64_t max_guesses) override;
  int64_t scratch_bytes() const override { return parts_.model.scratch_bytes(max_rows_); }
  Status run(std::span<DraftTask> tasks, const ModelRows& model, const State& state, Arena& scratch) override;

 private:
  void lay_out_known(std::span<DraftTask> tasks);
  void lay_out_guesses();
  Status run_pass(const State& state, Arena& scratch);

  SmallModel parts_;
  GuessSampler guesses_;
  int64_t max_rows_ = 0;
  PassLayout layout_;
  std::vector<DraftTask*> guessing_;  ///< Whose draft the pass lengthens, in the order of its logit rows.
  std::vector<int32_t> kept_;         ///< Of those, whose draft goes on.
};

}  // namespace tensorfold
