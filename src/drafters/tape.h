// Drafters that know the reply: one that is always right, one that is always wrong, and one that hides the
// reply in a tree. For tests and for `bench verify`, which prove that none of them changes a byte.
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

/// Proposes trees around the recorded reply: at each depth the reply's token between wrong ones, each of
/// which is followed by the reply's next token, which an engine that took one branch for another would
/// accept.
class TreeTapeDrafter final : public TapeDrafter {
 public:
  struct Shape {
    /// Wrong tokens of a depth before the reply's, and after it. With none before it the first branch is
    /// right.
    int64_t num_before = 1;
    int64_t num_after = 0;
    /// Depths at which there is the reply's token; at the next one it is wrong too, and goes on with the
    /// reply. -1: 0, 1, 2, ... in turn.
    int64_t num_right = kMaxDraftTokens;
  };
  /// vocab_size is more than num_before + num_after + 1.
  TreeTapeDrafter(int64_t num_prompt_tokens, std::vector<int32_t> reply, int64_t vocab_size,
                  const Shape& shape);

  std::string_view name() const override { return "tree tape"; }
  void propose(int64_t max_tokens, Draft& draft) override;

 private:
  int64_t vocab_size_;
  Shape shape_;
  int64_t num_proposals_ = 0;
};

}  // namespace tensorfold
