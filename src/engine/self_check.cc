// See self_check.h. The inputs come from a counter, so a difference seen once is seen again.
#include "engine/self_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <span>

#include "base/bf16.h"
#include "base/hash.h"
#include "base/thread_pool.h"
#include "device/device.h"
#include "ops/ops.h"

namespace tensorfold {
namespace {

/// Memory that kernels may read: 64-byte aligned, zeroed.
class AlignedBytes {
 public:
  explicit AlignedBytes(int64_t size_bytes)
      : storage_(static_cast<size_t>(size_bytes) + 64),
        start_(storage_.data() + (64 - reinterpret_cast<uintptr_t>(storage_.data()) % 64) % 64),
        size_(static_cast<size_t>(size_bytes)) {}
  std::byte* data() { return start_; }
  std::span<std::byte> bytes() { return {start_, size_}; }

 private:
  std::vector<std::byte> storage_;
  std::byte* start_;
  size_t size_;
};

/// Values in (-1, 1) and words, from a counter.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(mix64(seed)) {}
  uint64_t word() { return mix64(state_ += 0x9e3779b97f4a7c15ull); }
  float value() { return static_cast<float>(static_cast<int64_t>(word() >> 40) - (1 << 23)) / (1 << 23); }
  void fill_words(std::span<std::byte> bytes) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(word());
  }
  /// Scales of MXFP4 blocks from 2^-7 to 1.
  void fill_e8m0(std::span<std::byte> bytes) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(120 + word() % 8);
  }
  void fill_bf16(std::span<std::byte> bytes, float scale) {
    for (size_t i = 0; i + 2 <= bytes.size(); i += 2) {
      const bf16 value = to_bf16(this->value() * scale);
      std::memcpy(bytes.data() + i, &value, 2);
    }
  }

 private:
  uint64_t state_;
};

/// Rows of one sequence in as many pages as they need, pages in reverse order.
struct Batch {
  std::vector<int32_t> positions;
  std::vector<int32_t> page_table;
  std::vector<SequenceRows> sequences;

