// Scratch memory of a pass: one block, handed out in order, taken back all at once. Nothing in a pass allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "base/check.h"
#include "base/view.h"

namespace tensorfold {

/// Hands out 64-byte-aligned pieces of a block it does not own. A request beyond the block is a bug: the engine sizes
/// the block from Model::scratch_bytes. An arena over a null block only measures (used_bytes) — that is how sizes are
/// found. One thread at a time.
class Arena {
 public:
  Arena(std::byte* block, int64_t capacity_bytes) : block_(block), capacity_bytes_(capacity_bytes) {}

  /// An uninitialized array of the dtype and shape, valid until reset() or the enclosing Frame ends.
  View array(DType dtype, std::initializer_list<int64_t> shape) {
    int64_t bytes = dtype_bits(dtype);
    for (int64_t dim : shape) bytes *= dim;
    bytes = (bytes + 7) / 8;
    const int64_t start = used_bytes_;
    used_bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    peak_bytes_ = used_bytes_ > peak_bytes_ ? used_bytes_ : peak_bytes_;
    TF_CHECK(block_ == nullptr || used_bytes_ <= capacity_bytes_, "pass scratch is smaller than the pass needs");
    return View(block_ == nullptr ? nullptr : block_ + start, dtype, shape);
  }

  int64_t used_bytes() const { return used_bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }
  void reset() { used_bytes_ = 0; }

  /// Takes back at its end whatever was handed out during its life.
  class Frame {
   public:
    explicit Frame(Arena& arena) : arena_(arena), start_(arena.used_bytes_) {}
    ~Frame() { arena_.used_bytes_ = start_; }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    Arena& arena_;
    int64_t start_;
  };

 private:
  static constexpr int64_t kAlignment = 64;
  std::byte* block_;
  int64_t capacity_bytes_;
  int64_t used_bytes_ = 0;
  int64_t peak_bytes_ = 0;
};

}  // namespace tensorfold
