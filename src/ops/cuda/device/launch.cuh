// Launching a kernel that may start before the previous kernel of its stream has ended.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace tensorfold::cuda {

/// kernel(arguments...) on `stream` by dependent launch (device/async.cuh). Each thread of the kernel must
/// call wait_for_previous_kernel() before it reads or writes anything that an earlier kernel touches, its
/// outputs included, and before it ends: then whoever waits for this kernel knows that all earlier ones have
/// ended. Constants (weights) may be read before, and what an earlier pass left (states): a pass has
/// ended before the next one begins. So may, from L2, what was written before a kernel that waits before it
/// lets this one start (load_written()). A fault sticks to the stream.
/// A rehearsal (below) reads before, and uses nothing of it; so may a counter of the launch's own be used,
/// which was zeroed before the pass. Blocks are in clusters of `cluster` along x.
template <class... Parameters, class... Arguments>
void launch_clusters(void (*kernel)(Parameters...), int cluster, dim3 grid, dim3 block, size_t shared_bytes,
                     cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  cudaLaunchKernelEx(&config, kernel, arguments...);
}
template <class... Parameters, class... Arguments>
void launch_kernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, const Arguments&... arguments) {
  launch_clusters(kernel, 1, grid, block, shared_bytes, stream, arguments...);
}

// Rehearsals. A kernel of a few blocks that runs through its code once waits mostly for its own instructions,
// which other kernels have driven from the multiprocessor's cache: 1 to 2 of 3 us. So some go through
// it twice: before they wait for the previous kernel, on whatever lies there, with nothing stored, and
// after. Loads of the second turn must not find what the first one left in L1: load_written(). Where a pass
// has more rows, other blocks bring the instructions, and a second turn would cost more than it saves.
inline constexpr int kMaxRehearsedRows = 16;

/// Loads of what an earlier kernel wrote. A kernel that asks for its weights before it waits for the previous
/// one reads the experts' numbers so: written by the kernel before that, which the previous one has waited
/// for before it let this one start; from L2, since L1 may still hold what lay there earlier.
template <class T>
__device__ __forceinline__ T load_written(const T* from) {
  return __ldcg(from);
}

}  // namespace tensorfold::cuda
