// Speed of sample() on CUDA: microseconds a launch, as a graph of launches over logits that rotate through
// more memory than L2 holds. Rows as requests ask for them, and the two worst for the search: all logits
// equal, and a cut that takes every digit of key and token.
#include <cstdio>
#include <vector>

#include "bench/cuda_bench_util.h"
#include "ops/cuda/sample.h"

namespace tensorfold::cuda {
namespace {

struct Case {
  const char* name;
  SampleRow row;
  bool is_flat = false;
};

/// Random logits of deviation 3, or one value throughout.
std::vector<float> make_logits(int64_t count, bool is_flat) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = is_flat ? 1.5f : normal(random);
  return values;
}

/// Median microseconds of a launch for `num_rows` rows.
double time_case(const Case& c, const DeviceArray<float>& logits, int64_t num_rows, int64_t vocab_size) {
  std::vector<DeviceSampleRow> rows;
  for (int64_t i = 0; i < num_rows; ++i) {
    SampleRow row = c.row;
    row.seed = 7, row.pos = i;
    rows.push_back(device_sample_row(row));
  }
  const DeviceArray<DeviceSampleRow> device_rows(rows);
  const DeviceArray<int32_t> tokens(static_cast<size_t>(num_rows));
  const auto passes = static_cast<int64_t>(logits.size()) / (num_rows * vocab_size);
  const double ms = graph_ms(passes, 11, [&](cudaStream_t stream, int64_t i) {
    const View view(logits.data() + i * num_rows * vocab_size, DType::kF32, {num_rows, vocab_size});
    launch_sample(stream, sample_launch(tokens.data(), view, device_rows.data()));
  });
  return ms * 1e3;
}

void bench() {
  const Case cases[] = {
      {"greedy", {.temperature = 0.0f}},
      {"temperature", {.temperature = 0.8f}},
      {"min_p", {.temperature = 1.2f, .min_p = 0.05f}},
      {"top_k 20 top_p 0.95", {.temperature = 0.6f, .top_k = 20, .top_p = 0.95f}},
      {"top_k 64", {.top_k = 64}},
      {"top_p 0.95", {.temperature = 0.7f, .top_p = 0.95f}},
      {"top_k 100000 top_p 0.99", {.top_k = 100'000, .top_p = 0.99f}},
      {"flat greedy", {.temperature = 0.0f}, true},
      {"flat temperature", {}, true},
      {"flat top_k 100000 top_p 0.5", {.top_k = 100'000, .top_p = 0.5f}, true},
  };
  std::printf("op,row,V,R,us\n");
  constexpr int64_t kFloats = int64_t{64} << 20;  // 256 MB, five times L2.
  for (const bool is_flat : {false, true}) {
    const DeviceArray<float> logits(make_logits(kFloats, is_flat));
    for (const Case& c : cases) {
      if (c.is_flat != is_flat) continue;
      for (const int64_t vocab_size : {32'000, 151'936, 248'320}) {
        for (const int64_t num_rows : {1, 8, 16, 64}) {
          std::printf("sample,%s,%lld,%lld,%.2f\n", c.name, (long long)vocab_size, (long long)num_rows,
                      time_case(c, logits, num_rows, vocab_size));
        }
      }
    }
  }
}

}  // namespace
}  // namespace tensorfold::cuda

int main() {
  if (!tensorfold::cuda::have_device()) {
    std::fprintf(stderr, "no CUDA device of compute capability 9\n");
    return 1;
  }
  tensorfold::cuda::bench();
  return 0;
}
