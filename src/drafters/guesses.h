// How a drafter that computes draws its guesses: as the model would draw its token, from the drafter's
// logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "drafters/pass_drafter.h"

namespace tensorfold {

struct GuessLimits {
  int64_t max_tasks = 0;   ///< Rows of logits in a pass.
  int64_t vocab_size = 0;  ///< V.
  int64_t num_tokens = 0;  ///< The first of them, which can be drawn.
  /// A guess that the drafter holds right with less probability ends its draft: what follows would hardly
  /// count.
  float least_confidence = 0;
};

/// The logits of a drafter's passes and what is drawn from them. A guess takes the noise that the model's own
/// token at that position will take (arithmetic.md, "Sampling"), so that where drafter and model agree on the
/// logits they agree on the token, at any temperature.
class GuessSampler {
 public:
  Status prepare(Device& device, const GuessLimits& limits);

  /// Where a pass puts its logits.
  View logits(int64_t num_rows) const;

  /// Draws from each row of logits(tasks.size()), in a pass of `ops`, waiting for the device.
  void draw(Ops& ops, std::span<DraftTask* const> tasks);

  /// Appends what was drawn to each task's draft. `tasks`, those of draw(), is left with the ones whose draft
  /// goes on, and `kept` says which they were.
  void append(std::vector<DraftTask*>& tasks, std::vector<int32_t>& kept);

 private:
  Buffer buffer_;
  GuessLimits limits_;
  std::vector<SampleRow> rows_;
  std::vector<int32_t> drawn_;
  std::vector<float> probabilities_;
};

}  // namespace tensorfold
