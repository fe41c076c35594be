// attention() of the cpu backend: for decoding, bytes of keys and values per second against what the same threads reach
// when they sum a buffer of that size; for prompts, multiply-adds per second. One row is compared with the reference
// first.
//
//   ops_attention_bench [THREADS] --benchmark_filter=avx512-bf16/smollm2
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/bf16.h"
#include "base/hash.h"
#include "bench/bench_support.h"
#include "ops/ops.h"

namespace tensorfold {
namespace {

struct Shape {
  const char* name;
  int64_t num_heads, num_kv_heads, head_dim;
};
constexpr Shape kShapes[] = {
    {"smollm2_h9_k3_d64", 9, 3, 64}, {"qwen3_h32_k8_d128", 32, 8, 128}, {"mha_h8_k8_d64", 8, 8, 64}};

constexpr int64_t kCacheBytes = int64_t{96} << 20;  ///< Pages together: beyond the L3 cache.

bf16 random_bf16(uint64_t i) {
  const double unit = static_cast<double>(mix64(i) >> 11) * 0x1p-53;
  return to_bf16(static_cast<float>(2.0 * unit - 1.0));
}

/// As many layers of `context` cached positions as it takes that none is in a cache when its turn comes.
class Layers {
 public:
  Layers(Ops& ops, const Shape& shape, int64_t context) : shape_{shape.num_kv_heads, shape.head_dim, DType::kBF16} {
    const int64_t num_pages = (context + kPageTokens - 1) / kPageTokens, page_bytes = ops.kv_page_bytes(shape_);
    num_layers_ = std::max<int64_t>(1, kCacheBytes / (2 * page_bytes * num_pages));
    buffer_ = ops.device().allocate(num_layers_ * num_pages * 2 * page_bytes, "benchmark pages").value();
    for (int64_t i = 0; i < buffer_.size_bytes() / 2; ++i) {
      reinterpret_cast<bf16*>(buffer_.data())[i] = random_bf16(static_cast<uint64_t>(i));
    }
    for (int64_t i = 0; i < num_layers_; ++i) {
      layers_.push_back({.shape = shape_,
                         .k = buffer_.data() + i * 2 * page_bytes,
                         .v = buffer_.data() + i * 2 * page_bytes + page_bytes,
                         .page_stride_bytes = num_layers_ * 2 * page_bytes,
                         .num_pages = num_pages});
    }
    for (int64_t i = 0; i < num_pages; ++i) page_table_.push_back(static_cast<int32_t>((i * 7 + 3) % num_pages));
    if (num_pages % 7 == 0) {
      for (int64_t i = 0; i < num_pages; ++i) page_table_[i] = static_cast<int32_t>(num_pages - 1 - i);
    }
  }

  const KvPages& layer(int64_t i) const { return layers_[i % num_layers_]; }
  const int32_t* page_table() const { return page_table_.data(); }

 private:
  KvShape shape_;
  int64_t num_layers_ = 0;
  Buffer buffer_;
  std::vector<KvPages> layers_;
  std::vector<int32_t> page_table_;
};

/// Queries and outputs of the last `num_rows` positions of a context.
struct Rows {
  Rows(const Shape& shape, const Layers& layers, int64_t context, int64_t num_rows)
      : q(num_rows * shape.num_heads * shape.head_dim), out(q.size()), positions(num_rows),
        sequence{0, num_rows, context - num_rows, layers.page_table()}, shape(shape) {
    for (size_t i = 0; i < q.size(); ++i) q[i] = random_bf16(i + 1000000);
    for (int64_t i = 0; i < num_rows; ++i) positions[i] = static_cast<int32_t>(sequence.first_pos + i);
  }
  AttentionCall call(const KvPages& pages) {
    const int64_t columns = shape.num_heads * shape.head_dim, num_rows = sequence.num_rows;
    return {.out = View(out.data(), DType::kBF16, {num_rows, columns}),
            .q = View(q.data(), DType::kBF16, {num_rows, columns}),
            .pages = &pages,
            .rows = {positions, {&sequence, 1}},
            .num_heads = shape.num_heads,
            .scale = 0.125f};
  }

  std::vector<bf16> q, out;
  std::vector<int32_t> positions;
  SequenceRows sequence;
  Shape shape;
};

void check_result(Ops& ops, const Shape& shape, const Layers& layers, int64_t context) {
  Rows actual(shape, layers, context, 1), expected(shape, layers, context, 1);
  ops.attention(actual.call(layers.layer(0)));
  make_reference_ops()->attention(expected.call(layers.layer(0)));
  TF_CHECK(actual.out == expected.out, "attention() differs from the reference");
}

void attention_case(benchmark::State& state, CpuIsa isa, const Shape& shape, int64_t context, int64_t num_rows,
                    int num_threads) {
  const std::unique_ptr<Ops> ops = std::move(make_cpu_ops(num_threads, isa)).value();
  const Layers layers(*ops, shape, context);
  if (context <= 2048) check_result(*ops, shape, layers, context);
  Rows rows(shape, layers, context, num_rows);
  double best = 1e30;
  for (auto _ : state) {
    best = std::min(best, best_seconds_of(num_threads, [&](int64_t i) {
      ops->attention(rows.call(layers.layer(i)));
    }));
  }
  state.counters["us"] = best * 1e6;
  const double bytes = static_cast<double>(2 * context * shape.num_kv_heads * shape.head_dim * 2);
  if (num_rows == 1) {
    ThreadPool pool(num_threads);
    state.counters["GB/s"] = bytes / best / 1e9;
    state.counters["of_sum"] = bytes / best / sum_bytes_per_second(pool, kCacheBytes, static_cast<int64_t>(bytes));
  }
  const double keys_per_row = static_cast<double>(context) - 0.5 * static_cast<double>(num_rows - 1);
  const double keys = static_cast<double>(num_rows) * keys_per_row;
  state.counters["GMAC/s"] = 2 * keys * static_cast<double>(shape.num_heads * shape.head_dim) / best / 1e9;
}

void register_cases(int num_threads) {
  for (const CpuIsa isa : supported_cpu_isas()) {
    for (const Shape& shape : kShapes) {
      for (const auto& [context, rows] : {std::pair<int64_t, int64_t>{128, 1}, {2048, 1}, {32768, 1}, {2048, 4},
                                          {128, 128}, {512, 512}, {4096, 512}}) {
        const std::string name = fmt::format("{}/{}/context:{}/rows:{}", cpu_isa_name(isa), shape.name, context, rows);
        benchmark::RegisterBenchmark(name.c_str(),
                                     [=, &shape, context = context, rows = rows](benchmark::State& state) {
                                       attention_case(state, isa, shape, context, rows, num_threads);
                                     })
            ->Iterations(1)
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
}

}  // namespace
}  // namespace tensorfold

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  tensorfold::register_cases(argc > 1 ? std::atoi(argv[1]) : tensorfold::num_usable_cpus());
  benchmark::RunSpecifiedBenchmarks();
}
