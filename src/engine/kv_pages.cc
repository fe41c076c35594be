// The page pool behind engine/kv_pages.h.
#include "engine/kv_pages.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tensorfold {
namespace {

constexpr int64_t kAlignment_bytes = 64;

int64_t aligned_page_bytes(const Ops& ops, const KvShape& shape) {
  return (ops.kv_page_bytes(shape) + kAlignment_bytes - 1) / kAlignment_bytes * kAlignment_bytes;
}

}  // namespace

int64_t kv_page_set_bytes(const Ops& ops, std::span<const KvShape> layers) {
  int64_t bytes = 0;
  for (const KvShape& shape : layers) bytes += 2 * aligned_page_bytes(ops, shape);
  return bytes;
}

Result<StateMemory> divide_state_memory(const StateLimit& limit) {
  const int64_t memory_bytes = limit.memory_bytes > 0 ? limit.memory_bytes : limit.free_bytes / 2;
  StateMemory memory{.num_pages = 0, .max_sequences = limit.max_sequences};
  if (limit.slot_bytes > 0) {
    memory.max_sequences = std::clamp<int64_t>(memory_bytes / 2 / limit.slot_bytes, 1, limit.max_sequences);
  }
  const int64_t page_memory_bytes = memory_bytes - memory.max_sequences * limit.slot_bytes;
  const int64_t useful = memory.max_sequences * pages_for_tokens(limit.context_tokens);
  // A page table holds 32-bit ids.
  const int64_t most = std::min<int64_t>(useful, std::numeric_limits<int32_t>::max());
  memory.num_pages = std::min(most, page_memory_bytes / std::max<int64_t>(limit.page_bytes, 1));
  if (memory.num_pages < 1) {
    return make_error(
        StatusCode::kOutOfMemory,
        "KV memory of {} bytes is too little: a sequence takes {} bytes of state and {} a page of {} "
        "tokens",
        memory_bytes, limit.slot_bytes, limit.page_bytes, kPageTokens);
  }
  return memory;
}

KvPagePool::KvPagePool(Device& device, Buffer buffer, int64_t page_bytes, int64_t num_pages)
    : device_(device),
      buffer_(std::move(buffer)),
      page_bytes_(page_bytes),
      num_pages_(num_pages),
      reference_counts_(static_cast<size_t>(num_pages), 0) {}

Result<std::unique_ptr<KvPagePool>> KvPagePool::create(Ops& ops, std::span<const KvShape> layers,
                                                       int64_t num_pages) {
  const int64_t page_bytes = kv_page_set_bytes(ops, layers);
  TF_ASSIGN_OR_RETURN(Buffer buffer, ops.device().allocate(page_bytes * num_pages, "KV memory"));
  std::byte* next = buffer.data();
  std::unique_ptr<KvPagePool> pool(new KvPagePool(ops.device(), std::move(buffer), page_bytes, num_pages));
  for (const KvShape& shape : layers) {
    const int64_t half = aligned_page_bytes(ops, shape);
    pool->layers_.push_back({.shape = shape,
                             .k = next,
                             .v = next + half,
                             .page_stride_bytes = page_bytes,
                             .num_pages = num_pages});
    next += 2 * half;
  }
  return pool;
}

int32_t KvPagePool::next_free() const {
  TF_CHECK(num_free() > 0, "no free KV page");
  return returned_.empty() ? num_touched_ : returned_.back();
}

/// Hands out next_free(), once it is filled.
void KvPagePool::take(int32_t page) {
  if (returned_.empty()) {
    ++num_touched_;
  } else {
    returned_.pop_back();
  }
  reference_counts_[page] = 1;
  ++num_used_;
}

Result<int32_t> KvPagePool::allocate() {
  const int32_t page = next_free();
  TF_RETURN_IF_ERROR(device_.zero(bytes_of(page), page_bytes_));
  take(page);
  return page;
}

Result<int32_t> KvPagePool::copy(int32_t page) {
  const int32_t copied = next_free();
  TF_RETURN_IF_ERROR(device_.copy(bytes_of(copied), bytes_of(page), page_bytes_));
  take(copied);
  return copied;
}

void KvPagePool::retain(int32_t page) {
  TF_DCHECK(reference_counts_[page] > 0);
  ++reference_counts_[page];
}

void KvPagePool::release(int32_t page) {
  TF_CHECK(reference_counts_[page] > 0, "a KV page was given back twice");
  if (--reference_counts_[page] > 0) return;
  returned_.push_back(page);
  --num_used_;
}

int64_t PageTable::num_missing(int64_t num_tokens) const {
  return std::max<int64_t>(0, pages_for_tokens(num_tokens) - num_pages());
}

Status PageTable::grow_to(int64_t num_tokens) {
  for (int64_t missing = num_missing(num_tokens); missing > 0; --missing) {
    TF_ASSIGN_OR_RETURN(const int32_t page, pool_->allocate());
    pages_.push_back(page);
  }
  return {};
}

void PageTable::shrink_to(int64_t num_tokens) {
  for (; num_pages() > pages_for_tokens(num_tokens); pages_.pop_back()) pool_->release(pages_.back());
}

Status PageTable::fork(const PageTable& other, int64_t num_tokens) {
  TF_DCHECK(pages_.empty() && other.num_missing(num_tokens) == 0);
  const int64_t num_full = num_tokens / kPageTokens;
  for (int64_t i = 0; i < num_full; ++i) {
    pool_->retain(other.pages_[i]);
    pages_.push_back(other.pages_[i]);
  }
  if (num_tokens % kPageTokens == 0) return {};
  TF_ASSIGN_OR_RETURN(const int32_t page, pool_->copy(other.pages_[num_full]));
  pages_.push_back(page);
  return {};
}

void PageTable::clear() {
  for (const int32_t page : pages_) pool_->release(page);
  pages_.clear();
}

}  // namespace tensorfold
