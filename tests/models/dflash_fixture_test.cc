// DFlash and DFlash2 drafters against tools/fixtures/dflash_fixture.py: taps, context, candidates and
// choices; what must not matter for them; and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "drafters/block.h"
#include "formats/file.h"
#include "ops/kv_layout.h"
#include "tests/models/expect_close.h"
#include "tests/models/golden_fixture.h"
#include "tests/models/pass_drafter_runner.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_drafter.h"
#include "tests/support/test_paths.h"
#include "tests/support/toy_drafter.h"

namespace tensorfold {
namespace {

using testing::HasSubstr;

const std::string kTarget = std::string(kSourceDir) + "/tests/golden/models/qwen3/yarn_mixed_window";
const std::string kDrafters = std::string(kSourceDir) + "/tests/golden/drafters/";

class DFlashFixture : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = kDrafters + GetParam();
    file_ = std::make_unique<Checkpoint>(Checkpoint::open_file(folder_ + "/expected.safetensors").value());
    input_ids_ = read_i32(*file_, "input_ids");
    anchor_ = read_i32(*file_, "anchor")[0];
    ASSERT_GE(input_ids_.size(), 65u);
  }

  /// The target with the taps of all tokens, and a drafter that has absorbed nothing.
  void load(std::unique_ptr<Ops> ops, const ModelOptions& options) {
    runner_ = nullptr;
    model_ = load_test_model(kTarget, std::move(ops), options).value();
    drafter_ = load_test_drafter(folder_, *model_).value();
    target_ = SequenceRunner::create(
                  model_->runnable(),
                  {.max_tokens = num_tokens(), .max_rows = num_tokens(), .tap_layers = spec().target_layers})
                  .value();
    ASSERT_TRUE(target_->append(input_ids_, {}).ok());
    runner_ = std::make_unique<DrafterRunner>(*model_, *drafter_, num_tokens() + kMaxDraftedRows);
  }
  const BlockDrafterSpec& spec() const { return drafter_->drafter->spec(); }
  int64_t num_tokens() const { return std::ssize(input_ids_); }

  /// Positions [first, first + count), and then a block behind all of them.
  void absorb(int64_t first, int64_t count) {
    ASSERT_TRUE(runner_->absorb(first, target_->taps().rows(first, count)).ok());
  }
  BlockProposals propose() {
    BlockProposals proposals;
    EXPECT_TRUE(runner_->propose(num_tokens(), anchor_, spec().block_size, proposals).ok());
    return proposals;
  }

  /// Keys, or values, of the context in a layer's f32 pages: [P, K*D].
  std::vector<float> context(const KvPages& pages, bool is_value) const {
    const KvShape& shape = pages.shape;
    const int64_t padded = kv_padded_head_dim(shape.head_dim);
    std::vector<float> values;
    for (int64_t pos = 0; pos < num_tokens(); ++pos) {
      for (int64_t head = 0; head < shape.num_kv_heads; ++head) {
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          const int64_t page = pos / kPageTokens, slot = pos % kPageTokens;
          const std::byte* from = is_value ? pages.value_page(page) : pages.key_page(page);
          const int64_t index =
              is_value ? kv_value_index(shape.dtype, padded, slot, d) : kv_key_index(shape.dtype, d, slot);
          values.push_back(reinterpret_cast<const float*>(from)[head * kv_head_elements(shape) + index]);
        }
      }
    }
    return values;
  }

  std::string folder_;
  std::unique_ptr<Checkpoint> file_;
  std::vector<int32_t> input_ids_;
  int32_t anchor_ = 0;
  std::unique_ptr<TestModel> model_;
  std::unique_ptr<TestDrafter> drafter_;
  std::unique_ptr<SequenceRunner> target_;
  std::unique_ptr<DrafterRunner> runner_;
};

