// The products of a layer of Qwen3.8-27B with the norms and the activation between them, as launches of their
// own and as chains (linear_chain()), one after the other in one run; their bits are equal (checked).
// Matrices are other ones in each layer, so that weights come from memory. Beside them, the barrier of a
// chain alone.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "bench/cuda_timing.h"
#include "ops/cuda/chain_recorder.h"
#include "ops/cuda/elementwise.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/norms.h"
#include "tests/ops/cuda/cuda_test_util.h"

namespace tensorfold::cuda {
namespace {

constexpr int64_t kHidden = 5120, kIntermediate = 17408, kMixed = 6144, kQkvz = 16384, kHeads = 48;
constexpr int64_t kMaxRows = 16;
constexpr int kLayers = 4;  // 215 MB each.

/// How the layers run.
struct Way {
  const char* name;
  int chained_layers;  ///< In one chain; 0: launches of their own.
  ChainTuning tuning = {};
};
using Start = ChainTuning::Start;
const Way kWays[] = {{"separate", 0},
                     {"chain", 1},
                     {"chain/1", 1, {.cluster = 1}},
                     {"chain/2", 1, {.cluster = 2}},
                     {"chain/4", 1, {.cluster = 4}},
                     {"chain of 8", 2},
                     {"chain, cooperative", 1, {.start = Start::kCooperative}},
                     {"chain, both", 1, {.start = Start::kBoth}}};

/// The same matrix for each of kLayers layers, each time in another place.
class Weights {
 public:
  Weights(int64_t out, int64_t in)
      : spec_(affine(out, in)), bytes_(packed_bytes(spec_)), data_(static_cast<size_t>(bytes_ * kLayers)) {
    const RandomMatrix host(affine(std::min<int64_t>(out, 512), in), 1);
    std::vector<std::byte> part(static_cast<size_t>(packed_bytes(host.spec)));
    pack_linear(host.spec, host.source(), part);
    const int64_t all = bytes_ * kLayers, size = static_cast<int64_t>(part.size());
    for (int64_t at = 0; at < all; at += size)
      cuda_check(cudaMemcpy(data_.data() + at, part.data(), static_cast<size_t>(std::min(size, all - at)),
                            cudaMemcpyHostToDevice));
  }
  LinearWeight of_layer(int layer) const { return {.spec = spec_, .data = data_.data() + layer * bytes_}; }
  int64_t layer_bytes() const { return bytes_; }

 private:
  static LinearSpec affine(int64_t out, int64_t in) {
    return {.out = out, .in = in, .format = WeightFormat::kAffine, .bits = 4, .group_size = 64};
  }
  LinearSpec spec_;
  int64_t bytes_;
  DeviceArray<std::byte> data_;
};

class Layers {
 public:
  Layers()
      : o_(kHidden, kMixed),
        gate_(kIntermediate, kHidden),
        up_(kIntermediate, kHidden),
        down_(kHidden, kIntermediate),
        qkvz_(kQkvz, kHidden),
        b_(kHeads, kHidden),
        a_(kHeads, kHidden),
        norm_weight_(std::vector<float>(kHidden, 0.75f)),
        h_(kMaxRows * kHidden),
        gate_out_(kMaxRows * kIntermediate),
        up_out_(kMaxRows * kIntermediate),
        heads_out_(2 * kMaxRows * kHeads),
        qkvz_out_(kMaxRows * kQkvz),
        x_(kMaxRows * kHidden),
        product_(kMaxRows * kIntermediate),
        mixed_(random_bf16(kMaxRows * kMixed, 2)),
        barrier_(std::vector<uint32_t>{0}) {
    cuda_check(cudaStreamCreate(&stream_));
  }
  ~Layers() { cudaStreamDestroy(stream_); }
  Layers(const Layers&) = delete;
  Layers& operator=(const Layers&) = delete;

  void measure(const Way& way, int64_t rows, double copy) {
    const LaunchList launches = record(way, rows);
    if (way.chained_layers > 0 && launches == record(kWays[0], rows)) {
      std::printf("# %s, %lld rows: x does not fit\n", way.name, static_cast<long long>(rows));
      return;
    }
    reset();
    launches.run(stream_);
    if (!is_fine(way, rows, cudaGetLastError()) || !is_fine(way, rows, cudaStreamSynchronize(stream_)))
      return;
    check_bits(way, rows);
    cuda_check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    launches.run(stream_);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    if (!is_fine(way, rows, cudaStreamEndCapture(stream_, &graph))) return;
    if (!is_fine(way, rows, cudaGraphInstantiate(&executable, graph, 0))) return;
    const double ms = median_ms(25, [&](int) { cuda_check(cudaGraphLaunch(executable, nullptr)); }) / kLayers;
    cuda_check(cudaGraphExecDestroy(executable));
    cuda_check(cudaGraphDestroy(graph));
    const double gb_per_s = static_cast<double>(layer_bytes()) / ms / 1e6;
    std::printf("layer,%lld,%s,%.2f,%.0f,%.3f\n", static_cast<long long>(rows), way.name, ms * 1e3, gb_per_s,
                gb_per_s / copy);
    std::fflush(stdout);
  }

  void measure_barrier() {
    constexpr int kCount = 200;
    const auto run = [&](int count) {
      return median_ms(25, [&](int) { launch_grid_barriers(nullptr, barrier_.data(), count); });
    };
    std::printf("barrier,%.3f us\n", (run(2 * kCount) - run(kCount)) * 1e3 / kCount);
  }

