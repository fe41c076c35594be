// The small ops of the cpu backend and sampling: microseconds a call, for one row and for a prompt.
//
//   ops_small_bench [THREADS] --benchmark_filter=avx512-bf16/sample
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "base/bf16.h"
#include "base/hash.h"
#include "bench/bench_support.h"
#include "ops/ops.h"

namespace tensorfold {
namespace {

/// Roughly normal numbers of deviation 1.
std::vector<float> normals(int64_t n) {
  std::vector<float> x(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (uint64_t k = 0; k < 4; ++k) sum += static_cast<double>(mix64(i * 4 + k + 1) >> 11) * 0x1p-53;
    x[i] = static_cast<float>((sum - 2) * 1.7320508);
  }
  return x;
}

View f32(std::vector<float>& data, int64_t rows) {
  return View(data.data(), DType::kF32, {rows, static_cast<int64_t>(data.size()) / rows});
}
View b16(std::vector<bf16>& data, int64_t rows) {
  return View(data.data(), DType::kBF16, {rows, static_cast<int64_t>(data.size()) / rows});
}

using Case = std::function<void(benchmark::State& state, Ops& ops)>;

void time(benchmark::State& state, Ops& ops, const std::function<void()>& call) {
  for (auto _ : state) {
    state.counters["us"] = 1e6 * best_seconds_of(ops.info().num_threads, [&](int64_t) { call(); });
  }
}

Case rms_norm(int64_t rows, int64_t n) {
  return [=](benchmark::State& state, Ops& ops) {
    std::vector<float> x = normals(rows * n), weight = normals(n);
    std::vector<bf16> out(rows * n);
    time(state, ops, [&] { ops.rms_norm(b16(out, rows), f32(x, rows), f32(weight, 1), {}); });
  };
}

Case silu_mul(int64_t rows, int64_t n) {
  return [=](benchmark::State& state, Ops& ops) {
    std::vector<float> gate = normals(rows * n), up = normals(rows * n);
    std::vector<bf16> out(rows * n);
    time(state, ops, [&] { ops.mlp_activation(b16(out, rows), f32(gate, rows), f32(up, rows), {}); });
  };
}

Case rope_table(int64_t rows, int64_t half) {
  return [=](benchmark::State& state, Ops& ops) {
    std::vector<float> cos(rows * half), sin(rows * half);
    std::vector<int32_t> positions(rows);
    for (int64_t t = 0; t < rows; ++t) positions[t] = static_cast<int32_t>(1000 + t);
    std::vector<double> inv_freq(half);
    for (int64_t j = 0; j < half; ++j)
      inv_freq[j] = std::pow(1e4, -static_cast<double>(j) / static_cast<double>(half));
    time(state, ops, [&] { ops.rope_table(f32(cos, rows), f32(sin, rows), positions, inv_freq, 1.0); });
  };
}

Case qk_norm_rope(int64_t rows, bool has_norm) {
  return [=](benchmark::State& state, Ops& ops) {
    constexpr int64_t kHeads = 9, kKvHeads = 3, kHeadDim = 64;
    std::vector<float> q = normals(rows * kHeads * kHeadDim), k = normals(rows * kKvHeads * kHeadDim);
    std::vector<float> norm = normals(kHeadDim), cos = normals(rows * 32), sin = normals(rows * 32);
    std::vector<bf16> q_out(q.size()), k_out(k.size());
    time(state, ops, [&] {
      ops.qk_norm_rope({.q_out = b16(q_out, rows),
                        .k_out = b16(k_out, rows),
                        .q = f32(q, rows),
                        .k = f32(k, rows),
                        .q_norm = has_norm ? f32(norm, 1) : View(),
                        .k_norm = has_norm ? f32(norm, 1) : View(),
                        .cos = f32(cos, rows),
                        .sin = f32(sin, rows),
                        .head_dim = kHeadDim});
    });
  };
}

Case append_kv(int64_t rows) {
  return [=](benchmark::State& state, Ops& ops) {
    const KvShape shape{3, 64, DType::kBF16};
    const int64_t page_bytes = ops.kv_page_bytes(shape), num_pages = rows / kPageTokens + 1;
    std::vector<bf16> k(rows * 192);
    std::vector<float> v = normals(rows * 192);
    std::vector<std::byte> memory(2 * num_pages * page_bytes);
    const KvPages pages{.shape = shape,
                        .k = memory.data(),
                        .v = memory.data() + page_bytes,
                        .page_stride_bytes = 2 * page_bytes,
                        .num_pages = num_pages};
    std::vector<int32_t> page_table(num_pages), positions(rows);
    for (int64_t i = 0; i < num_pages; ++i) page_table[i] = static_cast<int32_t>(i);
    const SequenceRows sequence{0, rows, 0, page_table.data()};
    time(state, ops, [&] { ops.append_kv(pages, b16(k, rows), f32(v, rows), {positions, {&sequence, 1}}); });
  };
}

Case route(int64_t rows, int64_t num_experts, int64_t k) {
  return [=](benchmark::State& state, Ops& ops) {
    std::vector<float> logits = normals(rows * num_experts), weights(rows * k);
    std::vector<int32_t> ids(rows * k);
    time(state, ops, [&] {
      ops.route({.expert_ids = View(ids.data(), DType::kI32, {rows, k}),
                 .expert_weights = f32(weights, rows),
                 .router_logits = f32(logits, rows),
                 .normalize = true});
    });
  };
}

/// One sequence's rows in a pass, going on after others, and the states of as many layers as a model would go
/// through before it comes back to the first: one row then finds its state in no near cache.
class Recurrence {
 public:
  Recurrence(const RecurrentShape& shape, int64_t rows) : positions_(rows) {
    const int64_t conv_floats = (shape.conv_floats() + 15) / 16 * 16;
    const int64_t slot_floats = (conv_floats + shape.matrix_floats() + 15) / 16 * 16;
    const int64_t num_slots = rows > 1 ? 1 : std::max<int64_t>(1, (int64_t{192} << 20) / (4 * slot_floats));
    memory_.resize(slot_floats * num_slots + 16);
    auto* start = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(memory_.data()) + 63) / 64 * 64);
    const std::vector<float> slot = normals(slot_floats);
    for (int64_t s = 0; s < num_slots; ++s) std::copy(slot.begin(), slot.end(), start + s * slot_floats);
    states_ = {.shape = shape,
               .conv = reinterpret_cast<std::byte*>(start),
               .matrix = reinterpret_cast<std::byte*>(start + conv_floats),
               .slot_stride_bytes = 4 * slot_floats,
               .num_slots = num_slots};
    sequence_ = {.num_rows = rows, .first_pos = 1000, .state_slot = 0};
  }
  const RecurrentStates* states() const { return &states_; }
  /// The rows, with another slot each time.
  RowBatch rows() {
    sequence_.state_slot = static_cast<int32_t>((sequence_.state_slot + 1) % states_.num_slots);
    return {positions_, {&sequence_, 1}};
  }
  /// Nanoseconds a row; for one row, the matrices read and written as a share of plain reads.
  void count(benchmark::State& state, Ops& ops) const {
    const double us = state.counters["us"],
                 matrix_bytes = static_cast<double>(4 * states_.shape.matrix_floats());
    state.counters["ns_per_row"] = 1e3 * us / static_cast<double>(positions_.size());
    if (positions_.size() > 1) return;
    ThreadPool pool(ops.info().num_threads);
    const double reads = sum_bytes_per_second(pool, int64_t{192} << 20, int64_t{3} << 20);
    state.counters["gb_per_s"] = 1e-3 * 2 * matrix_bytes / us;
    state.counters["of_reads"] = 1e6 * 2 * matrix_bytes / us / reads;
  }

