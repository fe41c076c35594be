// Denormal flushing, which arithmetic.md requires of every thread that computes a row.
#pragma once

#include <cstdint>

namespace tensorfold {

/// While alive, the calling thread flushes denormal inputs and results to zero (x86: FTZ and DAZ; Arm: FPCR.FZ).
/// Restores the previous mode at the end. Not transferable between threads.
class ScopedFlushDenormals {
 public:
  ScopedFlushDenormals();
  ~ScopedFlushDenormals();
  ScopedFlushDenormals(const ScopedFlushDenormals&) = delete;
  ScopedFlushDenormals& operator=(const ScopedFlushDenormals&) = delete;

 private:
  uint64_t saved_;
};

}  // namespace tensorfold
