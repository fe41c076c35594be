// The trace of a build with TENSORFOLD_CUDA_TRACE: when each block's wait for the previous kernel began and
// returned. Shared by both sides; bench/cuda_trace.py reads what trace.cc writes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorfold::cuda {

/// Where the trace lies on the device. A kernel is told nothing of it: each one waits, and few have a
/// parameter to spare.
inline constexpr uint64_t kTraceAddress = 0x600000000000;
/// The last so many records are kept: some ten passes of a model of 64 layers. A power of two.
inline constexpr uint32_t kTraceRecords = uint32_t{1} << 19;

/// A block.
struct TraceRecord {
  uint64_t wait_began;  ///< Nanoseconds of the device's global timer, as the following.
  uint64_t wait_returned;
  uint32_t grid_blocks;
  uint16_t block_threads;
  uint16_t multiprocessor;
};
static_assert(sizeof(TraceRecord) == 24);

struct TraceMemory {
  uint32_t num_written;  ///< Modulo 2^32; record i lies at i % kTraceRecords.
  uint32_t unused[5];
  TraceRecord records[kTraceRecords];
};
static_assert(offsetof(TraceMemory, records) == sizeof(TraceRecord));

}  // namespace tensorfold::cuda