 private:
  std::vector<float> memory_;
  std::vector<int32_t> positions_;
  SequenceRows sequence_;
  RecurrentStates states_;
};

Case causal_conv(int64_t rows, int64_t channels) {
  return [=](benchmark::State& state, Ops& ops) {
    Recurrence recurrence({.conv_channels = channels, .conv_taps = 4}, rows);
    std::vector<float> x = normals(rows * channels), weight = normals(4 * channels), out(rows * channels);
    time(state, ops, [&] {
      ops.causal_conv({.out = f32(out, rows),
                       .x = f32(x, rows),
                       .weight = f32(weight, 4),
                       .bias = {},
                       .states = recurrence.states(),
                       .rows = recurrence.rows()});
    });
  };
}

/// Heads of 128x128.
Case gated_delta(int64_t rows, int64_t key_heads, int64_t value_heads) {
  return [=](benchmark::State& state, Ops& ops) {
    constexpr int64_t kDim = 128;
    Recurrence recurrence({.num_heads = value_heads, .key_dim = kDim, .value_dim = kDim}, rows);
    std::vector<float> q = normals(rows * key_heads * kDim), k = normals(rows * key_heads * kDim);
    std::vector<float> v = normals(rows * value_heads * kDim), a = normals(rows * value_heads);
    std::vector<float> b = normals(rows * value_heads), a_log = normals(value_heads),
                       dt_bias = normals(value_heads);
    std::vector<float> out(v.size());
    time(state, ops, [&] {
      ops.gated_delta({.out = f32(out, rows),
                       .q = f32(q, rows),
                       .k = f32(k, rows),
                       .v = f32(v, rows),
                       .a = f32(a, rows),
                       .b = f32(b, rows),
                       .a_log = f32(a_log, 1),
                       .dt_bias = f32(dt_bias, 1),
                       .states = recurrence.states(),
                       .rows = recurrence.rows()});
    });
    recurrence.count(state, ops);
  };
}

