// A fixture of tests/golden/models and our run of it: what the comparisons with transformers and mlx-lm
// share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/test_model.h"
#include "tests/support/test_paths.h"

namespace tensorfold {

/// What the reference computed; see the generators for the meaning of each.
struct ExpectedLogits {
  std::vector<int32_t> input_ids;
  std::vector<int32_t> logit_rows;
  std::vector<float> logits;  ///< [logit_rows, V] fp32.
  std::vector<int32_t> argmax;
};

/// The parameter is the fixture's folder below tests/golden/models.
class GoldenFixture : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = std::string(kSourceDir) + "/tests/golden/models/" + GetParam();
    Result<Checkpoint> file = Checkpoint::open_file(folder_ + "/expected.safetensors");
    ASSERT_TRUE(file.ok()) << file.status().message();
    file_ = std::make_unique<Checkpoint>(std::move(*file));
    expected_ = {read_i32(*file_, "input_ids"), read_i32(*file_, "logit_rows"), read_f32(*file_, "logits"),
                 read_i32(*file_, "argmax")};
    ASSERT_GE(expected_.input_ids.size(), 100u);
    ASSERT_FALSE(expected_.logits.empty());
    ASSERT_GT(spread(), 1.0);
  }

  /// Our model, and a runner for the prompt and as many tokens more.
  void load(const ModelOptions& options, int64_t num_more_tokens = 0) {
    Result<std::unique_ptr<TestModel>> model = load_test_model(folder_, make_reference_ops(), options);
    ASSERT_TRUE(model.ok()) << model.status().message();
    model_ = std::move(*model);
    vocab_size_ = model_->model->spec().vocab_size;
    const int64_t num_tokens = static_cast<int64_t>(expected_.input_ids.size()) + num_more_tokens;
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

  /// testing.md, oracle 3: within 1e-4 of the spread, and every argmax.
  void expect_agreement(const std::vector<float>& logits) {
    const Distance d = distance(logits);
    std::printf("%s: f32 max %.2e, rms %.2e of the spread\n", GetParam(), d.max / spread(), d.rms / spread());
    EXPECT_LE(d.max, 1e-4 * spread());
    for (size_t t = 0; t < expected_.input_ids.size(); ++t)
      EXPECT_EQ(argmax(std::span(logits).subspan(t * vocab_size_, vocab_size_)), expected_.argmax[t])
          << "row " << t;
  }

  /// In bf16 no further from the fp32 logits than the reference's own run, whose distance is `reference_rms`.
  void expect_no_further(const std::vector<float>& logits, double reference_rms) {
    const double rms = distance(logits).rms;
    std::printf("%s: bf16 rms %.5f, the reference's %.5f (ratio %.2f)\n", GetParam(), rms, reference_rms,
                rms / reference_rms);
    EXPECT_LE(rms, reference_rms);
  }

  static std::string name_of(const testing::TestParamInfo<const char*>& info) {
    std::string name = info.param;
    std::replace(name.begin(), name.end(), '/', '_');
    return name;
  }

  std::string folder_;
  std::unique_ptr<Checkpoint> file_;  ///< expected.safetensors.
  ExpectedLogits expected_;
  std::unique_ptr<TestModel> model_;
  std::unique_ptr<SequenceRunner> runner_;
  int64_t vocab_size_ = 0;

 public:
  /// For INSTANTIATE_TEST_SUITE_P: "llama/tied" -> "llama_tied".
  static constexpr auto kName = &GoldenFixture::name_of;
};

}  // namespace tensorfold
