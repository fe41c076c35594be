// The chain norm -> linear of a decode step, as two launches and with the norm inside of the linear, one
// after the other in one run; their bits are equal (checked). A matrix in the chain is another one each time,
// so that weights come from memory, and the norm's weights are other ones too.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "ops/cuda/linear.h"
#include "ops/cuda/norms.h"
#include "tests/ops/cuda/cuda_test_util.h"

namespace tensorfold::cuda {
namespace {

enum class Way { kLinearAlone, kSeparate, kFused };
constexpr Way kWays[] = {Way::kLinearAlone, Way::kSeparate, Way::kFused};
const char* name_of(Way way) {
  return way == Way::kLinearAlone ? "linear" : way == Way::kSeparate ? "norm+linear" : "fused";
}

class Chain {
 public:
  Chain(const LinearSpec& spec, int64_t max_rows)
      : spec_(spec),
        bytes_(packed_bytes(spec)),
        layers_(std::clamp<int64_t>((int64_t{400} << 20) / bytes_, 2, 64)),
        weights_(static_cast<size_t>(bytes_ * layers_)),
        norm_weights_(ramp(layers_ * spec.in)),
        h_(ramp(max_rows * spec.in)),
        x_(static_cast<size_t>(max_rows * spec.in)),
        y_(static_cast<size_t>(max_rows * spec.out)) {
    LinearSpec part = spec;
    part.out = std::min<int64_t>(spec.out, 512);
    const RandomMatrix host(part, 1);
    std::vector<std::byte> packed(static_cast<size_t>(packed_bytes(part)));
    pack_linear(part, host.source(), packed);
    const int64_t all = bytes_ * layers_, size = static_cast<int64_t>(packed.size());
    for (int64_t at = 0; at < all; at += size)
      cuda_check(cudaMemcpy(weights_.data() + at, packed.data(),
                            static_cast<size_t>(std::min(size, all - at)), cudaMemcpyHostToDevice));
    cuda_check(cudaStreamCreate(&stream_));
  }
  ~Chain() { cudaStreamDestroy(stream_); }
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;

  /// All ways in turn, several times over, so that what drifts meets all of them.
  void measure(int64_t rows) {
    constexpr int kWayCount = 3, kRounds = 15;
    cudaGraphExec_t graphs[kWayCount];
    for (int way = 0; way < kWayCount; ++way) graphs[way] = capture(kWays[way], rows);
    std::vector<float> y[kWayCount];
    std::vector<double> us[kWayCount];
    for (int round = -1; round < kRounds; ++round) {
      for (int way = 0; way < kWayCount; ++way) {
        if (round < 0) cuda_check(cudaMemset(y_.data(), 0xff, y_.size() * sizeof(float)));
        const double time = run_us(graphs[way]) / static_cast<double>(layers_);
        if (round >= 0) us[way].push_back(time);
        if (round < 0) y[way] = y_.download();
      }
    }
    for (int way = 0; way < kWayCount; ++way) {
      std::ranges::sort(us[way]);
      std::printf("chain,%lld,%lld,%lld,%s,%.2f,%.2f,%.2f\n", static_cast<long long>(spec_.out),
                  static_cast<long long>(spec_.in), static_cast<long long>(rows), name_of(kWays[way]),
                  us[way][kRounds / 2], us[way].front(), us[way].back());
      cudaGraphExecDestroy(graphs[way]);
    }
    const size_t bytes = static_cast<size_t>(rows * spec_.out) * sizeof(float);
    if (std::memcmp(y[1].data(), y[2].data(), bytes) != 0)
      std::printf("# WRONG BITS: fused, %lld rows\n", static_cast<long long>(rows));
    std::fflush(stdout);
  }

 private:
  static std::vector<float> ramp(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = 0.01f * static_cast<float>(i % 211) - 1.0f;
    return values;
  }
  cudaGraphExec_t capture(Way way, int64_t rows) {
    cuda_check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int64_t layer = 0; layer < layers_; ++layer) launch(way, rows, layer);
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cuda_check(cudaStreamEndCapture(stream_, &graph));
    cuda_check(cudaGraphInstantiate(&executable, graph, 0));
    cuda_check(cudaGraphDestroy(graph));
    return executable;
  }
  void launch(Way way, int64_t rows, int64_t layer) {
    const View x(x_.data(), DType::kBF16, {rows, spec_.in});
    const LinearCall call{.out = View(y_.data(), DType::kF32, {rows, spec_.out}),
                          .weight = {.spec = spec_, .data = weights_.data() + layer * bytes_}};
    const RmsNormLaunch norm =
        rms_norm_launch(x, View(h_.data(), DType::kF32, {rows, spec_.in}),
                        View(norm_weights_.data() + layer * spec_.in, DType::kF32, {spec_.in}), {});
    if (way == Way::kSeparate) launch_rms_norm(stream_, norm);
    for (LinearLaunch& product : linear_launches(x, {&call, 1}, LinearKernel::kDecode)) {
      TF_CHECK(can_fuse_norm(product, norm));
      if (way == Way::kFused) fuse_norm(product, norm);
      launch_linear(stream_, product);
    }
  }
  double run_us(cudaGraphExec_t graph) {
    cudaEvent_t begin, end;
    cuda_check(cudaEventCreate(&begin));
    cuda_check(cudaEventCreate(&end));
    cuda_check(cudaEventRecord(begin, stream_));
    cuda_check(cudaGraphLaunch(graph, stream_));
    cuda_check(cudaEventRecord(end, stream_));
    cuda_check(cudaEventSynchronize(end));
    float ms = 0;
    cuda_check(cudaEventElapsedTime(&ms, begin, end));
    cuda_check(cudaEventDestroy(begin));
    cuda_check(cudaEventDestroy(end));
    return ms * 1e3;
  }

  LinearSpec spec_;
  int64_t bytes_, layers_;
  DeviceArray<std::byte> weights_;
  DeviceArray<float> norm_weights_, h_;
  DeviceArray<bf16> x_;
  DeviceArray<float> y_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace
}  // namespace tensorfold::cuda

int main() {
  using namespace tensorfold;
  if (!cuda::have_device()) return std::fprintf(stderr, "cuda_fused_bench: no sm_90 device\n"), 1;
  std::printf("op,out,in,rows,way,us,min,max\n");
  for (const int64_t out : {1024, 5120, 17408, 34816}) {
    cuda::Chain chain({.out = out, .in = 5120, .format = WeightFormat::kAffine, .bits = 4, .group_size = 64},
                      8);
    for (const int64_t rows : {1, 2, 3, 4, 6, 8}) chain.measure(rows);
  }
}
