// The families against Hugging Face transformers, on the tiny checkpoints of tests/golden/models
// (tools/fixtures/transformers_fixture.py): testing.md, oracle 3.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/support/test_model.h"

namespace tensorfold {
namespace {

/// What the reference computed; see the generator for the meaning of each.
struct Expected {
  std::vector<int32_t> input_ids;
  std::vector<int32_t> logit_rows;
  std::vector<float> logits;  ///< [logit_rows, V] fp32.
  std::vector<int32_t> argmax;
  std::vector<int32_t> greedy;
  double bf16_rms = 0;
  int64_t context = 0;
};

class TransformersFixture : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = std::string(TENSORFOLD_SOURCE_DIR "/tests/golden/models/") + GetParam();
    Result<Checkpoint> file = Checkpoint::open_file(folder_ + "/expected.safetensors");
    ASSERT_TRUE(file.ok()) << file.status().message();
    expected_ = {read_i32(*file, "input_ids"), read_i32(*file, "logit_rows"), read_f32(*file, "logits"),
                 read_i32(*file, "argmax"),    read_i32(*file, "greedy"),     read_f32(*file, "bf16_rms").at(0),
                 read_i32(*file, "context").at(0)};
    ASSERT_GE(expected_.input_ids.size(), 100u);
    ASSERT_FALSE(expected_.logits.empty());
  }

  void load(bool compute_f32) {
    Result<std::unique_ptr<TestModel>> model =
        load_test_model(folder_, make_reference_ops(), {compute_f32, expected_.context});
    ASSERT_TRUE(model.ok()) << model.status().message();
    model_ = std::move(*model);
    vocab_size_ = model_->model->spec().vocab_size;
    const auto num_tokens = static_cast<int64_t>(expected_.input_ids.size() + expected_.greedy.size());
    Result<std::unique_ptr<SequenceRunner>> runner =
        SequenceRunner::create(model_->runnable(), {num_tokens, num_tokens});
    ASSERT_TRUE(runner.ok()) << runner.status().message();
    runner_ = std::move(*runner);
  }

  /// Logits [T, V] of the prompt, in two uneven passes.
  std::vector<float> run_prompt() {
    Result<std::vector<float>> logits = prompt_logits(*runner_, expected_.input_ids, 101);
    EXPECT_TRUE(logits.ok()) << logits.status().message();
    return logits.ok() ? *logits : std::vector<float>(expected_.input_ids.size() * vocab_size_);
  }

  /// Differences from the reference over the rows that the fixture keeps.
  struct Distance {
    double max = 0, rms = 0;
  };
  Distance distance(const std::vector<float>& logits) const {
    Distance d;
    for (size_t i = 0; i < expected_.logit_rows.size(); ++i) {
      for (int64_t v = 0; v < vocab_size_; ++v) {
        const double difference = std::abs(double{logits[expected_.logit_rows[i] * vocab_size_ + v]} -
                                           double{expected_.logits[i * vocab_size_ + v]});
        d.max = std::isnan(difference) ? INFINITY : std::max(d.max, difference);
        d.rms += difference * difference;
      }
    }
    d.rms = std::sqrt(d.rms / static_cast<double>(expected_.logits.size()));
    return d;
  }

  /// Standard deviation of the reference's logits.
  double spread() const {
    double sum = 0, squares = 0;
    for (float x : expected_.logits) sum += x, squares += double{x} * x;
    const auto n = static_cast<double>(expected_.logits.size());
    return std::sqrt(squares / n - sum / n * (sum / n));
  }

  std::string folder_;
  Expected expected_;
  std::unique_ptr<TestModel> model_;
  std::unique_ptr<SequenceRunner> runner_;
  int64_t vocab_size_ = 0;
};

TEST_P(TransformersFixture, InF32LogitsAgreeToOneTenThousandthOfTheirSpread) {
  load(/*compute_f32=*/true);
  const std::vector<float> logits = run_prompt();
  const Distance d = distance(logits);
  ASSERT_GT(spread(), 1.0);
  std::printf("%s: f32 max %.2e, rms %.2e of the spread\n", GetParam(), d.max / spread(), d.rms / spread());
  EXPECT_LE(d.max, 1e-4 * spread());
  for (size_t t = 0; t < expected_.input_ids.size(); ++t)
    EXPECT_EQ(argmax(std::span(logits).subspan(t * vocab_size_, vocab_size_)), expected_.argmax[t]) << "row " << t;
}

TEST_P(TransformersFixture, InF32GreedyTextIsTheSame) {
  load(/*compute_f32=*/true);
  const Result<std::vector<int32_t>> tokens =
      greedy_tokens(*runner_, expected_.input_ids, static_cast<int64_t>(expected_.greedy.size()));
  ASSERT_TRUE(tokens.ok()) << tokens.status().message();
  EXPECT_EQ(*tokens, expected_.greedy);
}

TEST_P(TransformersFixture, InBf16LogitsAreNoFurtherFromF32ThanTheReferencesOwnBf16) {
  load(/*compute_f32=*/false);
  const double rms = distance(run_prompt()).rms;
  std::printf("%s: bf16 rms %.5f, the reference's %.5f (ratio %.2f)\n", GetParam(), rms, expected_.bf16_rms,
              rms / expected_.bf16_rms);
  EXPECT_LE(rms, expected_.bf16_rms);
}

INSTANTIATE_TEST_SUITE_P(Golden, TransformersFixture,
                         testing::Values("llama/tied", "llama/llama3_biases", "llama/yarn_f16_sharded",
                                         "llama/linear_f32", "llama/dynamic", "llama/longrope", "llama/longrope_short",
                                         "qwen2/sliding", "qwen2/tied_sharded", "qwen3/tied",
                                         "qwen3/yarn_mixed_window", "qwen3_moe/normalized", "qwen3_moe/sparse_step"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '/', '_');
                           return name;
                         });

}  // namespace
}  // namespace tensorfold
