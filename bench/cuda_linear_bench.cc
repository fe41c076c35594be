// Speed of linear() on the shapes of Qwen3.8-27B, as fractions of limits measured here: copy bandwidth for
// few rows; the library's matrix product is measured beside it by bench/cuda_limits.py for many.
// Usage: cuda_linear_bench [decode|few [OUTPUTS] | wide]
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bench/cuda_timing.h"
#include "ops/cuda/linear.h"
#include "tests/ops/cuda/cuda_test_util.h"

namespace tensorfold::cuda {
namespace {

/// A format as the CSV names it.
struct Format {
  const char* name;
  LinearSpec spec;  ///< Of out and in 0.
  LinearSpec sized(int64_t out, int64_t in) const {
    LinearSpec s = spec;
    s.out = out, s.in = in;
    return s;
  }
};
constexpr LinearSpec affine(int bits, int group, DType dtype = DType::kBF16) {
  return {.format = WeightFormat::kAffine, .dtype = dtype, .bits = bits, .group_size = group};
}
const Format kAffine4{"affine4g64", affine(4, 64)}, kAffine4G32{"affine4g32", affine(4, 32)},
    kAffine4F16{"affine4g64-f16", affine(4, 64, DType::kF16)}, kAffine2{"affine2g64", affine(2, 64)},
    kAffine3{"affine3g64", affine(3, 64)}, kAffine5{"affine5g64", affine(5, 64)},
    kAffine6{"affine6g64", affine(6, 64)}, kAffine8{"affine8g64", affine(8, 64)}, kBf16{"bf16", {}},
    kF16{"f16", {.dtype = DType::kF16}},
    kMxfp4{"mxfp4", {.format = WeightFormat::kMxfp4, .bits = 4, .group_size = 32}};

/// A way to run the product.
struct Variant {
  const char* name;
  LinearKernel kernel = LinearKernel::kDecode;
  LinearTuning tuning = {};
};
const Variant kDecode{"decode"}, kWide{"wide", LinearKernel::kWide};
/// Tiles whole, whole with x shared by two blocks, and shared by two and by four blocks.
const Variant kWideVariants[] = {
    {.name = "wide/1", .kernel = LinearKernel::kWide, .tuning = {.wide_split = 1}},
    {.name = "wide/1x2", .kernel = LinearKernel::kWide, .tuning = {.wide_split = 1, .wide_share = 2}},
    {.name = "wide/2", .kernel = LinearKernel::kWide, .tuning = {.wide_split = 2}},
    {.name = "wide/4", .kernel = LinearKernel::kWide, .tuning = {.wide_split = 4}}};
using Tile = LinearTuning::Tile;
const Variant kManyRows{"many", LinearKernel::kWide, {.wide_tile = Tile::kMany}};
/// Tiles of 32 rows, as many blocks to each as there are tiles for, and so many.
const Variant kFewVariants[] = {
    {.name = "few", .kernel = LinearKernel::kWide, .tuning = {.wide_tile = Tile::kFew}},
    {.name = "few/1", .kernel = LinearKernel::kWide, .tuning = {.wide_split = 1, .wide_tile = Tile::kFew}},
    {.name = "few/1x2",
     .kernel = LinearKernel::kWide,
     .tuning = {.wide_split = 1, .wide_share = 2, .wide_tile = Tile::kFew}},
    {.name = "few/2", .kernel = LinearKernel::kWide, .tuning = {.wide_split = 2, .wide_tile = Tile::kFew}},
    {.name = "few/4", .kernel = LinearKernel::kWide, .tuning = {.wide_split = 4, .wide_tile = Tile::kFew}}};
/// `layers` copies of a matrix, so that repeated calls do not find it in L2, and what they are multiplied by.
class Product {
 public:
  Product(const Format& format, int64_t out, int64_t in, int64_t max_rows)
      : format_(format),
        spec_(format.sized(out, in)),
        bytes_(packed_bytes(spec_)),
        layers_(static_cast<int>(std::clamp<int64_t>((int64_t{400} << 20) / bytes_, 2, 64))),
        weights_(static_cast<size_t>(bytes_ * layers_)),
        x_(random_bf16(static_cast<size_t>(max_rows * in), 2)),
        y_(static_cast<size_t>(max_rows * out)),
        drawn_(static_cast<size_t>(layers_)) {
    const RandomMatrix host(format.sized(std::min<int64_t>(out, 512), in), 1);
    std::vector<std::byte> packed(static_cast<size_t>(packed_bytes(host.spec)));
    pack_linear(host.spec, host.source(), packed);
    const int64_t all = bytes_ * layers_, part = static_cast<int64_t>(packed.size());
    for (int64_t at = 0; at < all; at += part)
      cuda_check(
          cudaMemcpy(weights_.data() + at, packed.data(), std::min(part, all - at), cudaMemcpyHostToDevice));
    cuda_check(cudaStreamCreate(&stream_));
  }
  ~Product() { cudaStreamDestroy(stream_); }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  void measure(const Variant& variant, int64_t rows, double copy) {
    cuda_check(cudaMemset(y_.data(), 0xff, y_.size() * sizeof(float)));
    cuda_check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int layer = 0; layer < layers_; ++layer) launch(variant, rows, layer);
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cuda_check(cudaStreamEndCapture(stream_, &graph));
    cuda_check(cudaGraphInstantiate(&executable, graph, 0));
    const double ms = median_ms(15, [&](int) { cuda_check(cudaGraphLaunch(executable, nullptr)); }) / layers_;
    cuda_check(cudaGraphExecDestroy(executable));
    cuda_check(cudaGraphDestroy(graph));
    check_bits(variant, rows);
    const double gb_per_s = static_cast<double>(bytes_) / ms / 1e6;
    const double tflops = 2.0 * static_cast<double>(spec_.out * spec_.in * rows) / ms / 1e9;
    std::printf("linear,%s,%lld,%lld,%lld,%s,%.2f,%.0f,%.3f,%.1f\n", format_.name,
                static_cast<long long>(spec_.out), static_cast<long long>(spec_.in),
                static_cast<long long>(rows), variant.name, ms * 1e3, gb_per_s, gb_per_s / copy, tflops);
    std::fflush(stdout);
  }

