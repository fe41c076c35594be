// See test_drafter.h.
#include "tests/support/test_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace tensorfold {

Result<std::unique_ptr<TestDrafter>> load_test_drafter(const std::string& folder, const TestModel& target) {
  auto result = std::make_unique<TestDrafter>();
  TF_ASSIGN_OR_RETURN(result->config, read_hf_config(folder));
  TF_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(folder));
  WeightTable table("dflash", checkpoint, result->config.quantization);
  TF_ASSIGN_OR_RETURN(result->drafter, make_block_drafter({result->config, table, target.model->spec()}));
  TF_ASSIGN_OR_RETURN(result->weights, Weights::load(checkpoint, table.manifest(), *target.ops,
                                                     target.ops->device(), {.num_threads = 2}));
  return result;
}

DrafterRunner::DrafterRunner(const TestModel& target, const TestDrafter& drafter, int64_t max_tokens)
    : target_(target), drafter_(drafter) {
  Device& device = target.ops->device();
  const int64_t num_pages = (max_tokens + kPageTokens - 1) / kPageTokens;
  page_table_.resize(num_pages);
  std::iota(page_table_.begin(), page_table_.end(), 0);
  for (const KvShape& shape : drafter.drafter->spec().kv_layers) {
    const int64_t page_bytes = target.ops->kv_page_bytes(shape);
    blocks_.push_back(device.allocate(2 * num_pages * page_bytes, "draft pages").value());
    std::byte* keys = blocks_.back().data();
    EXPECT_TRUE(device.zero(keys, 2 * num_pages * page_bytes).ok());
    pages_.push_back({shape, keys, keys + num_pages * page_bytes, page_bytes, num_pages});
  }
  const int64_t bytes = std::max(drafter.drafter->absorb_scratch_bytes(max_tokens),
                                 drafter.drafter->propose_scratch_bytes(kMaxDraftedRows));
  scratch_ = device.allocate(bytes, "scratch of a drafter").value();
}

Status DrafterRunner::absorb(int64_t first_pos, View taps) {
  std::vector<int32_t> positions(taps.num_rows());
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(first_pos));
  const SequenceRows sequence = {0, taps.num_rows(), first_pos, page_table_.data()};
  const RowBatch rows = {positions, {&sequence, 1}};
  Arena scratch(scratch_.data(), scratch_.size_bytes());
  target_.ops->begin_pass(rows);
  drafter_.drafter->absorb(rows, taps, *target_.ops, *drafter_.weights, pages_, scratch);
  return target_.ops->end_pass();
}

Status DrafterRunner::propose(int64_t pos, int32_t anchor, int64_t num_rows, BlockProposals& proposals) {
  std::vector<int32_t> positions(num_rows);
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(pos));
  const SequenceRows sequence = {0, num_rows, pos, page_table_.data()};
  Arena scratch(scratch_.data(), scratch_.size_bytes());
  return drafter_.drafter->propose({.anchors = {&anchor, 1}, .rows = {positions, {&sequence, 1}}},
                                   *target_.ops, *drafter_.weights, {*target_.model, *target_.weights},
                                   pages_, scratch, proposals);
}

}  // namespace tensorfold
