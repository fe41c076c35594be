// Control registers behind base/fp_env.h.
#include "base/fp_env.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace tensorfold {

#if defined(__x86_64__)
ScopedFlushDenormals::ScopedFlushDenormals() : saved_(_mm_getcsr()) {
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  _mm_setcsr(static_cast<unsigned>(saved_) | kFlushToZero | kDenormalsAreZero);
}
ScopedFlushDenormals::~ScopedFlushDenormals() { _mm_setcsr(static_cast<unsigned>(saved_)); }
#elif defined(__aarch64__)
ScopedFlushDenormals::ScopedFlushDenormals() {
  constexpr uint64_t kFlushToZero = uint64_t{1} << 24;
  asm volatile("mrs %0, fpcr" : "=r"(saved_));
  asm volatile("msr fpcr, %0" ::"r"(saved_ | kFlushToZero));
}
ScopedFlushDenormals::~ScopedFlushDenormals() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }
#else
#error "TensorFold runs on x86-64 and AArch64"
#endif

}  // namespace tensorfold
