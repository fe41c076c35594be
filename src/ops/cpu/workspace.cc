// Workspace of cpu_context.h.
#include <algorithm>

#include "base/check.h"
#include "ops/cpu/cpu_context.h"

namespace tensorfold::cpu {
namespace {

constexpr int64_t kMinBlockBytes = int64_t{1} << 20;

Buffer allocate(int64_t size_bytes) {
  Result<Buffer> block = cpu_device().allocate(size_bytes, "scratch memory of the cpu backend");
  TF_CHECK(block.ok(), block.status().message());
  return std::move(block).value();
}

}  // namespace

std::byte* Workspace::take_bytes(int64_t size_bytes) {
  TF_DCHECK(depth_ > 0);
  size_bytes = (size_bytes + 63) / 64 * 64;
  while (block_ < blocks_.size() && used_bytes_ + size_bytes > blocks_[block_].size_bytes()) {
    ++block_;
    used_bytes_ = 0;
  }
  if (block_ == blocks_.size())
    blocks_.push_back(allocate(std::max({size_bytes, kMinBlockBytes, capacity_bytes()})));
  std::byte* result = blocks_[block_].data() + used_bytes_;
  used_bytes_ += size_bytes;
  return result;
}

void Workspace::leave(size_t block, int64_t used_bytes) {
  block_ = block;
  used_bytes_ = used_bytes;
  if (--depth_ > 0 || blocks_.size() < 2) return;
  const int64_t total_bytes = capacity_bytes();
  blocks_.clear();
  blocks_.push_back(allocate(total_bytes));
  block_ = 0;
}

int64_t Workspace::capacity_bytes() const {
  int64_t total_bytes = 0;
  for (const Buffer& block : blocks_) total_bytes += block.size_bytes();
  return total_bytes;
}

}  // namespace tensorfold::cpu
