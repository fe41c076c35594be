// linear() of the cpu backend: for one row, packed bytes per second against what the same threads reach when
// they only sum a buffer of that size; for more rows, multiply-adds per second. The result is compared with
// the reference first.
//
//   ops_linear_bench [THREADS] --benchmark_filter=avx512-bf16/4-bit
//
// Times are the best of several repetitions: the interesting number is the machine's limit, and other work on
// the machine only ever adds to it.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "base/thread_pool.h"
#include "ops/linear_layout.h"
#include "ops/ops.h"

namespace tensorfold {
namespace {

bool works_alone = false;  ///< With one thread.

constexpr int64_t kCacheBytes = int64_t{96}
                                << 20;  ///< Matrices of one case together: beyond any L3 cache here.

struct Shape {
  const char* name;
  int64_t out, in;
};
/// SmolLM2-135M's layers and head, two of a 1.5B model, and one of an expert of GPT-OSS.
constexpr Shape kShapes[] = {{"qkv_576", 960, 576},        {"o_576", 576, 576},
                             {"gate_up_576", 3072, 576},   {"down_576", 576, 1536},
                             {"head_576", 49152, 576},     {"o_2048", 2048, 2048},
                             {"gate_up_2048", 8192, 2048}, {"gate_2880", 2880, 2880}};

struct Format {
  const char* name;
  WeightFormat format;
  DType dtype;
  int bits, group_size;
};
constexpr Format kFormats[] = {{"2-bit_g64_bf16", WeightFormat::kAffine, DType::kBF16, 2, 64},
                               {"3-bit_g64_bf16", WeightFormat::kAffine, DType::kBF16, 3, 64},
                               {"4-bit_g32_f16", WeightFormat::kAffine, DType::kF16, 4, 32},
                               {"4-bit_g32_bf16", WeightFormat::kAffine, DType::kBF16, 4, 32},
                               {"mxfp4", WeightFormat::kMxfp4, DType::kBF16, 4, 32},
                               {"4-bit_g64_bf16", WeightFormat::kAffine, DType::kBF16, 4, 64},
                               {"5-bit_g64_bf16", WeightFormat::kAffine, DType::kBF16, 5, 64},
                               {"6-bit_g64_bf16", WeightFormat::kAffine, DType::kBF16, 6, 64},
                               {"8-bit_g32_f16", WeightFormat::kAffine, DType::kF16, 8, 32},
                               {"bf16", WeightFormat::kFloat, DType::kBF16, 16, 0},
                               {"f16", WeightFormat::kFloat, DType::kF16, 16, 0},
                               {"f32", WeightFormat::kFloat, DType::kF32, 32, 0}};

LinearSpec spec_of(const Shape& shape, const Format& format) {
  return {.out = shape.out,
          .in = shape.in,
          .format = format.format,
          .dtype = format.dtype,
          .bits = format.bits,
          .group_size = format.group_size};
}

/// Bytes of `count` floats of the dtype around 1, so that no sum becomes infinite.
std::vector<std::byte> random_floats(std::mt19937_64& random, DType dtype, int64_t count) {
  std::normal_distribution<float> normal;
  std::vector<std::byte> bytes(static_cast<size_t>(count * dtype_bytes(dtype)));
  for (int64_t i = 0; i < count; ++i) {
    const float value = normal(random);
    const uint16_t half = dtype == DType::kF16 ? to_f16(value).bits : to_bf16(value).bits;
    const void* stored = dtype == DType::kF32 ? static_cast<const void*>(&value) : &half;
    std::memcpy(bytes.data() + i * dtype_bytes(dtype), stored, static_cast<size_t>(dtype_bytes(dtype)));
  }
  return bytes;
}

/// MXFP4 scales from 2^-3 to 2^4.
std::vector<std::byte> random_e8m0(std::mt19937_64& random, int64_t count) {
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  for (std::byte& scale : bytes) scale = static_cast<std::byte>(124 + random() % 8);
  return bytes;
}

/// As many copies of one packed matrix as it takes that none is in a cache when its turn comes.
class Matrices {
 public:
  Matrices(const LinearSpec& spec, const Ops& ops) : spec_(spec), bytes_(ops.packed_bytes(spec)) {
    std::mt19937_64 random(1);
    const int64_t groups = spec.group_size == 0 ? 0 : spec.out * spec.in / spec.group_size;
    std::vector<std::byte> weight =
        random_floats(random, DType::kF32, spec.out * spec.in * spec.bits / 32 + 1);
    if (spec.format == WeightFormat::kFloat) weight = random_floats(random, spec.dtype, spec.out * spec.in);
    std::vector<std::byte> scales = random_floats(random, spec.dtype, groups);
    if (spec.format == WeightFormat::kMxfp4) scales = random_e8m0(random, groups);
    const std::vector<std::byte> biases = random_floats(random, spec.dtype, groups);
    copies_ = std::max<int64_t>(1, kCacheBytes / bytes_);
    buffer_ = cpu_device().allocate(copies_ * bytes_, "matrices").value();
    for (int64_t i = 0; i < copies_; ++i) {
      std::byte* data = buffer_.data() + i * bytes_;
      if (i == 0) ops.pack(spec, {weight, scales, biases}, {data, static_cast<size_t>(bytes_)});
      if (i > 0) std::memcpy(data, buffer_.data(), static_cast<size_t>(bytes_));
    }
  }