TEST_P(DFlashFixture, InF32TapsContextAndCandidatesAgree) {
  load(make_reference_ops(), {.compute_f32 = true});
  const View taps = target_->taps();
  expect_close({taps.row<const float>(0), static_cast<size_t>(taps.num_elements())}, read_f32(*file_, "taps"),
               "taps");

  absorb(0, num_tokens());
  const std::vector<float> keys = read_f32(*file_, "context_k"), values = read_f32(*file_, "context_v");
  for (int64_t i = 0; i < spec().num_layers; ++i) {
    const std::vector<float> k = context(runner_->pages()[i], false), v = context(runner_->pages()[i], true);
    expect_close(k, std::span(keys).subspan(i * k.size(), k.size()), "keys of layer " + std::to_string(i));
    expect_close(v, std::span(values).subspan(i * v.size(), v.size()),
                 "values of layer " + std::to_string(i));
  }

  const BlockProposals proposals = propose();
  const std::vector<float> logits = read_f32(*file_, "logits"), scores = read_f32(*file_, "scores");
  const std::vector<int32_t> tokens = read_i32(*file_, "tokens");
  const int64_t k = proposals.num_candidates(), vocab_size = model_->model->spec().vocab_size;
  ASSERT_EQ(proposals.num_sequences(), 1);
  ASSERT_EQ(proposals.num_rows(0), std::ssize(tokens));
  std::vector<DraftedToken> chain;
  proposals.choose(0, {.temperature = 0}, chain);
  ASSERT_EQ(chain.size(), tokens.size());
  std::vector<float> found_logits, expected_logits, found_scores;
  for (int64_t row = 0; row < proposals.num_rows(0); ++row) {
    for (int64_t i = 0; i < k; ++i) {
      found_logits.push_back(proposals.logits(row)[i]);
      expected_logits.push_back(logits[row * vocab_size + proposals.tokens(row)[i]]);
    }
    std::vector<float> of_row(k);
    proposals.score(0, row, row == 0 ? -1 : chain[row - 1].candidate, of_row);
    found_scores.insert(found_scores.end(), of_row.begin(), of_row.end());
    EXPECT_EQ(chain[row].token, tokens[row]) << "row " << row;
    EXPECT_EQ(chain[row].token, proposals.tokens(row)[chain[row].candidate]);
    double sum = 0;
    for (const float score : of_row) sum += std::exp(score - of_row[chain[row].candidate]);
    EXPECT_NEAR(chain[row].confidence, 1 / sum, 1e-5);
  }
  expect_close(found_logits, expected_logits, "logits of the candidates");
  expect_close(found_scores, scores, "scores");
}

TEST_P(DFlashFixture, AtATemperatureTheTargetsOwnNoiseDecides) {
  load(make_reference_ops(), {.compute_f32 = true});
  absorb(0, num_tokens());
  const BlockProposals proposals = propose();
  const int64_t k = proposals.num_candidates();
  int num_other = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::vector<DraftedToken> chain;
    proposals.choose(0, {.temperature = 1.5f, .seed = seed}, chain);
    ASSERT_EQ(std::ssize(chain), proposals.num_rows(0));
    for (int64_t row = 0; row < std::ssize(chain); ++row) {
      // The draw of a row that holds only the candidates, by the op that draws the target's tokens.
      std::vector<float> scores(k), all(model_->model->spec().vocab_size, -INFINITY);
      proposals.score(0, row, row == 0 ? -1 : chain[row - 1].candidate, scores);
      for (int64_t i = 0; i < k; ++i) all[proposals.tokens(row)[i]] = scores[i];
      int32_t drawn = -1;
      const SampleRow sampling = {.temperature = 1.5f, .seed = seed, .pos = num_tokens() + 1 + row};
      model_->ops->sample({&drawn, 1}, View(all.data(), DType::kF32, {1, std::ssize(all)}), {&sampling, 1});
      EXPECT_EQ(chain[row].token, drawn) << "seed " << seed << " row " << row;
      num_other += argmax(scores) != chain[row].candidate;
      double sum = 0;
      for (const float score : scores) sum += std::exp((score - scores[chain[row].candidate]) / 1.5);
      EXPECT_NEAR(chain[row].confidence, 1 / sum, 1e-5);
    }
  }
  EXPECT_GT(num_other, 10) << "the noise decides nothing";
}

