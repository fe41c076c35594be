// Speed of linear() on the shapes of Qwen3.8-27B, as fractions of limits measured here: copy bandwidth for few rows,
// the library's matrix product is measured beside it by bench/cuda_limits.py for many.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "ops/cuda/linear.h"
#include "tests/ops/cuda/cuda_test_util.h"

namespace tensorfold::cuda {
namespace {

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
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

/// Bytes read plus written per second of a large device-to-device copy.
double copy_gb_per_s() {
  constexpr size_t kBytes = size_t{2} << 30;
  DeviceArray<std::byte> from(kBytes), to(kBytes);
  const double ms = median_ms(10, [&](int) { cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice); });
  return 2.0 * kBytes / ms / 1e6;
}

LinearSpec spec_of(int64_t out, int64_t in, int group) {
  if (group == 0) return {.out = out, .in = in};
  return {.out = out, .in = in, .format = WeightFormat::kAffine, .dtype = DType::kBF16, .bits = 4, .group_size = group};
}

/// `layers` copies of a matrix, so that repeated calls do not find it in L2, run as one graph.
void bench_shape(int64_t out, int64_t in, int group, const std::vector<int64_t>& row_counts, double copy) {
  const LinearSpec spec = spec_of(out, in, group);
  const int64_t bytes = packed_bytes(spec);
  const int layers = static_cast<int>(std::clamp<int64_t>((int64_t{400} << 20) / bytes, 1, 64));
  DeviceArray<std::byte> weights(static_cast<size_t>(bytes * layers));
  {
    const RandomMatrix host(spec_of(std::min<int64_t>(out, 2048), in, group), 1);
    std::vector<std::byte> packed(static_cast<size_t>(packed_bytes(host.spec)));
    pack_linear(host.spec, host.source(), packed);
    for (int64_t at = 0; at < bytes * layers; at += static_cast<int64_t>(packed.size()))
      cuda_check(cudaMemcpy(weights.data() + at, packed.data(), std::min<int64_t>(packed.size(), bytes * layers - at),
                            cudaMemcpyHostToDevice));
  }
  const int64_t max_rows = *std::max_element(row_counts.begin(), row_counts.end());
  DeviceArray<bf16> x(random_bf16(static_cast<size_t>(max_rows * in), 2));
  DeviceArray<float> y(static_cast<size_t>(max_rows * out));
  cudaStream_t stream;
  cuda_check(cudaStreamCreate(&stream));
  for (int64_t rows : row_counts) {
    for (LinearKernel kernel : {LinearKernel::kDecode, LinearKernel::kWide}) {
      if (kernel == LinearKernel::kDecode ? rows > 64 : rows < 16) continue;
      const View xv(x.data(), DType::kBF16, {rows, in});
      cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      for (int layer = 0; layer < layers; ++layer) {
        const LinearCall call{.out = View(y.data(), DType::kF32, {rows, out}),
                              .weight = {.spec = spec, .data = weights.data() + layer * bytes}};
        linear(stream, xv, {&call, 1}, kernel);
      }
      cudaGraph_t graph;
      cudaGraphExec_t executable;
      cuda_check(cudaStreamEndCapture(stream, &graph));
      cuda_check(cudaGraphInstantiate(&executable, graph, 0));
      const double ms = median_ms(15, [&](int) { cuda_check(cudaGraphLaunch(executable, nullptr)); }) / layers;
      const double gb_per_s = static_cast<double>(bytes) / ms / 1e6;
      const double tflops = 2.0 * static_cast<double>(out * in * rows) / ms / 1e9;
      std::printf("%s,%lld,%lld,%d,%lld,%s,%.2f,%.0f,%.3f,%.1f\n", "linear", (long long)out, (long long)in, group,
                  (long long)rows, kernel == LinearKernel::kDecode ? "decode" : "wide", ms * 1e3, gb_per_s,
                  gb_per_s / copy, tflops);
      std::fflush(stdout);
      cudaGraphExecDestroy(executable);
      cudaGraphDestroy(graph);
    }
  }
}

}  // namespace
}  // namespace tensorfold::cuda

int main() {
  using namespace tensorfold::cuda;
  if (!have_device()) return std::fprintf(stderr, "cuda_linear_bench: no sm_90 device\n"), 1;
  const double copy = copy_gb_per_s();
  std::printf("copy,%.0f GB/s\nop,out,in,group,rows,kernel,us,gb_per_s,of_copy,tflops\n", copy);
  const std::vector<int64_t> few = {1, 2, 4, 8, 16};
  for (int group : {64, 0}) {
    bench_shape(5120, 5120, group, few, copy);
    bench_shape(17408, 5120, group, few, copy);
    bench_shape(5120, 17408, group, few, copy);
    bench_shape(1024, 5120, group, few, copy);
  }
  bench_shape(248320, 5120, 64, few, copy);
  for (int group : {64, 32, 0}) {
    bench_shape(17408, 5120, group, {32, 64, 128, 512, 2048, 8192}, copy);
    bench_shape(5120, 17408, group, {512, 8192}, copy);
  }
}
