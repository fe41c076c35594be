// What every op of the cpu backend gets from its CpuOps: the instruction set, the threads and scratch memory.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "device/device.h"
#include "ops/ops.h"

namespace tensorfold::cpu {

/// Scratch memory of the ops of one CpuOps. It grows to the largest demand of one op and stays there, so that
/// passes after the first do not allocate. One thread (the one that calls the ops) takes; all may use what
/// was taken.
class Workspace {
 public:
  /// Everything taken during a Frame's life is given back at its end. Frames nest.
  class Frame {
   public:
    explicit Frame(Workspace& workspace)
        : workspace_(workspace), block_(workspace.block_), used_bytes_(workspace.used_bytes_) {
      ++workspace_.depth_;
    }
    ~Frame() { workspace_.leave(block_, used_bytes_); }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    Workspace& workspace_;
    size_t block_;
    int64_t used_bytes_;
  };

  /// `count` uninitialized elements, aligned to 64. Only inside a Frame.
  template <class T>
  T* take(int64_t count) {
    return reinterpret_cast<T*>(take_bytes(count * static_cast<int64_t>(sizeof(T))));
  }

  /// Bytes held now.
  int64_t capacity_bytes() const;

 private:
  std::byte* take_bytes(int64_t size_bytes);
  void leave(size_t block, int64_t used_bytes);

  std::vector<Buffer> blocks_;  ///< One, except while an op asks for more than any op before it.
  size_t block_ = 0;            ///< The block being handed out.
  int64_t used_bytes_ = 0;      ///< Of that block.
  int depth_ = 0;               ///< Live frames.
};

/// The first feature that `isa` needs and this CPU lacks; empty when it can run here.
std::string_view missing_feature(CpuIsa isa);

/// From so many rows on a product is limited by its multiplications, below by reading weights.
inline constexpr int64_t kManyRows = 4;

/// One per CpuOps, handed to every op.
struct CpuContext {
  CpuIsa isa;  ///< A concrete set, never kBest.
  /// The set whose kernels linear() takes for kManyRows rows and more: `isa`, or one that multiplies faster.
  CpuIsa many_rows_isa;
  ThreadPool pool;
  Workspace workspace;
};

}  // namespace tensorfold::cpu