// Chunk by chunk, as an engine has a prompt computed, with guesses in between, which leave no trace.
TEST_P(DFlashFixture, TheEnginesDrafterProposesTheSame) {
  load(make_reference_ops(), {.compute_f32 = true});
  absorb(0, num_tokens());
  std::vector<DraftedToken> chain;
  propose().choose(0, {.temperature = 0}, chain);
  std::vector<int32_t> expected, tokens = input_ids_;
  for (const DraftedToken& drafted : chain) expected.push_back(drafted.token);
  tokens.push_back(anchor_);
  const BlockModel parts = {.name = "dflash",
                            .drafter = *drafter_->drafter,
                            .ops = *model_->ops,
                            .weights = *drafter_->weights,
                            .target = {*model_->model, *model_->weights}};
  PassDrafterRunner drafter(*model_->ops, std::make_unique<BlockPassDrafter>(parts), num_tokens() + 64);
  for (int64_t first = 0; first < num_tokens(); first += 13) {
    const int64_t end = std::min(first + 13, num_tokens());
    const Draft draft = drafter.turn(std::span(tokens).first(end + 1), {.taps = target_->taps()}, first,
                                     end == num_tokens() ? kMaxDraftTokens : first % 3);
    EXPECT_TRUE(draft.is_chain());
    if (end < num_tokens()) {
      EXPECT_EQ(draft.size(), first % 3);
    } else {
      EXPECT_EQ(draft.tokens, expected) << "as many as a block has";
    }
  }
}

TEST_P(DFlashFixture, TheEnginesDrafterProposesTheTreeOfItsCandidates) {
  load(make_reference_ops(), {.compute_f32 = true});
  absorb(0, num_tokens());
  const BlockProposals proposals = propose();
  std::vector<int32_t> tokens = input_ids_;
  tokens.push_back(anchor_);
  const BlockModel parts = {.name = "dflash",
                            .drafter = *drafter_->drafter,
                            .ops = *model_->ops,
                            .weights = *drafter_->weights,
                            .target = {*model_->model, *model_->weights},
                            .offers_trees = true};
  for (const int64_t max_tokens : {spec().block_size - 1, int64_t{15}, int64_t{40}}) {
    Draft expected;
    BlockTree().grow(proposals, 0, {.temperature = 0}, {.max_tokens = max_tokens}, expected);
    PassDrafterRunner drafter(*model_->ops, std::make_unique<BlockPassDrafter>(parts), num_tokens() + 64);
    const Draft draft = drafter.turn(tokens, {.taps = target_->taps()}, 0, max_tokens);
    EXPECT_EQ(draft.tokens, expected.tokens);
    EXPECT_EQ(draft.parents, expected.parents);
    EXPECT_EQ(draft.evidence, expected.evidence);
    EXPECT_EQ(draft.size(), max_tokens);
    EXPECT_TRUE(max_tokens < 15 || !draft.is_chain());
  }
}

TEST_P(DFlashFixture, PassesOfAnySizeAndBothBackendsGiveTheSameBytes) {
  load(make_reference_ops(), {});
  absorb(0, num_tokens());
  const BlockProposals whole = propose();
  Result<std::unique_ptr<Ops>> cpu = make_cpu_ops(2);
  if (!cpu.ok()) GTEST_SKIP() << cpu.status().message();
  load(std::move(*cpu), {});
  // As an engine does: guesses are absorbed too, and a block lies where later context goes.
  for (int64_t first = 0; first < num_tokens(); first += 7) {
    const int64_t count = std::min<int64_t>(7, num_tokens() - first);
    absorb(first, std::min<int64_t>(count + 3, num_tokens() - first));
    BlockProposals other;
    ASSERT_TRUE(runner_->propose(first + count, 5, spec().block_size, other).ok());
  }
  const BlockProposals pieces = propose();
  for (int64_t row = 0; row < whole.num_rows(0); ++row) {
    EXPECT_TRUE(std::ranges::equal(whole.tokens(row), pieces.tokens(row))) << "row " << row;
    EXPECT_EQ(std::memcmp(whole.logits(row).data(), pieces.logits(row).data(), whole.num_candidates() * 4),
              0);
    std::vector<float> a(whole.num_candidates()), b(a.size());
    whole.score(0, row, row == 0 ? -1 : 3, a);
    pieces.score(0, row, row == 0 ? -1 : 3, b);
    EXPECT_EQ(a, b);
  }
}

