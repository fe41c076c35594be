// A small model as drafter: it guesses its own greedy reply, however it came by the tokens before.
#include "drafters/draft_model.h"

#include <gtest/gtest.h>

#include "tests/models/pass_drafter_runner.h"
#include "tests/support/test_model.h"
#include "tests/support/test_paths.h"

namespace tensorfold {
namespace {

class DraftModelDrafterTest : public testing::Test {
 protected:
  DraftModelDrafterTest() {
    for (size_t i = 0; i < tokens_.size(); ++i)
      tokens_[i] = static_cast<int32_t>((7 + i * i * 5) % static_cast<size_t>(vocab_size()));
  }
  int64_t vocab_size() const { return model_->model->spec().vocab_size; }
  std::vector<int32_t> greedy(std::span<const int32_t> prompt) const {
    const auto runner =
        SequenceRunner::create(model_->runnable(), {.max_tokens = 80, .max_rows = 80}).value();
    return greedy_tokens(*runner, prompt, 6).value();
  }
  PassDrafterRunner make_drafter() const {
    const SmallModel parts{.name = "small",
                           .model = *model_->model,
                           .ops = *model_->ops,
                           .weights = *model_->weights,
                           .num_drawable_tokens = vocab_size()};
    return {*model_->ops, std::make_unique<DraftModelDrafter>(parts), 128};
  }

  std::unique_ptr<TestModel> model_ =
      load_test_model(std::string(kSourceDir) + "/tests/golden/models/qwen3/tied", make_reference_ops(), {})
          .value();
  std::vector<int32_t> tokens_ = std::vector<int32_t>(70);
};

TEST_F(DraftModelDrafterTest, GuessesTheSameHoweverItCaughtUp) {
  const std::vector<int32_t> expected = greedy(tokens_);
  const std::vector<std::vector<int64_t>> cases = {{}, {69}, {16, 53}, {1, 7, 30}, {500}};
  for (const std::vector<int64_t>& turns : cases) {
    PassDrafterRunner drafter = make_drafter();
    int64_t known = 0;
    for (const int64_t count : turns) {
      drafter.catch_up(tokens_, count);
      known = std::min<int64_t>(known + count, 70);
      EXPECT_EQ(drafter.num_absorbed(), known);
    }
    const Draft draft = drafter.turn(tokens_, {}, 69, 6);
    if (known == 70) {
      EXPECT_TRUE(draft.is_empty()) << "there is no row left that gives a guess";
    } else {
      EXPECT_EQ(draft.tokens, expected) << turns.size() << " turns before";
      EXPECT_EQ(drafter.num_absorbed(), 70);
    }
  }
}

TEST_F(DraftModelDrafterTest, TakesTokensThatItLacksForItsFirst) {
  std::vector<int32_t> with_padding = tokens_;
  for (size_t i = 60; i < 70; i += 2) {
    tokens_[i] = 0;
    with_padding[i] = static_cast<int32_t>(vocab_size() + 3 * static_cast<int64_t>(i));
  }
  PassDrafterRunner drafter = make_drafter();
  EXPECT_EQ(drafter.turn(with_padding, {}, 69, 6).tokens, greedy(tokens_));
}

}  // namespace
}  // namespace tensorfold
