// A block drafter's folder as drafter and weights beside the model it drafts for, and one sequence of it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/block_drafter.h"
#include "tests/support/test_model.h"

namespace tensorfold {

struct TestDrafter {
  HfConfig config;
  std::unique_ptr<BlockDrafter> drafter;
  std::unique_ptr<Weights> weights;
};

/// Loads FOLDER's drafter for `target`, whose ops compute.
Result<std::unique_ptr<TestDrafter>> load_test_drafter(const std::string& folder, const TestModel& target);

/// One sequence's context and blocks, in memory of its own.
class DrafterRunner {
 public:
  DrafterRunner(const TestModel& target, const TestDrafter& drafter, int64_t max_tokens);

  /// The taps [T, n*E] of positions [first_pos, first_pos + T), on the device.
  Status absorb(int64_t first_pos, View taps);

  /// A block of num_rows rows whose anchor is at `pos`.
  Status propose(int64_t pos, int32_t anchor, int64_t num_rows, BlockProposals& proposals);

  std::span<const KvPages> pages() const { return pages_; }

 private:
  const TestModel& target_;
  const TestDrafter& drafter_;
  std::vector<Buffer> blocks_;
  std::vector<KvPages> pages_;
  std::vector<int32_t> page_table_;
  Buffer scratch_;
};

}  // namespace tensorfold