TEST_P(DFlashFixture, SequencesOfOnePassDoNotMix) {
  load(make_reference_ops(), {});
  absorb(0, num_tokens());
  BlockProposals alone[2];
  const int64_t positions_of[] = {num_tokens(), 30};
  for (int i = 0; i < 2; ++i)
    ASSERT_TRUE(runner_->propose(positions_of[i], anchor_ + i, 3 + i, alone[i]).ok());
  // What the block at 30 wrote over.
  absorb(30, 10);

  DrafterRunner& first = *runner_;
  DrafterRunner second(*model_, *drafter_, num_tokens() + kMaxDraftedRows);
  ASSERT_TRUE(second.absorb(0, target_->taps().rows(0, 30)).ok());
  // Both sequences in the pages of one pool: the second's pages behind the first's.
  std::vector<Buffer> buffers;
  std::vector<KvPages> pages;
  for (size_t i = 0; i < first.pages().size(); ++i) {
    const KvPages &a = first.pages()[i], &b = second.pages()[i];
    const int64_t bytes = a.num_pages * a.page_stride_bytes;
    buffers.push_back(model_->ops->device().allocate(4 * bytes, "pages").value());
    std::byte* keys = buffers.back().data();
    std::memcpy(keys, a.k, bytes), std::memcpy(keys + bytes, b.k, bytes);
    std::memcpy(keys + 2 * bytes, a.v, bytes), std::memcpy(keys + 3 * bytes, b.v, bytes);
    pages.push_back({a.shape, keys, keys + 2 * bytes, a.page_stride_bytes, 2 * a.num_pages});
  }
  std::vector<int32_t> table(pages[0].num_pages), positions;
  std::iota(table.begin(), table.end(), 0);
  const std::vector<SequenceRows> sequences = {{0, 3, num_tokens(), table.data()},
                                               {3, 4, 30, table.data() + first.pages()[0].num_pages}};
  for (const SequenceRows& s : sequences)
    for (int64_t r = 0; r < s.num_rows; ++r) positions.push_back(static_cast<int32_t>(s.first_pos + r));
  const int32_t anchors[] = {anchor_, anchor_ + 1};
  const int64_t bytes = drafter_->drafter->propose_scratch_bytes(std::ssize(positions));
  const Buffer memory = model_->ops->device().allocate(bytes, "scratch").value();
  Arena scratch(memory.data(), bytes);
  BlockProposals both;
  ASSERT_TRUE(drafter_->drafter
                  ->propose({.anchors = anchors, .rows = {positions, sequences}}, *model_->ops,
                            *drafter_->weights, {*model_->model, *model_->weights}, pages, scratch, both)
                  .ok());
  for (int64_t s = 0; s < 2; ++s) {
    ASSERT_EQ(both.num_rows(s), alone[s].num_rows(0));
    for (int64_t r = 0; r < both.num_rows(s); ++r) {
      const int64_t row = both.first_row(s) + r;
      EXPECT_TRUE(std::ranges::equal(both.tokens(row), alone[s].tokens(r))) << s << " " << r;
      EXPECT_TRUE(std::ranges::equal(both.logits(row), alone[s].logits(r))) << s << " " << r;
      std::vector<float> a(both.num_candidates()), b(a.size());
      both.score(s, row, r == 0 ? -1 : 2, a);
      alone[s].score(0, r, r == 0 ? -1 : 2, b);
      EXPECT_EQ(a, b) << s << " " << r;
    }
  }
}