 private:
  /// Layers are launched from the first one on: their counters of drawn tiles begin at 0 as those of a pass
  /// do.
  void launch(const Variant& variant, int64_t rows, int layer) {
    if (layer == 0) cuda_check(cudaMemsetAsync(drawn_.data(), 0, drawn_.size() * sizeof(int32_t), stream_));
    const View x(x_.data(), DType::kBF16, {rows, spec_.in});
    const LinearCall call{.out = View(y_.data(), DType::kF32, {rows, spec_.out}),
                          .weight = {.spec = spec_, .data = weights_.data() + layer * bytes_}};
    for (LinearLaunch& launch : linear_launches(x, {&call, 1}, variant.kernel)) {
      launch.tuning = variant.tuning;
      if (launch.kernel == LinearKernel::kDecode) launch.drawn_tiles = drawn_.data() + layer;
      launch_linear(stream_, launch);
    }
  }
  /// All variants of a product with these rows give the bits of the first one measured.
  void check_bits(const Variant& variant, int64_t rows) {
    std::vector<float> y(static_cast<size_t>(std::min<int64_t>(rows, 64) * spec_.out));
    cuda_check(cudaMemcpy(y.data(), y_.data(), y.size() * sizeof(float), cudaMemcpyDeviceToHost));
    if (first_rows_ != rows) first_ = y, first_rows_ = rows;
    if (std::memcmp(y.data(), first_.data(), y.size() * sizeof(float)) != 0)
      std::printf("# WRONG BITS: %s, %lld rows, %s\n", format_.name, static_cast<long long>(rows),
                  variant.name);
  }