  Batch(int64_t first_pos, int64_t num_rows) {
    for (int64_t i = 0; i < num_rows; ++i) positions.push_back(static_cast<int32_t>(first_pos + i));
    const int64_t num_pages = (first_pos + num_rows + kPageTokens - 1) / kPageTokens;
    for (int64_t page = num_pages; page > 0; --page) page_table.push_back(static_cast<int32_t>(page - 1));
    sequences = {
        {.first_row = 0, .num_rows = num_rows, .first_pos = first_pos, .page_table = page_table.data()}};
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  RowBatch rows() const { return {.positions = positions, .sequences = sequences}; }
};

using Outputs = std::vector<uint32_t>;  ///< Bits of results, in the order of the checks.

void add_outputs(Outputs& outputs, std::span<const float> values) {
  const size_t start = outputs.size();
  outputs.resize(start + values.size());
  std::memcpy(outputs.data() + start, values.data(), values.size_bytes());
}

void run_linear(Ops& ops, const LinearSpec& spec, int64_t num_rows, Outputs& outputs) {
  Random random(static_cast<uint64_t>(spec.in * 31 + spec.bits * 7 + spec.group_size));
  AlignedBytes weight(spec.out * spec.in * spec.bits / 8);
  const int64_t num_groups = spec.group_size == 0 ? 0 : spec.out * spec.in / spec.group_size;
  AlignedBytes scales(num_groups * 2), biases(num_groups * 2);
  if (spec.format == WeightFormat::kFloat)
    random.fill_bf16(weight.bytes(), 1.0f);
  else
    random.fill_words(weight.bytes());
  if (spec.format == WeightFormat::kMxfp4)
    random.fill_e8m0(scales.bytes());
  else
    random.fill_bf16(scales.bytes(), 0.1f);
  random.fill_bf16(biases.bytes(), 1.0f);
  AlignedBytes packed(ops.packed_bytes(spec));
  ops.pack(spec, {.weight = weight.bytes(), .scales = scales.bytes(), .biases = biases.bytes()},
           packed.bytes());

  AlignedBytes x(num_rows * spec.in * 2);
  random.fill_bf16(x.bytes(), 2.0f);
  std::vector<float> out(static_cast<size_t>(num_rows * spec.out));
  const Batch batch(0, num_rows);
  const LinearCall call{.out = View(out.data(), DType::kF32, {num_rows, spec.out}),
                        .weight = {.spec = spec, .data = packed.data(), .bias = nullptr}};
  ops.begin_pass(batch.rows());
  ops.linear(View(x.data(), DType::kBF16, {num_rows, spec.in}), std::span(&call, 1));
  if (ops.end_pass().ok()) add_outputs(outputs, out);
}

/// The last `num_rows` of `num_keys` positions attend to all before them.
void run_attention(Ops& ops, int64_t num_keys, int64_t num_rows, Outputs& outputs) {
  constexpr int64_t kHeads = 6, kKvHeads = 2, kHeadDim = 64;
  Random random(static_cast<uint64_t>(num_keys));
  const Batch all(0, num_keys), last(num_keys - num_rows, num_rows);
  const KvShape shape{.num_kv_heads = kKvHeads, .head_dim = kHeadDim};
  const int64_t page_bytes = ops.kv_page_bytes(shape);
  const int64_t num_pages = static_cast<int64_t>(all.page_table.size());
  AlignedBytes k_pages(page_bytes * num_pages), v_pages(page_bytes * num_pages);
  const KvPages pages{.shape = shape,
                      .k = k_pages.data(),
                      .v = v_pages.data(),
                      .page_stride_bytes = page_bytes,
                      .num_pages = num_pages};
  AlignedBytes k(num_keys * kKvHeads * kHeadDim * 2), v(num_keys * kKvHeads * kHeadDim * 2);
  AlignedBytes q(num_rows * kHeads * kHeadDim * 2), out(num_rows * kHeads * kHeadDim * 2);
  random.fill_bf16(k.bytes(), 2.0f);
  random.fill_bf16(v.bytes(), 1.0f);
  random.fill_bf16(q.bytes(), 2.0f);

  ops.begin_pass(all.rows());
  ops.append_kv(pages, View(k.data(), DType::kBF16, {num_keys, kKvHeads * kHeadDim}),
                View(v.data(), DType::kBF16, {num_keys, kKvHeads * kHeadDim}), all.rows());
  if (!ops.end_pass().ok()) return;
  ops.begin_pass(last.rows());
  ops.attention({.out = View(out.data(), DType::kBF16, {num_rows, kHeads * kHeadDim}),
                 .q = View(q.data(), DType::kBF16, {num_rows, kHeads * kHeadDim}),
                 .pages = &pages,
                 .rows = last.rows(),
                 .num_heads = kHeads,
                 .scale = 0.125f});
  if (!ops.end_pass().ok()) return;
  for (size_t i = 0; i < out.bytes().size(); i += 2) {
    uint16_t bits;
    std::memcpy(&bits, out.data() + i, 2);
    outputs.push_back(bits);
  }
}

Outputs run_checks(Ops& ops) {
  const LinearSpec specs[] = {
      {.out = 96, .in = 320, .format = WeightFormat::kFloat, .dtype = DType::kBF16, .bits = 16},
      {.out = 80,
       .in = 576,
       .format = WeightFormat::kAffine,
       .dtype = DType::kBF16,
       .bits = 4,
       .group_size = 64},
      {.out = 64,
       .in = 576,
       .format = WeightFormat::kAffine,
       .dtype = DType::kBF16,
       .bits = 4,
       .group_size = 32},
      {.out = 64,
       .in = 512,
       .format = WeightFormat::kAffine,
       .dtype = DType::kBF16,
       .bits = 8,
       .group_size = 64},
      {.out = 72,
       .in = 352,
       .format = WeightFormat::kMxfp4,
       .dtype = DType::kBF16,
       .bits = 4,
       .group_size = 32},
  };
  Outputs outputs;
  for (const LinearSpec& spec : specs)
    for (const int64_t num_rows : {1, 3, 40}) run_linear(ops, spec, num_rows, outputs);
  run_attention(ops, 200, 1, outputs);
  run_attention(ops, 333, 50, outputs);
  return outputs;
}

IsaCheck check_isa(CpuIsa isa, const Outputs& expected) {
  IsaCheck check{.isa = std::string(cpu_isa_name(isa)), .arithmetic_id = {}, .status = {}};
  Result<std::unique_ptr<Ops>> ops = make_cpu_ops(0, isa);
  if (!ops.ok()) {
    check.status = ops.status();
    return check;
  }
  check.arithmetic_id = (*ops)->info().arithmetic_id;
  const Outputs actual = run_checks(**ops);
  check.num_outputs = static_cast<int64_t>(expected.size());
  if (actual.size() != expected.size())
    check.status =
        make_error(StatusCode::kInternal, "the {} backend failed in the middle of the check", check.isa);
  for (size_t i = 0; i < std::min(actual.size(), expected.size()); ++i)
    check.num_different += actual[i] != expected[i] ? 1 : 0;
  return check;
}

std::string cpu_model_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(std::min(line.find(':') + 2, line.size()));
  return "unknown";
}

}  // namespace

std::vector<IsaCheck> check_cpu_bits() {
  const std::unique_ptr<Ops> reference = make_reference_ops();
  const Outputs expected = run_checks(*reference);
  std::vector<IsaCheck> checks;
  for (const CpuIsa isa : supported_cpu_isas()) checks.push_back(check_isa(isa, expected));
  return checks;
}

MachineInfo describe_machine() {
  return {.cpu = cpu_model_name(),
          .num_cpus = num_usable_cpus(),
          .total_bytes = cpu_device().total_bytes(),
          .free_bytes = cpu_device().free_bytes()};
}

}  // namespace tensorfold
