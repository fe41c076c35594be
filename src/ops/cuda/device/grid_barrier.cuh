// A barrier of all blocks of a grid that are resident at once.
#pragma once

#include <cstdint>

namespace tensorfold::cuda {

/// One word of device memory, 0 at first, is all that barriers of any number of grids one after the other
/// need. In each barrier the blocks together add 2^31: each adds 1, and block 0 the rest. So the top bit
/// changes when the last one arrives, whoever that is, and the bits below are zero again.
///
/// Every thread of the block calls arrive(), then wait(). What any thread of the grid wrote before arrive()
/// is seen by every thread after wait(): the release and the acquire of thread 0 stand for its block, the
/// block's barriers beside them. (An acquire also empties the multiprocessor's L1.)
struct GridBarrier {
  uint32_t* word;
  uint32_t before = 0;  ///< Thread 0: the word as it was found.

  __device__ __forceinline__ void arrive() {
    __syncthreads();
    if (threadIdx.x == 0) {
      const uint32_t share = blockIdx.x == 0 ? kTop - (gridDim.x - 1) : 1;
      asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
                   : "=r"(before)
                   : "l"(word), "r"(share)
                   : "memory");
    }
  }
  __device__ __forceinline__ void wait() {
    if (threadIdx.x == 0) {
      uint32_t now;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
      } while (((now ^ before) & kTop) == 0);
    }
    __syncthreads();
  }

 private:
  static constexpr uint32_t kTop = 1u << 31;
};

}  // namespace tensorfold::cuda
