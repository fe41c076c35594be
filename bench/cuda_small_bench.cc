// Speed of the small CUDA ops: launches one after the other in a graph, as a pass has them, in microseconds a
// launch and in bytes per second against copy bandwidth. Few rows measure what a launch costs, many the
// memory. Inputs and outputs rotate among enough memory to stay out of L2 where rows are many; where they are
// few, a pass finds them in L2, too.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <vector>

#include "bench/cuda_bench_util.h"
#include "ops/cuda/elementwise.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/norms.h"
#include "ops/cuda/rope.h"

namespace tensorfold::cuda {
namespace {

/// Device memory full of random floats, dealt out from the start again when it is used up.
class Memory {
 public:
  Memory() : values_(kFloats) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> block(size_t{1} << 20);
    for (float& v : block) v = normal(random);
    fill_with_copies(values_, block);
  }
  View next(int64_t rows, int64_t columns, DType dtype = DType::kF32) {
    const int64_t floats = (rows * columns + 63) / 64 * 64;
    if (used_ + floats > static_cast<int64_t>(kFloats)) used_ = 0;
    const View view(values_.data() + used_, dtype, {rows, columns});
    used_ += floats;
    return view;
  }

 private:
  static constexpr size_t kFloats = size_t{1} << 30;
  DeviceArray<float> values_;
  int64_t used_ = 0;
};

/// Times launch(stream), kLaunches of them in one graph.
void time_launches(const char* name, int64_t rows, int64_t columns, double bytes, double copy,
                   const std::function<void(Stream)>& launch) {
  constexpr int kLaunches = 32;
  const double ms = graph_ms(kLaunches, 11, [&](cudaStream_t stream, int64_t) { launch(stream); });
  std::printf("%s,%lld,%lld,%.2f,%.0f,%.3f\n", name, static_cast<long long>(rows),
              static_cast<long long>(columns), ms * 1e3, bytes / ms / 1e6, bytes / ms / 1e6 / copy);
  std::fflush(stdout);
}

void bench_norms(Memory& memory, int64_t rows, double copy) {
  const int64_t E = 5120;
  const double elements = static_cast<double>(rows * E);
  time_launches("rms_norm", rows, E, 6 * elements, copy, [&](Stream stream) {
    const View x = memory.next(rows, E), weight = memory.next(1, E), out = memory.next(rows, E, DType::kBF16);
    launch_rms_norm(stream, rms_norm_launch(out, x, weight, {}));
  });
  time_launches("rms_norm_accumulate", rows, E, 12 * elements, copy, [&](Stream stream) {
    const View x = memory.next(rows, E), weight = memory.next(1, E), out = memory.next(rows, E);
    launch_rms_norm(stream, rms_norm_launch(out, x, weight, {.accumulate = true}));
  });
  const int64_t heads = 48, group = 128, n = heads * group;
  time_launches("gated_rms_norm", rows, n, 10.0 * static_cast<double>(rows * n), copy, [&](Stream stream) {
    const View weight = memory.next(1, group);
    launch_gated_rms_norm(stream, gated_rms_norm_launch({.out = memory.next(rows, n, DType::kBF16),
                                                         .x = memory.next(rows, n),
                                                         .gate = memory.next(rows, n),
                                                         .weight = View(weight.data, DType::kF32, {group}),
                                                         .group_size = group}));
  });
}

void bench_rope(Memory& memory, int64_t rows, double copy) {
  const int64_t H = 24, K = 4, D = 256, half = 32;
  const double bytes = static_cast<double>(rows * (H + K) * D) * 6 + static_cast<double>(rows * half) * 8;
  time_launches("qk_norm_rope", rows, (H + K) * D, bytes, copy, [&](Stream stream) {
    launch_qk_norm_rope(stream, qk_norm_rope_launch({.q_out = memory.next(rows, H * D, DType::kBF16),
                                                     .k_out = memory.next(rows, K * D, DType::kBF16),
                                                     .q = memory.next(rows, H * D),
                                                     .k = memory.next(rows, K * D),
                                                     .q_norm = memory.next(1, D),
                                                     .k_norm = memory.next(1, D),
                                                     .cos = memory.next(rows, half),
                                                     .sin = memory.next(rows, half),
                                                     .head_dim = D}));
  });
  const std::vector<int32_t> host_positions(static_cast<size_t>(rows), 12345);
  const std::vector<double> host_inv_freq(half, 0.25);
  const DeviceArray<int32_t> positions(host_positions);
  const DeviceArray<double> inv_freq(host_inv_freq);
  time_launches("rope_table", rows, half, static_cast<double>(rows * half) * 8, copy, [&](Stream stream) {
    const View cos = memory.next(rows, half), sin = memory.next(rows, half);
    launch_rope_table(stream, rope_table_launch(cos, sin, positions.data(), inv_freq.data(), 1.0));
  });
}

void bench_elementwise(Memory& memory, int64_t rows, double copy) {
  const int64_t I = 17408, E = 5120;
  const double elements = static_cast<double>(rows * I);
  for (const auto& [name, kind] :
       {std::pair<const char*, MlpActivation::Kind>{"silu", MlpActivation::Kind::kSilu},
        {"gelu_tanh", MlpActivation::Kind::kGeluTanh},
        {"clamped_silu", MlpActivation::Kind::kClampedSilu}}) {
    time_launches(name, rows, I, 10 * elements, copy, [&](Stream stream) {
      launch_mlp_activation(
          stream, mlp_activation_launch(memory.next(rows, I, DType::kBF16), memory.next(rows, I),
                                        memory.next(rows, I), {.kind = kind, .alpha = 1.7f, .limit = 7.0f}));
    });
  }
  time_launches("sigmoid_mul", rows, 6144, static_cast<double>(rows * 6144) * 8, copy, [&](Stream stream) {
    launch_sigmoid_mul(
        stream, sigmoid_mul_launch(memory.next(rows, 6144, DType::kBF16),
                                   memory.next(rows, 6144, DType::kBF16), memory.next(rows, 6144), 256, 256));
  });
  time_launches("add_gated", rows, E, static_cast<double>(rows * E) * 12, copy, [&](Stream stream) {
    launch_add_gated(stream,
                     add_gated_launch(memory.next(rows, E), memory.next(rows, E), memory.next(rows, 1)));
  });
}

}  // namespace
}  // namespace tensorfold::cuda

int main() {
  using namespace tensorfold::cuda;
  if (!have_device()) return std::fprintf(stderr, "cuda_small_bench: no sm_90 device\n"), 1;
  const double copy = copy_gb_per_s();
  std::printf("copy,%.0f GB/s\nop,rows,columns,us,gb_per_s,of_copy\n", copy);
  Memory memory;
  for (const int64_t rows : {1, 8, 64, 1024, 8192}) {
    bench_norms(memory, rows, copy);
    bench_rope(memory, rows, copy);
    bench_elementwise(memory, rows, copy);
  }
}
