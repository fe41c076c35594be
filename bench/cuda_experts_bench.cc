// Speed of experts() and route() on CUDA at the shapes of published mixtures of experts: bytes of the chosen
// experts' weights per second against copy bandwidth for few rows, arithmetic for many.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "bench/cuda_bench_util.h"
#include "ops/cuda/experts.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/route.h"

namespace tensorfold::cuda {
namespace {

struct Model {
  const char* name;
  int64_t hidden_size, intermediate_size, num_experts, num_choices;
  LinearSpec spec;  ///< Format of all matrices.
  bool has_bias;
  MlpActivation activation;
};

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

/// One projection of the experts of as many layers as keep the chosen ones out of L2, each matrix a copy of
/// one random one, biases zero.
class Projection {
 public:
  Projection(LinearSpec spec, int64_t num_experts, int64_t layers, bool has_bias)
      : spec_(spec),
        num_experts_(num_experts),
        matrix_bytes_(round_up(packed_bytes(spec), 256)),
        stride_(matrix_bytes_ + (has_bias ? round_up(spec.out * 4, 256) : 0)),
        bytes_(static_cast<size_t>(layers * num_experts * stride_)) {
    const RandomMatrix matrix(spec, 3);
    std::vector<std::byte> one(static_cast<size_t>(stride_));
    pack_linear(spec, matrix.source(), {one.data(), static_cast<size_t>(packed_bytes(spec))});
    fill_with_copies(bytes_, one);
    for (int64_t i = 0; i < layers * num_experts; ++i) {
      const std::byte* data = bytes_.data() + i * stride_;
      weights_.push_back(
          {spec, data, has_bias ? reinterpret_cast<const float*>(data + matrix_bytes_) : nullptr});
    }
  }
  std::span<const LinearWeight> of_layer(int64_t layer) const {
    return std::span(weights_).subspan(static_cast<size_t>(layer * num_experts_),
                                       static_cast<size_t>(num_experts_));
  }
  int64_t matrix_bytes() const { return packed_bytes(spec_); }

 private:
  LinearSpec spec_;
  int64_t num_experts_, matrix_bytes_, stride_;
  DeviceArray<std::byte> bytes_;
  std::vector<LinearWeight> weights_;
};

LinearSpec sized(LinearSpec spec, int64_t out, int64_t in) {
  spec.out = out, spec.in = in;
  return spec;
}

/// k different experts of each row of each layer.
std::vector<int32_t> random_ids(int64_t rows, const Model& model) {
  std::mt19937 random(5);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < rows; ++t) {
    std::set<int32_t> of_row;
    while (std::ssize(of_row) < model.num_choices)
      of_row.insert(static_cast<int32_t>(random() % model.num_experts));
    ids.insert(ids.end(), of_row.begin(), of_row.end());
  }
  return ids;
}

void bench(const Model& model, const std::vector<int64_t>& row_counts, double copy) {
  const int64_t E = model.hidden_size, I = model.intermediate_size, X = model.num_experts,
                k = model.num_choices;
  const bool has_gate = model.activation.has_gate();
  const int64_t layer_bytes = X * (packed_bytes(sized(model.spec, I, E)) * (has_gate ? 2 : 1) +
                                   packed_bytes(sized(model.spec, E, I)));
  const int64_t layers = std::clamp<int64_t>((int64_t{12} << 30) / layer_bytes, 2, 24);
  const Projection up(sized(model.spec, I, E), X, layers, model.has_bias);
  const Projection gate(sized(model.spec, I, E), has_gate ? X : 1, layers, model.has_bias);
  const Projection down(sized(model.spec, E, I), X, layers, model.has_bias);
  const double expert_bytes =
      static_cast<double>(up.matrix_bytes() * (has_gate ? 2 : 1) + down.matrix_bytes());
  const int64_t max_rows = *std::max_element(row_counts.begin(), row_counts.end());
  // A layer's choices differ from the next one's while there are few rows.
  const int64_t id_rows = std::max<int64_t>(max_rows, layers * 64);
  const std::vector<int32_t> ids = random_ids(id_rows, model);
  const DeviceArray<int32_t> device_ids(ids);
  const DeviceArray<float> router_weights(std::vector<float>(static_cast<size_t>(max_rows * k), 0.25f));
  const DeviceArray<bf16> x(random_bf16(static_cast<size_t>(max_rows * E), 2));
  const DeviceArray<float> out(std::vector<float>(static_cast<size_t>(max_rows * E)));
  struct Way {
    const char* name;
    ExpertsKernel kernel;
    ExpertVariants variants = {};
  };
  const Way ways[] = {
      {"few", ExpertsKernel::kFewRows},
      {"few plain",
       ExpertsKernel::kFewRows,
       {.prefetch_down = false, .streams = ExpertStreams::kNever, .narrow_down = false}},
      {"few stream", ExpertsKernel::kFewRows, {.streams = ExpertStreams::kAlways}},
      {"few blocks", ExpertsKernel::kFewRows, {.streams = ExpertStreams::kNever}},
      {"few dense", ExpertsKernel::kFewRows, {.streams = ExpertStreams::kNever, .dense_blocks = true}},
      {"pairs", ExpertsKernel::kPairs},
      {"many", ExpertsKernel::kManyRows},
  };
  for (const int64_t rows : row_counts) {
    for (const Way& way : ways) {
      const ExpertsKernel kernel = way.kernel;
      if (kernel == ExpertsKernel::kPairs && (rows < 2 || rows > 8)) continue;
      if (kernel == ExpertsKernel::kFewRows && rows > 512) continue;
      if (kernel == ExpertsKernel::kManyRows && rows < 8) continue;
      if (rows > 64 && kernel == ExpertsKernel::kFewRows && &way != ways) continue;
      const int64_t first_ids = rows <= 64 ? rows : 0;
      const auto call_of = [&](int64_t layer) {
        return ExpertsCall{
            .out = View(out.data(), DType::kF32, {rows, E}),
            .x = View(x.data(), DType::kBF16, {rows, E}),
            .expert_ids = View(device_ids.data() + layer * first_ids * k, DType::kI32, {rows, k}),
            .expert_weights = View(router_weights.data(), DType::kF32, {rows, k}),
            .weights = {X, has_gate ? gate.of_layer(layer) : std::span<const LinearWeight>(),
                        up.of_layer(layer), down.of_layer(layer)},
            .activation = model.activation};
      };
      const DeviceArray<std::byte> scratch(static_cast<size_t>(experts_scratch_bytes(call_of(0), kernel)));
      const DeviceArray<int32_t> arrived(static_cast<size_t>(layers));
      double experts_read = 0;
      for (int64_t layer = 0; layer < layers; ++layer) {
        const auto begin = ids.begin() + layer * first_ids * k;
        experts_read += static_cast<double>(std::set<int32_t>(begin, begin + rows * k).size()) /
                        static_cast<double>(layers);
      }
      const double ms = graph_ms(layers, rows > 512 ? 5 : 15, [&](cudaStream_t stream, int64_t layer) {
        ExpertsLaunch launch = experts_launch(call_of(layer), scratch.data(), kernel);
        launch.variants = way.variants;
        if (layer == 0)
          cudaMemsetAsync(arrived.data(), 0, static_cast<size_t>(layers) * sizeof(int32_t), stream);
        launch.arrived_blocks = arrived.data() + layer;
        launch_experts(stream, launch);
      });
      const double gb_per_s = experts_read * expert_bytes / ms / 1e6;
      const double tflops = 2.0 * static_cast<double>(rows * k * E * I * (has_gate ? 3 : 2)) / ms / 1e9;
      std::printf("experts,%s,%lld,%s,%.2f,%.1f,%.0f,%.3f,%.1f\n", model.name, (long long)rows, way.name,
                  ms * 1e3, experts_read, gb_per_s, gb_per_s / copy, tflops);
      std::fflush(stdout);
    }
    const DeviceArray<float> logits(std::vector<float>(static_cast<size_t>(rows * X), 0.5f));
    const DeviceArray<int32_t> chosen(static_cast<size_t>(rows * k));
    const DeviceArray<float> weights(static_cast<size_t>(rows * k));
    const double ms = graph_ms(16, 15, [&](cudaStream_t stream, int64_t) {
      launch_route(stream, route_launch({.expert_ids = View(chosen.data(), DType::kI32, {rows, k}),
                                         .expert_weights = View(weights.data(), DType::kF32, {rows, k}),
                                         .router_logits = View(logits.data(), DType::kF32, {rows, X})}));
    });
    std::printf("route,%s,%lld,,%.2f,,,,\n", model.name, (long long)rows, ms * 1e3);
  }
}

}  // namespace
}  // namespace tensorfold::cuda

