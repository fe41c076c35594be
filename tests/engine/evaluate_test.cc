// Perplexity and logits of a text, on fixtures whose logits the reference implementation computed.
#include "engine/evaluate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "tests/support/temporary_folder.h"
#include "tests/support/test_model.h"
#include "tests/support/test_paths.h"

namespace tensorfold {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kFolder = std::string(kSourceDir) + "/tests/golden/models/llama/linear_f32";

/// A fixture in f32, its prompt, and our logits of it from a run of its own.
class EvaluateTest : public testing::Test {
 protected:
  EvaluateTest() {
    model_ =
        load_model(kFolder, {.num_threads = 1, .use_reference_ops = true, .need_tokenizer = false}).value();
    const Checkpoint file = Checkpoint::open_file(kFolder + "/expected.safetensors").value();
    ids_ = read_i32(file, "input_ids");
  }

  std::vector<float> logits_of(std::span<const int32_t> ids) {
    const auto size = static_cast<int64_t>(ids.size());
    const auto runner =
        SequenceRunner::create({*model_->model, *model_->ops, *model_->weights}, {size, size}).value();
    return prompt_logits(*runner, ids, size).value();
  }

  /// Sum of -ln softmax over the tokens of one window but the first.
  double nll_of(std::span<const int32_t> ids) {
    const std::vector<float> logits = logits_of(ids);
    const size_t vocab_size = logits.size() / ids.size();
    double nll = 0;
    for (size_t t = 0; t + 1 < ids.size(); ++t) {
      long double sum = 0;
      for (size_t v = 0; v < vocab_size; ++v)
        sum += std::exp(static_cast<long double>(logits[t * vocab_size + v]));
      nll += static_cast<double>(std::log(sum) - logits[t * vocab_size + ids[t + 1]]);
    }
    return nll;
  }

  std::shared_ptr<LoadedModel> model_;
  std::vector<int32_t> ids_;  ///< 192 of them: more than one pass of an evaluation.
};

TEST_F(EvaluateTest, PerplexityIsTheExponentialOfTheMeanNegativeLogLikelihood) {
  ASSERT_EQ(ids_.size(), 192u);
  const Result<Evaluation> result = evaluate(*model_, ids_, {});
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->num_tokens, 192);
  EXPECT_EQ(result->num_scored, 191);
  EXPECT_NEAR(result->mean_nll, nll_of(ids_) / 191, 1e-9);
  EXPECT_NEAR(result->perplexity, std::exp(nll_of(ids_) / 191), 1e-6);
}

TEST_F(EvaluateTest, WindowsStartFromAnEmptyContext) {
  const std::span<const int32_t> ids = ids_;
  const Result<Evaluation> result = evaluate(*model_, ids_, {.window_tokens = 80});
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->num_scored, 79 + 79 + 31);
  const double nll = nll_of(ids.subspan(0, 80)) + nll_of(ids.subspan(80, 80)) + nll_of(ids.subspan(160));
  EXPECT_NEAR(result->mean_nll, nll / (79 + 79 + 31), 1e-9);
}

TEST_F(EvaluateTest, LogitsOfEveryPositionAreWritten) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/logits.safetensors";
  std::vector<int64_t> progress;
  const Result<Evaluation> result =
      evaluate(*model_, ids_, {.logits_path = path, .progress = [&](int64_t done, int64_t total) {
                                 EXPECT_EQ(total, 192);
                                 progress.push_back(done);
                               }});
  ASSERT_TRUE(result.ok()) << result.status().message();
  const Checkpoint file = Checkpoint::open_file(path).value();
  EXPECT_EQ(read_i32(file, "input_ids"), ids_);
  EXPECT_EQ(file.find("logits")->shape, (std::vector<int64_t>{192, model_->model->spec().vocab_size}));
  EXPECT_EQ(read_f32(file, "logits"), logits_of(ids_));
  EXPECT_THAT(progress, ElementsAre(128, 192));
}

TEST_F(EvaluateTest, OneTokenHasLogitsButNoPerplexity) {
  const Result<Evaluation> result = evaluate(*model_, std::span(ids_).first(1), {});
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->num_scored, 0);
  EXPECT_EQ(result->perplexity, 0);
}

TEST_F(EvaluateTest, WhatCannotBeEvaluatedIsRefusedAndLeavesNoFile) {
  const TemporaryFolder folder;
  const EvaluateOptions to_file = {.logits_path = folder.path() + "/logits.safetensors"};
  EXPECT_THAT(evaluate(*model_, {}, to_file).status().message(), HasSubstr("no tokens"));
  EXPECT_THAT(evaluate(*model_, ids_, {.window_tokens = 513}).status().message(),
              AllOf(HasSubstr("513"), HasSubstr("512")));
  std::vector<int32_t> longer(600, 1);
  EXPECT_THAT(evaluate(*model_, longer, to_file).status().message(),
              AllOf(HasSubstr("600"), HasSubstr("logits")));
  EXPECT_TRUE(evaluate(*model_, longer, {}).ok()) << "windows of 512";
  ids_[150] = 128;
  EXPECT_THAT(evaluate(*model_, ids_, to_file).status().message(),
              AllOf(HasSubstr("128"), HasSubstr("vocabulary")));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(ParseTokenIds, IntegersBetweenWhiteSpace) {
  EXPECT_THAT(parse_token_ids(" 1\n22\t333\r\n0 ").value(), ElementsAre(1, 22, 333, 0));
  EXPECT_TRUE(parse_token_ids(" \n").value().empty());
  EXPECT_THAT(parse_token_ids("1 2x 3").status().message(),
              AllOf(HasSubstr("token id 1"), HasSubstr("\"2x\"")));
  EXPECT_FALSE(parse_token_ids("-1").ok());
  EXPECT_FALSE(parse_token_ids("2147483648").ok());
  EXPECT_FALSE(parse_token_ids("1.5").ok());
  EXPECT_FALSE(parse_token_ids("1,2").ok());
}

}  // namespace
}  // namespace tensorfold
