// The device's side of a trace (ops/cuda/trace_params.h), in builds with TENSORFOLD_CUDA_TRACE only.
#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/trace_params.h"

namespace tensorfold::cuda {

__device__ __forceinline__ uint64_t global_timer() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
  return ns;
}

/// wait_for_previous_kernel(), of which thread 0 of the block writes a record. No second wait of a kernel may
/// be thread 0's.
__device__ __forceinline__ void wait_traced() {
  if (threadIdx.x != 0) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    return;
  }
  auto& memory = *reinterpret_cast<TraceMemory*>(kTraceAddress);
  TraceRecord& record = memory.records[atomicAdd(&memory.num_written, 1u) % kTraceRecords];
  uint32_t multiprocessor;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
  const uint64_t began = global_timer();
  asm volatile("griddepcontrol.wait;" ::: "memory");
  record = {.wait_began = began,
            .wait_returned = global_timer(),
            .grid_blocks = gridDim.x * gridDim.y * gridDim.z,
            .block_threads = static_cast<uint16_t>(blockDim.x),
            .multiprocessor = static_cast<uint16_t>(multiprocessor)};
}

}  // namespace tensorfold::cuda
