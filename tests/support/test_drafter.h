// A block drafter's folder as drafter and weights beside the model it drafts for, one sequence of it, and
// random drafters for any model.
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

/// What a random drafter is like; the target's shapes come beside it.
struct ToyDrafter {
  std::string architecture = "DFlash2DraftModel";
  int64_t num_layers = 2;
  int64_t num_heads = 2;
  int64_t num_kv_heads = 1;
  int64_t head_dim = 32;
  int64_t intermediate_size = 64;
  int64_t block_size = 8;
  int64_t window = 64;  ///< Of every layer; 0: all keys.
  std::vector<int64_t> target_layers = {0};
  uint64_t seed = 1;
};

/// Writes config.json and model.safetensors of a drafter with random weights into an existing folder. The
/// same bytes for the same description on every machine.
Status write_toy_drafter(const ToyDrafter& toy, const ModelSpec& target, const std::string& folder);

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