  Format format_;
  LinearSpec spec_;
  int64_t bytes_;
  int layers_;
  DeviceArray<std::byte> weights_;
  DeviceArray<bf16> x_;
  DeviceArray<float> y_;
  DeviceArray<int32_t> drawn_;
  cudaStream_t stream_ = nullptr;
  std::vector<float> first_;
  int64_t first_rows_ = 0;
};

constexpr int64_t kShapes[][2] = {{5120, 5120}, {17408, 5120}, {5120, 17408}, {1024, 5120}, {248320, 5120}};
/// Of kShapes only that with so many outputs, if it is not 0.
int64_t only_out = 0;
bool is_wanted(int64_t out) { return only_out == 0 || only_out == out; }

void bench_decode(double copy) {
  for (const Format& format : {kAffine4, kBf16}) {
    for (const auto& [out, in] : kShapes) {
      if (!is_wanted(out)) continue;
      Product product(format, out, in, 16);
      for (int64_t rows : {1, 2, 4, 8, 16}) product.measure(kDecode, rows, copy);
    }
  }
  if (only_out != 0) return;
  for (const Format& format :
       {kMxfp4, kAffine8, kAffine6, kAffine5, kAffine3, kAffine2, kAffine4G32, kAffine4F16, kF16}) {
    Product product(format, 17408, 5120, 8);
    for (int64_t rows : {1, 8}) product.measure(kDecode, rows, copy);
  }
  Product head(kAffine8, 49152, 576, 1);  // SmolLM2's tied head.
  head.measure(kDecode, 1, copy);
}

void bench_few(double copy) {
  for (const Format& format : {kAffine4, kBf16, kMxfp4}) {
    for (const auto& [out, in] : kShapes) {
      if (!is_wanted(out) || (out > 100000 && format.spec.bits != 4)) continue;
      Product product(format, out, in, 128);
      for (int64_t rows : {16, 17, 32, 64, 96, 128}) {
        if (rows <= 64) product.measure(kDecode, rows, copy);
        product.measure(kManyRows, rows, copy);
        for (const Variant& variant : kFewVariants) product.measure(variant, rows, copy);
      }
    }
  }
}

void bench_wide(double copy) {
  for (const Format& format : {kAffine4, kBf16}) {
    Product product(format, 17408, 5120, 8192), down(format, 5120, 17408, 8192);
    for (int64_t rows : {128, 512, 2048, 8192}) {
      product.measure(kWide, rows, copy);
      for (const Variant& variant : kWideVariants) product.measure(variant, rows, copy);
    }
    for (int64_t rows : {512, 8192}) {
      down.measure(kWide, rows, copy);
      for (const Variant& variant : kWideVariants) down.measure(variant, rows, copy);
    }
  }
  for (const Format& format : {kAffine4G32, kMxfp4, kAffine8, kAffine6, kF16}) {
    Product product(format, 17408, 5120, 8192);
    for (int64_t rows : {512, 8192}) {
      product.measure(kWide, rows, copy);
      product.measure(kWideVariants[1], rows, copy);
    }
  }
}

}  // namespace
}  // namespace tensorfold::cuda

int main(int argc, char** argv) {
  using namespace tensorfold::cuda;
  if (!have_device()) return std::fprintf(stderr, "cuda_linear_bench: no sm_90 device\n"), 1;
  const double copy = copy_gb_per_s();
  std::printf("copy,%.0f GB/s\nop,format,out,in,rows,kernel,us,gb_per_s,of_copy,tflops\n", copy);
  const std::string part = argc < 2 ? "" : argv[1];
  if (argc > 2) only_out = std::atoll(argv[2]);
  if (part.empty() || part == "decode") bench_decode(copy);
  if (part.empty() || part == "few") bench_few(copy);
  if (part.empty() || part == "wide") bench_wide(copy);
}
