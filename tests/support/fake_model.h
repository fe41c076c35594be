// A model without arithmetic for tests of the engine: the state after a position is a hash of all tokens up
// to it, kept in the KV pages, and the logits are a hash of the state. A row that sees a wrong page, position
// or token therefore draws different tokens; a page that was not cleared is counted as a fault. What it
// should reply is fake_reply().
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/loaded_model.h"

namespace tensorfold {

/// Host memory that can refuse. Thread-safe.
class FaultyDevice final : public Device {
 public:
  std::atomic<int> num_allocations{0};       ///< Calls so far.
  std::atomic<int> num_live{0};              ///< Buffers not freed.
  std::atomic<int> refuse_allocation_at{0};  ///< This call (from 1) is refused; 0: none.
  std::atomic<bool> fail_zero{false};
  std::atomic<int> fail_copy_at{0};  ///< This copy() (from 1) fails; 0: none.
  std::atomic<int> num_copies{0};    ///< Calls of copy() so far.
  /// Addresses that the fake model marks. A block loses its marks when it is allocated or zeroed; a copy has
  /// those of its source.
  std::set<std::byte*> marks;
  int64_t free_memory_bytes = (int64_t{8} << 20) + (16 << 10);  ///< Twice 4 MB of pages, and states.

  std::string name() const override { return "faulty"; }
  bool is_host_memory() const override { return true; }
  Result<Buffer> allocate(int64_t size_bytes, std::string_view what) override;
  int64_t free_bytes() const override { return free_memory_bytes; }
  int64_t total_bytes() const override { return free_memory_bytes; }
  Status copy_to_device(std::byte* device, const std::byte* host, int64_t size_bytes) override;
  Status copy_to_host(std::byte* host, const std::byte* device, int64_t size_bytes) override;
  Status zero(std::byte* device, int64_t size_bytes) override;
  Status copy(std::byte* to, const std::byte* from, int64_t size_bytes) override;

 private:
  void free(std::byte* data, int64_t size_bytes) override;
  void forget_marks(std::byte* data, int64_t size_bytes);
};

/// What tests do to a fake model, and what it saw. Set before the engine starts; the hooks run on its thread.
struct FakeModelControl {
  FaultyDevice device;
  std::function<void(const Pass&)> before_pass;      ///< May be empty; may block.
  std::function<Status(int64_t pass_idx)> end_pass;  ///< May be empty; counted from 0.
  std::atomic<int64_t> num_faults{0};  ///< Pages that were not zero, or state that was not there.
  std::atomic<int64_t> num_passes{0};
  std::atomic<int64_t> max_rows{0};  ///< Of any pass.
  std::atomic<int64_t> nan_pos{-1};  ///< Rows at this position have NaN logits; -1: none.
};

inline constexpr int64_t kFakeVocabSize = 50;
/// A row of this token has NaN logits; of the next one, none that is finite.
inline constexpr int32_t kFakeNanToken = 48;
inline constexpr int32_t kFakeInfiniteToken = 49;
inline constexpr int64_t kFakeMaxPositions = 131072;

/// A loaded model without files: two attention layers, no tokenizer, ops that only hold memory and sample.
/// `control` must outlive it.
std::shared_ptr<LoadedModel> make_fake_model(FakeModelControl& control);

/// Logits [kFakeVocabSize] of the row of the last of `tokens`, computed from the tokens alone.
std::vector<float> fake_logits(std::span<const int32_t> tokens);

/// Outputs::hidden [1] of the row of the last of `tokens`.
float fake_hidden(std::span<const int32_t> tokens);

/// The tokens that follow `prompt` (num_tokens of them), drawn as FakeOps draws them.
std::vector<int32_t> fake_reply(std::vector<int32_t> prompt, int64_t num_tokens, const SampleRow& sampling);

/// A prompt of tokens below kFakeNanToken, different for each seed.
std::vector<int32_t> fake_prompt(int64_t num_tokens, uint64_t seed);

/// Ops whose every kernel is a bug to call; a base for tests that need some of them. Pages are 64 words per
/// layer.
std::unique_ptr<Ops> make_fake_ops(FakeModelControl& control);

}  // namespace tensorfold
