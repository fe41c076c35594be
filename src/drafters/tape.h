// Drafters that know the reply: one that is always right and one that is always wrong. For tests and for
// `bench verify`, which prove that neither changes a byte.
#pragma once

#include <cstdint>
#include <vector>

#include "drafters/drafter.h"

namespace tensorfold {

/// Proposes the recorded reply.
class TapeDrafter : public Drafter {
 public:
  /// `reply` follows the first num_prompt_tokens tokens of the sequence.
  TapeDrafter(int64_t num_prompt_tokens, std::vector<int32_t> reply);

  std::string_view name() const override { return "tape"; }
  void extend(std::span<const int32_t> tokens) override;
  void propose(int64_t max_tokens, Draft& draft) override;
  DrafterStats stats() const override { return stats_; }

 private:
  int64_t num_prompt_tokens_;
  std::vector<int32_t> reply_;
  int64_t num_tokens_ = 0;
  DrafterStats stats_;
};

/// Proposes the recorded reply with one wrong token in each proposal: the first ones are right, the next is
/// not, and those after it are again those of the reply, which an engine that forgot the wrong one would
/// take.
class AdversaryDrafter final : public TapeDrafter {
 public:
  /// Right for num_right tokens of each proposal; with -1 for 0, 1, 2, ... and from the start again.
  /// vocab_size is 2 or more.
  AdversaryDrafter(int64_t num_prompt_tokens, std::vector<int32_t> reply, int64_t vocab_size,
                   int64_t num_right = 0);

  std::string_view name() const override { return "adversary"; }
  void propose(int64_t max_tokens, Draft& draft) override;

 private:
  int64_t vocab_size_;
  int64_t num_right_;
  int64_t num_proposals_ = 0;
};

}  // namespace tensorfold
