// The drafter behind a model's own head for one token more ("multi-token prediction", Gloeckle et al. 2024,
// arXiv:2404.19737; DeepSeek-V3, arXiv:2412.19437): guesses chains by feeding the head what it gave.
#pragma once

#include <cstdint>
#include <vector>

#include "drafters/guesses.h"
#include "drafters/pass_drafter.h"
#include "drafters/pass_layout.h"

namespace tensorfold {

/// A head and what it runs on, which outlive the drafter.
struct MtpModel {
  const Model& model;  ///< Has a draft_head().
  Ops& ops;
  Weights& weights;
  int64_t num_drawable_tokens = 0;
  float least_confidence = 0;  ///< As GuessLimits.
};

/// The head takes in each position's hidden state with the token after it, in step with the model; positions
/// that the model computed while nobody ran the head are missed for good, and cost acceptance only. A chained
/// guess takes the head's own hidden state in place of the model's; its keys and values are written over when
/// the model's are known.
class MtpDrafter final : public PassDrafter {
 public:
  explicit MtpDrafter(const MtpModel& parts);

  std::string_view name() const override { return "mtp"; }
  std::span<const KvShape> kv_layers() const override { return head_.kv_layers(); }
  bool wants_hidden() const override { return true; }
  int64_t max_positions() const override { return parts_.model.spec().max_position_embeddings; }
  Status prepare(int64_t max_tasks, int64_t max_rows, int64_t max_guesses) override;
  int64_t scratch_bytes() const override { return head_.scratch_bytes(max_rows_); }
  Status run(std::span<DraftTask> tasks, const ModelRows& model, const State& state, Arena& scratch) override;

 private:
  void lay_out_rows(std::span<DraftTask> tasks);
  void lay_out_guesses();
  Status run_pass(View hidden, const State& state, Arena& scratch);

  MtpModel parts_;
  const DraftHead& head_;
  GuessSampler guesses_;
  int64_t max_rows_ = 0;
  Buffer inputs_;   ///< [max_rows, E] f32: hidden states that a pass starts from.
  Buffer outputs_;  ///< [max_rows, E] f32: those that it gives.
  PassLayout layout_;
  std::vector<int32_t> hidden_rows_;  ///< Of each row of inputs_: where it is among those of the pass before.
  std::vector<DraftTask*> guessing_;  ///< Whose draft the pass lengthens, in the order of its logit rows.
  std::vector<int32_t> kept_;         ///< Of those, whose draft goes on.
};

}  // namespace tensorfold
