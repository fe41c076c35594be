// Times on the device, and the limit that they are compared with: what the CUDA benchmarks share.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "tests/ops/cuda/cuda_test_util.h"

namespace tensorfold::cuda {

/// Median milliseconds of `repeats` timed calls after warm-up; each call gets its index to rotate buffers.
template <class Call>
double median_ms(int repeats, const Call& call) {
  cudaEvent_t begin, end;
  cuda_check(cudaEventCreate(&begin));
  cuda_check(cudaEventCreate(&end));
  for (int i = 0; i < 3; ++i) call(i);
  std::vector<float> times;
  for (int i = 0; i < repeats; ++i) {
    cuda_check(cudaEventRecord(begin));
    call(i);
    cuda_check(cudaEventRecord(end));
    cuda_check(cudaEventSynchronize(end));
    float ms = 0;
    cuda_check(cudaEventElapsedTime(&ms, begin, end));
    times.push_back(ms);
  }
  cuda_check(cudaEventDestroy(begin));
  cuda_check(cudaEventDestroy(end));
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

/// Bytes read plus written per second of a large device-to-device copy.
inline double copy_gb_per_s() {
  constexpr size_t kBytes = size_t{2} << 30;
  DeviceArray<std::byte> from(kBytes), to(kBytes);
  const double ms =
      median_ms(10, [&](int) { cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice); });
  return 2.0 * kBytes / ms / 1e6;
}

}  // namespace tensorfold::cuda
