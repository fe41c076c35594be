// What the benchmarks of CUDA ops share: medians of graph replays, the bandwidth of a copy, and memory full
// of copies of a block, through which launches rotate so that L2 holds nothing for them.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <vector>

#include "tests/ops/cuda/cuda_test_util.h"

namespace tensorfold::cuda {

/// Median milliseconds of `repeats` timed calls after three to warm up, on the default stream. A call that
/// takes an int gets its number, to take other buffers each time.
template <class Call>
double median_ms(int repeats, const Call& call) {
  const auto run = [&](int i) {
    if constexpr (std::is_invocable_v<Call, int>)
      call(i);
    else
      call();
  };
  cudaEvent_t begin, end;
  cuda_check(cudaEventCreate(&begin));
  cuda_check(cudaEventCreate(&end));
  for (int i = 0; i < 3; ++i) run(i);
  std::vector<float> times(static_cast<size_t>(repeats));
  for (int i = 0; i < repeats; ++i) {
    cuda_check(cudaEventRecord(begin));
    run(i);
    cuda_check(cudaEventRecord(end));
    cuda_check(cudaEventSynchronize(end));
    cuda_check(cudaEventElapsedTime(&times[static_cast<size_t>(i)], begin, end));
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[static_cast<size_t>(repeats / 2)];
}

/// Bytes read plus written per nanosecond of a large copy within the device.
inline double copy_gb_per_s() {
  constexpr size_t kBytes = size_t{2} << 30;
  const DeviceArray<std::byte> from(kBytes), to(kBytes);
  const double ms =
      median_ms(10, [&] { cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice); });
  return 2.0 * kBytes / ms / 1e6;
}

/// What `record` launches on the stream that it is given, to be replayed.
class LaunchGraph {
 public:
  explicit LaunchGraph(const std::function<void(cudaStream_t)>& record) {
    cudaStream_t stream;
    cudaGraph_t graph;
    cuda_check(cudaStreamCreate(&stream));
    cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    record(stream);
    cuda_check(cudaStreamEndCapture(stream, &graph));
    cuda_check(cudaGraphInstantiate(&executable_, graph, 0));
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
  }
  ~LaunchGraph() { cudaGraphExecDestroy(executable_); }
  LaunchGraph(const LaunchGraph&) = delete;
  LaunchGraph& operator=(const LaunchGraph&) = delete;

  /// On the default stream; does not wait.
  void replay() const { cuda_check(cudaGraphLaunch(executable_, nullptr)); }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

/// Median milliseconds of one of launch(stream, i), i < num_launches, replayed together as one graph.
inline double graph_ms(int64_t num_launches, int repeats,
                       const std::function<void(cudaStream_t, int64_t)>& launch) {
  const LaunchGraph graph([&](cudaStream_t stream) {
    for (int64_t i = 0; i < num_launches; ++i) launch(stream, i);
  });
  const double ms = median_ms(repeats, [&] { graph.replay(); });
  cuda_check(cudaGetLastError());
  cuda_check(cudaDeviceSynchronize());
  return ms / static_cast<double>(num_launches);
}

/// How many buffers of `bytes` to rotate through: 400 MB together, eight times an H200's L2; at least 2, at
/// most 64.
inline int64_t num_rotating_buffers(int64_t bytes) {
  return std::clamp<int64_t>((int64_t{400} << 20) / bytes, 2, 64);
}

/// Fills `to` with copies of `block`, the last one cut short.
template <class T>
void fill_with_copies(const DeviceArray<T>& to, const std::vector<T>& block) {
  size_t done = std::min(block.size(), to.size());
  cuda_check(cudaMemcpy(to.data(), block.data(), done * sizeof(T), cudaMemcpyHostToDevice));
  for (; done < to.size(); done *= 2)
    cuda_check(cudaMemcpy(to.data() + done, to.data(), std::min(done, to.size() - done) * sizeof(T),
                          cudaMemcpyDeviceToDevice));
}

}  // namespace tensorfold::cuda