  LinearWeight weight(int64_t i) const {
    return {.spec = spec_, .data = buffer_.data() + i % copies_ * bytes_};
  }
  int64_t bytes() const { return bytes_; }

 private:
  LinearSpec spec_;
  int64_t bytes_;
  int64_t copies_ = 1;
  Buffer buffer_;
};

/// The thread's own time where it works alone, so that a busy machine does not count; else the clock's.
double seconds_now() {
  timespec now;
  clock_gettime(works_alone ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Best time of one call of `run(i)` over short rounds: others on the machine interrupt some, not all of
/// them.
template <class Run>
double best_seconds(const Run& run) {
  constexpr double kRoundSeconds = 2e-4, kTotalSeconds = 0.4;
  const double begin = seconds_now();
  double best = 1e30;
  int64_t i = 0;
  for (int round = 0; round < 5 || seconds_now() - begin < kTotalSeconds; ++round) {
    const double start = seconds_now();
    int64_t calls = 0;
    double seconds = 0;
    for (; seconds < kRoundSeconds; seconds = seconds_now() - start) {
      run(i++);
      ++calls;
    }
    best = std::min(best, seconds / static_cast<double>(calls));
  }
  return best;
}

/// Sum of a block, with the widest loads of the CPU.
#if defined(__x86_64__)
__attribute__((target_clones("default", "avx2", "avx512f")))
#endif
uint64_t
sum_words(const uint64_t* words, int64_t count) {
  uint64_t sums[32] = {};
  for (int64_t w = 0; w < count; w += 32) {
    for (int j = 0; j < 32; ++j) sums[j] += words[w + j];
  }
  uint64_t sum = 0;
  for (uint64_t s : sums) sum += s;
  return sum;
}

/// Sums a buffer beyond the caches, part by part.
class SummedBuffer {
 public:
  explicit SummedBuffer(int num_threads)
      : pool_(num_threads), buffer_(cpu_device().allocate(kCacheBytes, "buffer").value()) {
    std::memset(buffer_.data(), 1, static_cast<size_t>(kCacheBytes));
  }

  /// Bytes per second over the next half second.
  double bandwidth() {
    const double seconds = best_seconds([&](int64_t) {
      const std::byte* start = buffer_.data() + next_part_++ % (kCacheBytes / kPartBytes) * kPartBytes;
      pool_.run(kPartBytes / kTaskBytes, [&](int64_t task) {
        const auto* words = reinterpret_cast<const uint64_t*>(start + task * kTaskBytes);
        benchmark::DoNotOptimize(sum_words(words, kTaskBytes / 8));
      });
    });
    return static_cast<double>(kPartBytes) / seconds;
  }

 private:
  static constexpr int64_t kPartBytes = 4 << 20;  ///< Small enough to be summed between two interruptions.
  static constexpr int64_t kTaskBytes = 128 << 10;
  ThreadPool pool_;
  Buffer buffer_;
  int64_t next_part_ = 0;
};

void check_result(Ops& ops, const Matrices& matrices, const View& x, const LinearSpec& spec) {
  const int64_t rows = std::min<int64_t>(x.num_rows(), 3);
  std::vector<float> out(static_cast<size_t>(rows * spec.out)), expected(out.size());
  const LinearCall call[] = {
      {.out = View(out.data(), DType::kF32, {rows, spec.out}), .weight = matrices.weight(0)}};
  const LinearCall expected_call[] = {
      {.out = View(expected.data(), DType::kF32, {rows, spec.out}), .weight = matrices.weight(0)}};
  ops.linear(x.rows(0, rows), call);
  if (spec.out * spec.in > int64_t{4} << 20) return;  // the reference would take seconds
  make_reference_ops()->linear(x.rows(0, rows), expected_call);
  TF_CHECK(out == expected, "linear() differs from the reference");
}

void linear_case(benchmark::State& state, CpuIsa isa, const Shape& shape, const Format& format, int64_t rows,
                 int num_threads, SummedBuffer& summed) {
  const std::unique_ptr<Ops> ops = std::move(make_cpu_ops(num_threads, isa)).value();
  const LinearSpec spec = spec_of(shape, format);
  const Matrices matrices(spec, *ops);
  std::mt19937_64 random(2);
  std::vector<std::byte> x_bytes = random_floats(random, DType::kBF16, rows * spec.in);
  const View x(x_bytes.data(), DType::kBF16, {rows, spec.in});
  std::vector<float> out(static_cast<size_t>(rows * spec.out));
  check_result(*ops, matrices, x, spec);
  const double macs = static_cast<double>(rows * spec.out * spec.in);
  double best = 1e30, sum_bandwidth = 0;
  for (auto _ : state) {
    best = std::min(best, best_seconds([&](int64_t i) {
                      const LinearCall call[] = {{.out = View(out.data(), DType::kF32, {rows, spec.out}),
                                                  .weight = matrices.weight(i)}};
                      ops->linear(x, call);
                    }));
    // Alternating: a virtual machine's share of the memory changes within seconds.
    if (rows == 1) sum_bandwidth = std::max(sum_bandwidth, summed.bandwidth());
  }
  state.counters["us"] = best * 1e6;
  if (rows == 1) {
    const double bandwidth = static_cast<double>(matrices.bytes()) / best;
    state.counters["GB/s"] = bandwidth / 1e9;
    state.counters["sum_GB/s"] = sum_bandwidth / 1e9;
    state.counters["of_sum"] = bandwidth / sum_bandwidth;
  }
  state.counters["GMAC/s"] = macs / best / 1e9;
}

void register_cases(int num_threads, SummedBuffer& summed) {
  works_alone = num_threads == 1;
  const auto add = [](const std::string& name, auto function) {
    benchmark::RegisterBenchmark(name.c_str(), function)->Iterations(3)->Unit(benchmark::kMillisecond);
  };
  for (CpuIsa isa : supported_cpu_isas()) {
    for (const Format& format : kFormats) {
      for (const Shape& shape : kShapes) {
        for (int64_t rows : {1, 2, 4, 8, 16, 64, 512}) {
          const std::string name =
              fmt::format("{}/{}/{}/rows:{}", cpu_isa_name(isa), format.name, shape.name, rows);
          add(name, [=, &shape, &format, &summed](benchmark::State& state) {
            linear_case(state, isa, shape, format, rows, num_threads, summed);
          });
        }
      }
    }
  }
}

}  // namespace
}  // namespace tensorfold

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const int num_threads = argc > 1 ? std::atoi(argv[1]) : tensorfold::num_usable_cpus();
  tensorfold::SummedBuffer summed(num_threads);
  tensorfold::register_cases(num_threads, summed);
  benchmark::RunSpecifiedBenchmarks();
}