Case mamba2(int64_t rows, int64_t heads, int64_t groups) {
  return [=](benchmark::State& state, Ops& ops) {
    constexpr int64_t kHeadSize = 64, kStateSize = 128;
    Recurrence recurrence({.num_heads = heads, .key_dim = kStateSize, .value_dim = kHeadSize}, rows);
    std::vector<float> x = normals(rows * heads * kHeadSize), b = normals(rows * groups * kStateSize);
    std::vector<float> c = normals(rows * groups * kStateSize), dt = normals(rows * heads), out(x.size());
    std::vector<float> a_log = normals(heads), d = normals(heads), dt_bias = normals(heads);
    time(state, ops, [&] {
      ops.mamba2({.out = f32(out, rows),
                  .x = f32(x, rows),
                  .b = f32(b, rows),
                  .c = f32(c, rows),
                  .dt = f32(dt, rows),
                  .a_log = f32(a_log, 1),
                  .d = f32(d, 1),
                  .dt_bias = f32(dt_bias, 1),
                  .states = recurrence.states(),
                  .rows = recurrence.rows()});
    });
    recurrence.count(state, ops);
  };
}

Case sample(int64_t vocab_size, float spread, SampleRow row) {
  return [=](benchmark::State& state, Ops& ops) {
    std::vector<float> logits = normals(vocab_size);
    for (float& x : logits) x *= spread;
    int32_t token = 0;
    SampleRow next = row;
    time(state, ops, [&] {
      ++next.pos;
      ops.sample({&token, 1}, f32(logits, 1), {&next, 1});
    });
  };
}

void register_cases(int num_threads) {
  const auto add = [=](CpuIsa isa, const std::string& name, const Case& run) {
    benchmark::RegisterBenchmark(fmt::format("{}/{}", cpu_isa_name(isa), name).c_str(),
                                 [=](benchmark::State& state) {
                                   const auto ops = std::move(make_cpu_ops(num_threads, isa)).value();
                                   run(state, *ops);
                                 })
        ->Iterations(1)
        ->Unit(benchmark::kMillisecond);
  };
  for (const CpuIsa isa : supported_cpu_isas()) {
    for (const int64_t rows : {1, 512}) {
      add(isa, fmt::format("rms_norm/576/rows:{}", rows), rms_norm(rows, 576));
      add(isa, fmt::format("silu_mul/1536/rows:{}", rows), silu_mul(rows, 1536));
      add(isa, fmt::format("rope_table/32/rows:{}", rows), rope_table(rows, 32));
      add(isa, fmt::format("qk_norm_rope/h9_k3_d64/rows:{}", rows), qk_norm_rope(rows, false));
      add(isa, fmt::format("qk_norm_rope/norm_h9_k3_d64/rows:{}", rows), qk_norm_rope(rows, true));
      add(isa, fmt::format("append_kv/k3_d64/rows:{}", rows), append_kv(rows));
      add(isa, fmt::format("route/8_of_128/rows:{}", rows), route(rows, 128, 8));
      add(isa, fmt::format("route/8_of_256/rows:{}", rows), route(rows, 256, 8));
      add(isa, fmt::format("route/10_of_512/rows:{}", rows), route(rows, 512, 10));
    }
    for (const int64_t rows : {1, 128, 2048}) {
      add(isa, fmt::format("causal_conv/10240/rows:{}", rows), causal_conv(rows, 10240));
      add(isa, fmt::format("gated_delta/k16_v48_128x128/rows:{}", rows), gated_delta(rows, 16, 48));
      add(isa, fmt::format("mamba2/h64_g8_128x64/rows:{}", rows), mamba2(rows, 64, 8));
    }
    for (const int64_t vocab_size : {49152, 250000}) {
      for (const float spread : {3.0f, 0.1f}) {  // logits as of a model; nearly flat
        const std::string prefix = fmt::format("sample/{}/{}", vocab_size, spread > 1 ? "peaked" : "flat");
        add(isa, prefix + "/greedy", sample(vocab_size, spread, {.temperature = 0}));
        add(isa, prefix + "/no_cut", sample(vocab_size, spread, {}));
        add(isa, prefix + "/top_p_0.9", sample(vocab_size, spread, {.top_p = 0.9f}));
        add(isa, prefix + "/top_k_40", sample(vocab_size, spread, {.top_k = 40}));
        add(isa, prefix + "/top_k_40_top_p_0.9", sample(vocab_size, spread, {.top_k = 40, .top_p = 0.9f}));
        add(isa, prefix + "/top_k_20000", sample(vocab_size, spread, {.top_k = 20000}));
        add(isa, prefix + "/min_p_0.05", sample(vocab_size, spread, {.min_p = 0.05f}));
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