int main(int argc, char** argv) {
  using namespace tensorfold;
  using namespace tensorfold::cuda;
  if (!have_device()) return std::fprintf(stderr, "cuda_experts_bench: no sm_90 device\n"), 1;
  const double copy = copy_gb_per_s();
  std::printf("copy,%.0f GB/s\nop,model,rows,kernel,us,experts,gb_per_s,of_copy,tflops\n", copy);
  const LinearSpec affine4 = {
      .format = WeightFormat::kAffine, .dtype = DType::kBF16, .bits = 4, .group_size = 64};
  const LinearSpec affine8 = {
      .format = WeightFormat::kAffine, .dtype = DType::kBF16, .bits = 8, .group_size = 64};
  const LinearSpec mxfp4 = {
      .format = WeightFormat::kMxfp4, .dtype = DType::kBF16, .bits = 4, .group_size = 32};
  std::vector<int64_t> rows = {1, 2, 4, 8, 16, 64, 256, 512, 1024, 4096};
  if (argc > 1) rows.clear();
  for (int i = 1; i < argc; ++i) rows.push_back(std::atoll(argv[i]));
  const Model models[] = {
      {"Qwen3.6-35B-A3B 4-bit", 2048, 512, 256, 8, affine4, false, {MlpActivation::Kind::kSilu}},
      {"gpt-oss-20b MXFP4",
       2880,
       2880,
       32,
       4,
       mxfp4,
       true,
       {MlpActivation::Kind::kClampedSilu, 1.702f, 7.0f}},
      {"Nemotron-3-Nano 4-bit", 2688, 1856, 128, 6, affine4, false, {MlpActivation::Kind::kRelu2}},
      {"Qwen3.6-35B-A3B 8-bit", 2048, 512, 256, 8, affine8, false, {MlpActivation::Kind::kSilu}},
      {"Qwen3.6-35B-A3B bf16", 2048, 512, 256, 8, {}, false, {MlpActivation::Kind::kSilu}},
  };
  for (const Model& model : models) bench(model, rows, copy);
}
