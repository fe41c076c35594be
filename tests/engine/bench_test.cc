// The benchmarks' bookkeeping: bytes per token, what is measured, what is refused. Speeds themselves are not
// tested.
#include "engine/bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/weight_traffic.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/toy_model.h"

namespace tensorfold {
namespace {

using testing::HasSubstr;

class BenchTest : public testing::Test {
 protected:
  void load(const ToyModel& toy) {
    ASSERT_TRUE(write_toy_model(toy, folder_.path()).ok());
    LoadOptions options;
    options.use_reference_ops = true;
    auto loaded = load_model(folder_.path(), options);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    model_ = std::move(loaded).value();
  }

  int64_t packed_bytes(int64_t out, int64_t in, const ToyModel& toy) const {
    LinearSpec spec{.out = out, .in = in};
    if (toy.bits > 0) {
      spec.format = WeightFormat::kAffine;
      spec.bits = toy.bits;
      spec.group_size = static_cast<int>(toy.group_size);
    }
    return model_->ops->packed_bytes(spec);
  }

  /// All matrices of a toy but the embedding, of which a token reads one row; of experts num_experts_per_tok.
  int64_t expected_bytes(const ToyModel& toy) const {
    const int64_t E = toy.hidden_size, I = toy.intermediate_size;
    const int64_t q_size = toy.num_heads * toy.head_dim, kv_size = toy.num_kv_heads * toy.head_dim;
    const bool is_moe = toy.model_type == "qwen3_moe";
    const int64_t mlp = 2 * packed_bytes(I, E, toy) + packed_bytes(E, I, toy);
    const int64_t layer =
        packed_bytes(q_size, E, toy) + 2 * packed_bytes(kv_size, E, toy) + packed_bytes(E, q_size, toy) +
        (is_moe ? toy.num_experts_per_tok * mlp + packed_bytes(toy.num_experts, E, toy) : mlp);
    const int64_t head = packed_bytes(toy.vocab_size, E, toy);
    return toy.num_layers * layer + head + head / toy.vocab_size;
  }

  TemporaryFolder folder_;
  std::shared_ptr<LoadedModel> model_;
};

TEST_F(BenchTest, ATokenReadsEveryMatrixOnceAndOneRowOfTheEmbedding) {
  for (const bool is_tied : {false, true}) {
    const ToyModel toy{.bits = 4, .is_tied = is_tied};
    load(toy);
    EXPECT_EQ(decode_weight_bytes(*model_), expected_bytes(toy)) << "tied " << is_tied;
  }
}

TEST_F(BenchTest, ATokenReadsOnlyTheExpertsThatItsRouterChooses) {
  const ToyModel toy{.model_type = "qwen3_moe", .num_experts = 8, .num_experts_per_tok = 3};
  load(toy);
  EXPECT_EQ(decode_weight_bytes(*model_), expected_bytes(toy));
  EXPECT_LT(decode_weight_bytes(*model_), model_->weights->resident_bytes());
}

TEST_F(BenchTest, KeysAndValuesGrowWithTheContext) {
  load({.num_layers = 3, .num_kv_heads = 2, .head_dim = 32});
  EXPECT_EQ(decode_kv_bytes(*model_, 640), 640 * 3 * 2 * (2 * 32) * 2);
}

TEST_F(BenchTest, EachBenchReportsWhatItWasAskedFor) {
  load({});
  const auto engine = Engine::create(model_, {}).value();
  const auto decode =
      bench_decode(*engine, {.contexts = {3, 70}, .tokens_per_sample = 4, .num_samples = 3}).value();
  ASSERT_EQ(decode.size(), 2u);
  EXPECT_EQ(decode[1].context_tokens, 70);
  EXPECT_EQ(decode[1].bytes_per_token, decode_weight_bytes(*model_) + decode_kv_bytes(*model_, 76));
  const auto prefill = bench_prefill(*engine, {.prompt_tokens = {9, 80}, .num_samples = 2}).value();
  ASSERT_EQ(prefill.size(), 2u);
  const auto batch =
      bench_batch(*engine, {.streams = {1, 3}, .prompt_tokens = 5, .tokens_per_stream = 12, .num_samples = 2})
          .value();
  ASSERT_EQ(batch.size(), 2u);
  for (const BenchRate& rate :
       {decode[0].rate, decode[1].rate, prefill[0].rate, prefill[1].rate, batch[0].rate, batch[1].rate}) {
    EXPECT_GT(rate.lowest, 0);
    EXPECT_LE(rate.lowest, rate.median);
    EXPECT_LE(rate.median, rate.highest);
  }
  EXPECT_EQ(decode[0].rate.num_samples, 3);
  EXPECT_EQ(batch[1].rate.num_samples, 2);
  // Warm-up (8 prompt tokens, 4 more) three times, then exactly the samples.
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.prompt_tokens, 3 * 8 + (3 + 70) + 2 * (9 + 80) + 2 * (1 + 3) * 5);
  EXPECT_EQ(stats.generated_tokens, 3 * 4 + 2 * 13 + 2 * 2 + 2 * (1 + 3) * 12);
}

TEST_F(BenchTest, WhatCannotBeMeasuredIsNamed) {
  load({});
  const auto engine = Engine::create(model_, {.context_tokens = 100}).value();
  EXPECT_THAT(bench_decode(*engine, {.contexts = {101}}).status().message(),
              HasSubstr("context of 100 tokens"));
  EXPECT_EQ(
      bench_decode(*engine, {.contexts = {90}, .tokens_per_sample = 8, .num_samples = 3}).status().message(),
      "the context of 100 tokens ended a reply after 10 of 25 tokens");
  EXPECT_EQ(bench_decode(*engine, {.contexts = {0}}).status().message(), "context is 0, expected 1 or more");
  EXPECT_EQ(bench_prefill(*engine, {.num_samples = 0}).status().message(),
            "num_samples is 0, expected 1 or more");
  EXPECT_EQ(bench_batch(*engine, {.tokens_per_stream = 1}).status().message(),
            "tokens_per_stream is 1, expected 2 or more");
}

}  // namespace
}  // namespace tensorfold
