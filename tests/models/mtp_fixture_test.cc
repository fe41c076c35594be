// Draft heads that come with a checkpoint, against tools/fixtures/mtp_reference.py on the tiny checkpoints of
// tests/golden/models that have one.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "drafters/mtp.h"
#include "tests/models/expect_close.h"
#include "tests/models/golden_fixture.h"
#include "tests/models/head_runner.h"
#include "tests/models/pass_drafter_runner.h"
#include "tests/support/test_paths.h"

namespace tensorfold {
namespace {

class MtpFixture : public GoldenFixture {
 protected:
  /// Our model with the hidden states of the prompt, and a head for them and a few drafts more.
  void load_head(std::unique_ptr<Ops> ops, const ModelOptions& options) {
    Result<std::unique_ptr<TestModel>> model = load_test_model(folder_, std::move(ops), options);
    ASSERT_TRUE(model.ok()) << model.status().message();
    model_ = std::move(*model);
    ASSERT_NE(model_->model->draft_head(), nullptr);
    vocab_size_ = model_->model->spec().vocab_size;
    const auto size = std::ssize(expected_.input_ids);
    runner_ = SequenceRunner::create(model_->runnable(), {size, size, /*with_hidden=*/true}).value();
    ASSERT_TRUE(runner_->append(expected_.input_ids, {}).ok());
    num_pairs_ = std::ssize(read_f32(*file_, "mtp_logits")) / vocab_size_;
    ASSERT_GE(num_pairs_, 60);
    head_ = std::make_unique<HeadRunner>(*model_, num_pairs_ + 8);
  }

  /// Rows [first, first + count) of the pairs (hidden state, next token).
  HeadRunner::Rows run_pairs(int64_t first, int64_t count) {
    return head_->append(std::span(expected_.input_ids).subspan(first + 1, count),
                         runner_->hidden().rows(first, count));
  }

  /// Close to the reference, and the same largest element in every row.
  void expect_rows(const std::vector<float>& found, const std::string& name, int64_t row_size) {
    const std::vector<float> expected = read_f32(*file_, name);
    ASSERT_EQ(found.size(), expected.size()) << name;
    expect_close(found, expected, std::string(GetParam()) + ": " + name);
    for (size_t i = 0; i < expected.size(); i += row_size)
      EXPECT_EQ(argmax(std::span(found).subspan(i, row_size)),
                argmax(std::span(expected).subspan(i, row_size)))
          << name << " row " << i / row_size;
  }

  std::unique_ptr<HeadRunner> head_;
  int64_t num_pairs_ = 0;
};

TEST_P(MtpFixture, InF32PairsAndChainedDraftsAgree) {
  load_head(make_reference_ops(), {.compute_f32 = true});
  const int64_t hidden_size = model_->model->spec().hidden_size;
  const HeadRunner::Rows pairs = run_pairs(0, num_pairs_);
  expect_rows(pairs.logits, "mtp_logits", vocab_size_);
  expect_rows(pairs.hidden, "mtp_hidden", hidden_size);

  const std::vector<int32_t> chain = read_i32(*file_, "mtp_chain_tokens");
  std::vector<float> logits, hidden;
  int32_t drafted = argmax(std::span(pairs.logits).last(vocab_size_));
  for (size_t step = 0; step < chain.size(); ++step) {
    EXPECT_EQ(drafted, chain[step]);
    // The row before may have been the last of many.
    const HeadRunner::Rows row =
        head_->append({&chain[step], 1}, head_->last_hidden(step == 0 ? num_pairs_ : 1));
    drafted = argmax(row.logits);
    logits.insert(logits.end(), row.logits.begin(), row.logits.end());
    hidden.insert(hidden.end(), row.hidden.begin(), row.hidden.end());
  }
  expect_rows(logits, "mtp_chain_logits", vocab_size_);
  expect_rows(hidden, "mtp_chain_hidden", hidden_size);
}

// In turns of seven positions, as a prompt's chunks are, and all at once. Guesses in between leave no trace.
TEST_P(MtpFixture, TheDrafterProposesTheChain) {
  for (const bool is_at_once : {false, true}) {
    load_head(make_reference_ops(), {.compute_f32 = true});
    const std::vector<int32_t> chain = read_i32(*file_, "mtp_chain_tokens");
    const MtpModel parts = {*model_->model, *model_->ops, *model_->weights, vocab_size_};
    PassDrafterRunner drafter(*model_->ops, std::make_unique<MtpDrafter>(parts), num_pairs_ + 8);
    const int64_t turn_rows = is_at_once ? num_pairs_ : 7;
    for (int64_t first = 0; first < num_pairs_; first += turn_rows) {
      const int64_t end = std::min(first + turn_rows, num_pairs_);
      const bool is_last = end == num_pairs_;
      const Draft draft =
          drafter.turn(std::span(expected_.input_ids).first(end + 1), {.hidden = runner_->hidden()}, first,
                       is_last ? std::ssize(chain) : first % 3);
      EXPECT_TRUE(draft.is_chain());
      EXPECT_EQ(std::ssize(draft.evidence), draft.size());
      if (is_last)
        EXPECT_EQ(draft.tokens, chain);
      else
        EXPECT_EQ(draft.size(), first % 3);
    }
  }
}

TEST_P(MtpFixture, PassesOfAnySizeAndBothBackendsGiveTheSameBytes) {
  load_head(make_reference_ops(), {});
  const HeadRunner::Rows whole = run_pairs(0, num_pairs_);
  Result<std::unique_ptr<Ops>> cpu = make_cpu_ops(2);
  if (!cpu.ok()) GTEST_SKIP() << cpu.status().message();
  load_head(std::move(*cpu), {});
  for (int64_t first = 0; first < num_pairs_; first += 7) {
    const int64_t count = std::min<int64_t>(7, num_pairs_ - first);
    const HeadRunner::Rows part = run_pairs(first, count);
    EXPECT_EQ(std::memcmp(part.logits.data(), &whole.logits[first * vocab_size_], part.logits.size() * 4), 0)
        << "pairs from " << first << " on";
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, MtpFixture,
                         testing::Values("glm4_moe/mtp", "nemotron_h/mtp", "qwen3_5/wrapper_mtp",
                                         "qwen3_5_moe/wrapper_mtp"),
                         GoldenFixture::kName);

TEST(DraftHead, IsNoneWhereTheCheckpointHasNone) {
  const std::string root = std::string(kSourceDir) + "/tests/golden/models/";
  for (const char* fixture :
       {"glm4_moe/mlx_4bit", "glm4_moe/grouped_qk_norm", "nemotron_h/all_kinds", "nemotron_h/mlx_4bit",
        "qwen3_5/tied", "qwen3_5/mlx_4bit", "qwen3_next/mixed", "qwen3/tied"})
    EXPECT_EQ(load_test_model(root + fixture, make_reference_ops(), {}).value()->model->draft_head(), nullptr)
        << fixture;
}

}  // namespace
}  // namespace tensorfold