TEST_P(DFlashFixture, OnlyDrawableTokensAreCandidates) {
  load(make_reference_ops(), {});
  absorb(0, num_tokens());
  const int32_t best = propose().tokens(0)[0];
  ASSERT_GT(best, 0);
  std::vector<int32_t> table(4);
  std::iota(table.begin(), table.end(), 0);
  const SequenceRows sequence = {0, 2, num_tokens(), table.data()};
  const std::vector<int32_t> positions = {static_cast<int32_t>(num_tokens()),
                                          static_cast<int32_t>(num_tokens()) + 1};
  const Buffer memory =
      model_->ops->device().allocate(drafter_->drafter->propose_scratch_bytes(2), "scratch").value();
  Arena scratch(memory.data(), memory.size_bytes());
  BlockProposals proposals;
  ASSERT_TRUE(drafter_->drafter
                  ->propose({{&anchor_, 1}, {positions, {&sequence, 1}}, best}, *model_->ops,
                            *drafter_->weights, {*model_->model, *model_->weights}, runner_->pages(), scratch,
                            proposals)
                  .ok());
  for (const int32_t token : proposals.tokens(0)) EXPECT_LT(token, best);
}

INSTANTIATE_TEST_SUITE_P(Golden, DFlashFixture, testing::Values("dflash", "dflash2"),
                         [](const auto& info) { return std::string(info.param); });

/// What a drafter must know of the fixture's target.
ModelSpec target_spec(int64_t num_layers) {
  ModelSpec spec;
  spec.model_type = "qwen3";
  spec.num_layers = num_layers;
  spec.hidden_size = 48;
  spec.vocab_size = 130;
  return spec;
}

/// The message about a drafter's config with `key` (of dflash_config where it has it) set to `value`; ""
/// where it is fine.
std::string error_with(const char* drafter, const std::string& key, Json value) {
  const std::string text =
      read_text_file(posix_file_system(), kDrafters + drafter + "/config.json", 1 << 20).value();
  Json config = parse_json(text).value();
  bool is_nested = false;
  for (Json::Member& member : config.as_object()) {
    if (member.first == "dflash_config" && member.second.find(key) != nullptr)
      member.second.set(key, value), is_nested = true;
  }
  if (!is_nested) config.set(key, value);
  const HfConfig parsed = parse_hf_config(dump_json(config)).value();
  WeightTable table("dflash");
  const ModelSpec target = target_spec(3);
  const auto made = make_block_drafter({parsed, table, target});
  return made.ok() ? "" : made.status().message();
}

TEST(BlockDrafter, RefusesWhatDoesNotFit) {
  EXPECT_EQ(error_with("dflash2", "eos_token_id", 1), "");
  EXPECT_THAT(error_with("dflash2", "hidden_size", 60),
              HasSubstr("hidden_size: expected 48, as of the qwen3 model that it drafts for, found 60"));
  EXPECT_THAT(error_with("dflash2", "num_target_layers", 4), HasSubstr("num_target_layers: expected 3"));
  EXPECT_THAT(error_with("dflash2", "vocab_size", 131), HasSubstr("vocab_size: expected 130"));
  EXPECT_EQ(error_with("dflash", "vocab_size", 131), "");  // It has nothing of that size.
  EXPECT_THAT(error_with("dflash2", "target_layer_ids", Json(Json::Array{1, 3})),
              HasSubstr("target_layer_ids: expected layers of the target, which has 3, not 3"));
  for (const size_t count : {0, 4, 1000000}) {
    const std::string error = error_with("dflash2", "target_layer_ids", Json(Json::Array(count, Json(1))));
    EXPECT_THAT(error,
                HasSubstr("target_layer_ids: expected 1 to 3 layers, as many as the target has, found"));
    EXPECT_LT(error.size(), 300u);
  }
  EXPECT_THAT(error_with("dflash2", "mask_token_id", 130),
              HasSubstr("mask_token_id: expected a token below 130"));
  EXPECT_THAT(error_with("dflash", "mask_token_id", Json()), HasSubstr("mask_token_id: expected a token"));
  EXPECT_THAT(error_with("dflash2", "block_size", 1), HasSubstr("block_size: expected 2 to 64"));
  EXPECT_THAT(error_with("dflash2", "block_size", 65), HasSubstr("block_size: expected 2 to 64"));
  EXPECT_THAT(error_with("dflash2", "sliding_window", 5),
              HasSubstr("sliding_window: expected at least the block_size (6)"));
  EXPECT_THAT(error_with("dflash2", "conv_group_size", 7), HasSubstr("conv_group_size: expected a divisor"));
  EXPECT_THAT(error_with("dflash2", "selector_top_k", 65), HasSubstr("selector_top_k: expected 1 to 64"));
  EXPECT_THAT(
      error_with("dflash2", "architectures", Json(Json::Array{"Qwen3ForCausalLM"})),
      HasSubstr(
          "architectures: expected one of DFlashDraftModel, DFlash2DraftModel, found Qwen3ForCausalLM"));
}