 private:
  /// The four products of each layer, from o_proj on. Ops that are no products lie between real layers, so a
  /// chain ends there.
  LaunchList record(const Way& way, int64_t rows) {
    LaunchList launches;
    ChainRecorder recorder(launches, barrier_.data(), way.tuning);
    const View h(h_.data(), DType::kF32, {rows, kHidden}), x(x_.data(), DType::kBF16, {rows, kHidden});
    const View gate(gate_out_.data(), DType::kF32, {rows, kIntermediate});
    const View up(up_out_.data(), DType::kF32, {rows, kIntermediate});
    const View product(product_.data(), DType::kBF16, {rows, kIntermediate});
    const View mixed(mixed_.data(), DType::kBF16, {rows, kMixed}),
        norm_weight(norm_weight_.data(), DType::kF32, {kHidden});
    const View qkvz(qkvz_out_.data(), DType::kF32, {rows, kQkvz});
    const View b(heads_out_.data(), DType::kF32, {rows, kHeads});
    const View a(heads_out_.data() + kMaxRows * kHeads, DType::kF32, {rows, kHeads});
    const auto linear = [&](View from, std::vector<LinearCall> calls) {
      recorder.linear(linear_launches(from, calls, LinearKernel::kDecode));
      if (way.chained_layers == 0) recorder.flush();
    };
    const auto norm = [&] {
      recorder.rms_norm(rms_norm_launch(x, h, norm_weight, {.eps = 1e-6f}));
      if (way.chained_layers == 0) recorder.flush();
    };
    for (int layer = 0; layer < kLayers; ++layer) {
      linear(mixed, {{.out = h, .weight = o_.of_layer(layer), .accumulate = true}});
      norm();
      linear(x, {{.out = gate, .weight = gate_.of_layer(layer)}, {.out = up, .weight = up_.of_layer(layer)}});
      recorder.mlp_activation(mlp_activation_launch(product, gate, up, {.kind = MlpActivation::Kind::kSilu}));
      linear(product, {{.out = h, .weight = down_.of_layer(layer), .accumulate = true}});
      norm();
      linear(x, {{.out = qkvz, .weight = qkvz_.of_layer(layer)},
                 {.out = b, .weight = b_.of_layer(layer)},
                 {.out = a, .weight = a_.of_layer(layer)}});
      if (way.chained_layers > 0 && (layer + 1) % way.chained_layers == 0) recorder.flush();
    }
    recorder.flush();
    return launches;
  }
  int64_t layer_bytes() const {
    return o_.layer_bytes() + gate_.layer_bytes() + up_.layer_bytes() + down_.layer_bytes() +
           qkvz_.layer_bytes() + b_.layer_bytes() + a_.layer_bytes();
  }
  void reset() {
    cuda_check(cudaMemset(h_.data(), 0, h_.size() * sizeof(float)));
    for (DeviceArray<float>* array : {&gate_out_, &up_out_, &heads_out_, &qkvz_out_})
      cuda_check(cudaMemset(array->data(), 0xff, array->size() * sizeof(float)));
    cuda_check(cudaMemset(product_.data(), 0xff, product_.size() * sizeof(bf16)));
    cuda_check(cudaDeviceSynchronize());
  }
  static bool is_fine(const Way& way, int64_t rows, cudaError_t error) {
    if (error == cudaSuccess) return true;
    std::printf("# %s, %lld rows: %s\n", way.name, static_cast<long long>(rows), cudaGetErrorString(error));
    cudaGetLastError();
    return false;
  }
  /// All ways give the bits of the first one with these rows.
  void check_bits(const Way& way, int64_t rows) {
    std::vector<float> got = h_.download();
    for (const DeviceArray<float>* array : {&gate_out_, &up_out_, &heads_out_, &qkvz_out_}) {
      const std::vector<float> more = array->download();
      got.insert(got.end(), more.begin(), more.end());
    }
    if (first_rows_ != rows) first_ = got, first_rows_ = rows;
    if (std::memcmp(got.data(), first_.data(), got.size() * sizeof(float)) != 0)
      std::printf("# WRONG BITS: %s, %lld rows\n", way.name, static_cast<long long>(rows));
  }

  Weights o_, gate_, up_, down_, qkvz_, b_, a_;
  DeviceArray<float> norm_weight_, h_, gate_out_, up_out_, heads_out_, qkvz_out_;
  DeviceArray<bf16> x_, product_, mixed_;
  DeviceArray<uint32_t> barrier_;
  cudaStream_t stream_ = nullptr;
  std::vector<float> first_;
  int64_t first_rows_ = 0;
};

}  // namespace
}  // namespace tensorfold::cuda

int main() {
  using namespace tensorfold::cuda;
  if (!have_device()) return std::fprintf(stderr, "cuda_chain_bench: no sm_90 device\n"), 1;
  const double copy = copy_gb_per_s();
  std::printf("copy,%.0f GB/s\nop,rows,way,us,gb_per_s,of_copy\n", copy);
  Layers layers;
  layers.measure_barrier();
  for (const int64_t rows : {1, 2, 4, 8, 16}) {
    for (const Way& way : kWays) layers.measure(way, rows, copy);
  }
}
