// KV memory: a pool of pages of 64 positions with reference counts, and the page table of one sequence (or of
// a branch of its draft). Who gets pages is decided by the scheduler; what lies inside a page by the ops
// backend.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "ops/ops.h"

namespace tensorfold {

/// Pages that num_tokens positions take.
constexpr int64_t pages_for_tokens(int64_t num_tokens) {
  return (num_tokens + kPageTokens - 1) / kPageTokens;
}

/// Bytes of one page: keys and values of every attention layer, each rounded up to 64.
int64_t kv_page_set_bytes(const Ops& ops, std::span<const KvShape> layers);

/// What decides the sizes of the pools.
struct StateLimit {
  int64_t page_bytes = 0;      ///< kv_page_set_bytes().
  int64_t slot_bytes = 0;      ///< state_slot_bytes().
  int64_t memory_bytes = 0;    ///< The user's limit; 0: none given.
  int64_t free_bytes = 0;      ///< Of the device, now.
  int64_t context_tokens = 0;  ///< Longest sequence wanted.
  int64_t max_sequences = 0;
};

struct StateMemory {
  int64_t num_pages = 0;
  int64_t max_sequences = 0;  ///< That run at a time: each needs a state slot.
};

/// Divides memory_bytes, or without a limit half of free_bytes (the other half is left to the rest of the
/// machine), between state slots and KV pages: slots for max_sequences, or for as many as half of the memory
/// holds, then pages, never more than those sequences can fill. kOutOfMemory where one slot and one page do
/// not fit.
Result<StateMemory> divide_state_memory(const StateLimit& limit);

/// All KV pages of an engine. Page i of every layer lies in one piece of page_bytes() bytes, layers in order,
/// keys before values. The address range is reserved at once; on the CPU a page becomes resident when it is
/// first handed out. Engine thread only.
class KvPagePool {
 public:
  /// kOutOfMemory where the device refuses. `ops` must outlive the pool.
  static Result<std::unique_ptr<KvPagePool>> create(Ops& ops, std::span<const KvShape> layers,
                                                    int64_t num_pages);

  /// As State::kv_layers; valid as long as the pool.
  std::span<const KvPages> layers() const { return layers_; }

  int64_t num_pages() const { return num_pages_; }
  int64_t num_free() const { return num_pages_ - num_used_; }
  int64_t num_used() const { return num_used_; }
  int64_t page_bytes() const { return page_bytes_; }

  /// A page filled with zeros and held once. There must be a free one (TF_CHECK). Pages used before come
  /// first, so that resident memory stays at its peak use. Fails only where the device does.
  Result<int32_t> allocate();

  /// As allocate(), but with the content of `page`.
  Result<int32_t> copy(int32_t page);

  /// One more holder, one less; a page without holders is free.
  void retain(int32_t page);
  void release(int32_t page);

 private:
  KvPagePool(Device& device, Buffer buffer, int64_t page_bytes, int64_t num_pages);
  std::byte* bytes_of(int32_t page) const { return buffer_.data() + page * page_bytes_; }
  int32_t next_free() const;
  void take(int32_t page);

  Device& device_;
  Buffer buffer_;
  std::vector<KvPages> layers_;
  int64_t page_bytes_;
  int64_t num_pages_;
  int64_t num_used_ = 0;
  int32_t num_touched_ = 0;        ///< Pages [0, num_touched_) were handed out at least once.
  std::vector<int32_t> returned_;  ///< Free pages below num_touched_, last returned last.
  std::vector<int32_t> reference_counts_;
};

/// The pages of one sequence, in order of position. Owned by its sequence; gives them back when destroyed.
class PageTable {
 public:
  explicit PageTable(KvPagePool& pool) : pool_(&pool) {}
  ~PageTable() { clear(); }
  PageTable(PageTable&&) noexcept = default;
  PageTable& operator=(const PageTable&) = delete;

  int64_t num_pages() const { return static_cast<int64_t>(pages_.size()); }
  const int32_t* data() const { return pages_.data(); }

  /// Pages that are missing until num_tokens positions are covered.
  int64_t num_missing(int64_t num_tokens) const;

  /// Allocates the missing pages, which must be free (TF_CHECK).
  Status grow_to(int64_t num_tokens);

  /// Gives back the pages that hold none of the first num_tokens positions.
  void shrink_to(int64_t num_tokens);

  /// Makes an empty table one of the first num_tokens positions of `other`: shares the pages that they fill,
  /// and copies the one that they end in, for which there must be a free one (TF_CHECK).
  Status fork(const PageTable& other, int64_t num_tokens);

  /// Both tables are of one pool.
  void swap(PageTable& other) noexcept { pages_.swap(other.pages_); }

  /// Gives all pages back.
  void clear();

 private:
  KvPagePool* pool_;
  std::vector<int32_t> pages_;
};

}  // namespace tensorfold
