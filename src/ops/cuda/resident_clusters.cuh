// How many blocks of a persistent kernel a device holds at once.
#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/linear_plan.h"
#include "ops/cuda/multiprocessors.h"

namespace tensorfold::cuda {

/// Clusters that are resident at once, one block to a multiprocessor: what the tiles are dealt to.
template <class Kernel>
int resident_clusters(Kernel* kernel, int cluster, int threads) {
  if (cluster == 1) return num_multiprocessors();
  int count = 0;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(cluster));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = kMaxSharedBytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cudaOccupancyMaxActiveClusters(&count, kernel, &config);
  return count;
}

}  // namespace tensorfold::cuda