TEST(BlockDrafter, TapsLayersAtEvenDistancesWhereItsConfigNamesNone) {
  const std::string text =
      read_text_file(posix_file_system(), kDrafters + "dflash/config.json", 1 << 20).value();
  Json config = parse_json(text).value();
  for (Json::Member& member : config.as_object())
    if (member.first == "dflash_config") member.second.set("target_layer_ids", Json());
  config.set("num_target_layers", 64);
  config.set("num_hidden_layers", 5);
  config.set("layer_types", Json());
  const HfConfig parsed = parse_hf_config(dump_json(config)).value();
  WeightTable table("dflash");
  const ModelSpec target = target_spec(64);
  const auto drafter = make_block_drafter({parsed, table, target});
  ASSERT_TRUE(drafter.ok()) << drafter.status().message();
  EXPECT_THAT((*drafter)->spec().target_layers, testing::ElementsAre(1, 16, 31, 46, 61));
}

TEST(BlockDrafter, SaysWhatItReads) {
  const auto model = load_test_model(kTarget, make_reference_ops(), {}).value();
  const BlockDrafterSpec v1 = load_test_drafter(kDrafters + "dflash", *model).value()->drafter->spec();
  EXPECT_EQ(v1.architecture, "DFlashDraftModel");
  EXPECT_EQ(v1.block_size, 4);
  EXPECT_EQ(v1.context_tokens, 0);  // One layer sees all.
  EXPECT_EQ(v1.rank, 0);
  const BlockDrafterSpec v2 = load_test_drafter(kDrafters + "dflash2", *model).value()->drafter->spec();
  EXPECT_EQ(v2.architecture, "DFlash2DraftModel");
  EXPECT_EQ(v2.block_size, 6);
  EXPECT_EQ(v2.mask_token_id, 128);
  EXPECT_EQ(v2.context_tokens, 39);
  EXPECT_THAT(v2.target_layers, testing::ElementsAre(1, 0));
  EXPECT_THAT(v2.kv_layers, testing::ElementsAre(KvShape{2, 16}, KvShape{2, 16}));
}

TEST(BlockDrafter, OfAToyLoadsForItsTarget) {
  const auto model = load_test_model(kTarget, make_reference_ops(), {}).value();
  for (const char* architecture : {"DFlashDraftModel", "DFlash2DraftModel"}) {
    const TemporaryFolder folder;
    const Status written = write_toy_drafter({.architecture = architecture, .target_layers = {2, 0}},
                                             model->model->spec(), folder.path());
    ASSERT_TRUE(written.ok()) << written.message();
    const auto drafter = load_test_drafter(folder.path(), *model);
    ASSERT_TRUE(drafter.ok()) << drafter.status().message();
    auto target =
        SequenceRunner::create(model->runnable(), {.max_tokens = 20, .max_rows = 20, .tap_layers = {2, 0}})
            .value();
    std::vector<int32_t> prompt(20);
    std::iota(prompt.begin(), prompt.end(), 3);
    ASSERT_TRUE(target->append(prompt, {}).ok());
    DrafterRunner runner(*model, **drafter, 100);
    ASSERT_TRUE(runner.absorb(0, target->taps()).ok());
    BlockProposals proposals;
    ASSERT_TRUE(runner.propose(20, 7, 8, proposals).ok());
    std::vector<DraftedToken> chain;
    proposals.choose(0, {.temperature = 0}, chain);
    EXPECT_EQ(chain.size(), 7u) << architecture;
  }
}

}  // namespace
}  // namespace tensorfold
