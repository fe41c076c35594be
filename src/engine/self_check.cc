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
#include "base/check.h"
#include "base/hash.h"
#include "base/thread_pool.h"
#include "device/cuda_device.h"
#include "device/device.h"
#include "ops/ops.h"

namespace tensorfold {
namespace {

using Bytes = std::vector<std::byte>;

/// Host bytes as ops read them: on their device.
Result<Buffer> upload(Ops& ops, const Bytes& bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  TF_ASSIGN_OR_RETURN(Buffer buffer, ops.device().allocate(size, "inputs of the self-check"));
  TF_RETURN_IF_ERROR(ops.device().copy_to_device(buffer.data(), bytes.data(), size));
  return buffer;
}

/// Memory for results, zeroed.
Result<Buffer> allocate_zeros(Ops& ops, int64_t size_bytes) {
  TF_ASSIGN_OR_RETURN(Buffer buffer, ops.device().allocate(size_bytes, "results of the self-check"));
  TF_RETURN_IF_ERROR(ops.device().zero(buffer.data(), size_bytes));
  return buffer;
}

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

/// Rows of one sequence of `length` positions, whose pages lie in reverse order.
struct Batch {
  std::vector<int32_t> positions;
  std::vector<int32_t> page_table;
  std::vector<SequenceRows> sequences;

  Batch(int64_t first_pos, int64_t num_rows, int64_t length) {
    for (int64_t i = 0; i < num_rows; ++i) positions.push_back(static_cast<int32_t>(first_pos + i));
    const int64_t num_pages = (length + kPageTokens - 1) / kPageTokens;
    for (int64_t page = num_pages; page > 0; --page) page_table.push_back(static_cast<int32_t>(page - 1));
    sequences = {
        {.first_row = 0, .num_rows = num_rows, .first_pos = first_pos, .page_table = page_table.data()}};
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  RowBatch rows() const { return {.positions = positions, .sequences = sequences}; }
};

using Outputs = std::vector<uint32_t>;  ///< Bits of results, in the order of the checks.

/// Appends the elements of a result: 4 bytes each, or 2.
Status add_outputs(Ops& ops, const Buffer& results, int64_t size_bytes, int64_t element_bytes, Outputs& outputs) {
  Bytes bytes(static_cast<size_t>(size_bytes));
  TF_RETURN_IF_ERROR(ops.device().copy_to_host(bytes.data(), results.data(), size_bytes));
  for (int64_t at = 0; at < size_bytes; at += element_bytes) {
    uint32_t bits = 0;
    std::memcpy(&bits, bytes.data() + at, element_bytes);
    outputs.push_back(bits);
  }
  return {};
}

/// One matrix and rows for it, on the device.
class LinearCheck {
 public:
  static Result<LinearCheck> create(Ops& ops, const LinearSpec& spec, int64_t num_rows) {
    Random random(static_cast<uint64_t>(spec.in * 31 + spec.bits * 7 + spec.group_size));
    const int64_t num_groups = spec.group_size == 0 ? 0 : spec.out * spec.in / spec.group_size;
    Bytes weight(spec.out * spec.in * spec.bits / 8), scales(num_groups * 2), biases(num_groups * 2);
    if (spec.format == WeightFormat::kFloat)
      random.fill_bf16(weight, 1.0f);
    else
      random.fill_words(weight);
    if (spec.format == WeightFormat::kMxfp4)
      random.fill_e8m0(scales);
    else
      random.fill_bf16(scales, 0.1f);
    random.fill_bf16(biases, 1.0f);
    Bytes packed(ops.packed_bytes(spec));
    ops.pack(spec, {.weight = weight, .scales = scales, .biases = biases}, packed);
    Bytes x(num_rows * spec.in * 2);
    random.fill_bf16(x, 2.0f);

    LinearCheck check(ops, spec);
    TF_ASSIGN_OR_RETURN(check.packed_, upload(ops, packed));
    TF_ASSIGN_OR_RETURN(check.x_, upload(ops, x));
    TF_ASSIGN_OR_RETURN(check.out_, allocate_zeros(ops, num_rows * spec.out * 4));
    return check;
  }

  /// The products of rows [first, first + count).
  Status run(int64_t first, int64_t count, Outputs& outputs) {
    const Batch batch(first, count, first + count);
    const LinearCall call{.out = View(out_.data(), DType::kF32, {count, spec_.out}),
                          .weight = {.spec = spec_, .data = packed_.data(), .bias = nullptr}};
    ops_->begin_pass(batch.rows());
    ops_->linear(View(x_.data() + first * spec_.in * 2, DType::kBF16, {count, spec_.in}), std::span(&call, 1));
    TF_RETURN_IF_ERROR(ops_->end_pass());
    return add_outputs(*ops_, out_, count * spec_.out * 4, 4, outputs);
  }

 private:
  LinearCheck(Ops& ops, const LinearSpec& spec) : ops_(&ops), spec_(spec) {}
  Ops* ops_;
  LinearSpec spec_;
  Buffer packed_, x_, out_;
};

/// A cache of `num_keys` positions, and queries for each.
class AttentionCheck {
 public:
  static Result<AttentionCheck> create(Ops& ops, int64_t num_keys) {
    AttentionCheck check(ops, num_keys);
    Random random(static_cast<uint64_t>(num_keys));
    Bytes k(num_keys * kKvHeads * kHeadDim * 2), v(num_keys * kKvHeads * kHeadDim * 2);
    Bytes q(num_keys * kHeads * kHeadDim * 2);
    random.fill_bf16(k, 2.0f);
    random.fill_bf16(v, 1.0f);
    random.fill_bf16(q, 2.0f);
    const Batch all(0, num_keys, num_keys);
    const int64_t page_bytes = ops.kv_page_bytes(kShape), num_pages = std::ssize(all.page_table);
    TF_ASSIGN_OR_RETURN(check.memory_, allocate_zeros(ops, 2 * page_bytes * num_pages));
    TF_ASSIGN_OR_RETURN(check.q_, upload(ops, q));
    TF_ASSIGN_OR_RETURN(check.out_, allocate_zeros(ops, std::ssize(q)));
    TF_ASSIGN_OR_RETURN(const Buffer device_k, upload(ops, k));
    TF_ASSIGN_OR_RETURN(const Buffer device_v, upload(ops, v));
    check.pages_ = {.shape = kShape,
                    .k = check.memory_.data(),
                    .v = check.memory_.data() + page_bytes * num_pages,
                    .page_stride_bytes = page_bytes,
                    .num_pages = num_pages};
    ops.begin_pass(all.rows());
    ops.append_kv(check.pages_, View(device_k.data(), DType::kBF16, {num_keys, kKvHeads * kHeadDim}),
                  View(device_v.data(), DType::kBF16, {num_keys, kKvHeads * kHeadDim}), all.rows());
    TF_RETURN_IF_ERROR(ops.end_pass());
    return check;
  }

  /// The rows at positions [first, first + count).
  Status run(int64_t first, int64_t count, Outputs& outputs) {
    constexpr int64_t kColumns = kHeads * kHeadDim;
    const Batch batch(first, count, num_keys_);
    ops_->begin_pass(batch.rows());
    ops_->attention({.out = View(out_.data(), DType::kBF16, {count, kColumns}),
                     .q = View(q_.data() + first * kColumns * 2, DType::kBF16, {count, kColumns}),
                     .pages = &pages_,
                     .rows = batch.rows(),
                     .num_heads = kHeads,
                     .scale = 0.125f});
    TF_RETURN_IF_ERROR(ops_->end_pass());
    return add_outputs(*ops_, out_, count * kColumns * 2, 2, outputs);
  }

 private:
  static constexpr int64_t kHeads = 6, kKvHeads = 2, kHeadDim = 64;
  static constexpr KvShape kShape{.num_kv_heads = kKvHeads, .head_dim = kHeadDim};
  AttentionCheck(Ops& ops, int64_t num_keys) : ops_(&ops), num_keys_(num_keys) {}
  Ops* ops_;
  int64_t num_keys_;
  KvPages pages_;
  Buffer memory_, q_, out_;
};

const LinearSpec kSpecs[] = {
    {.out = 96, .in = 320, .format = WeightFormat::kFloat, .dtype = DType::kBF16, .bits = 16},
    {.out = 80, .in = 576, .format = WeightFormat::kAffine, .dtype = DType::kBF16, .bits = 4, .group_size = 64},
    {.out = 64, .in = 576, .format = WeightFormat::kAffine, .dtype = DType::kBF16, .bits = 4, .group_size = 32},
    {.out = 64, .in = 512, .format = WeightFormat::kAffine, .dtype = DType::kBF16, .bits = 8, .group_size = 64},
    {.out = 72, .in = 352, .format = WeightFormat::kMxfp4, .dtype = DType::kBF16, .bits = 4, .group_size = 32},
};

Result<Outputs> run_checks(Ops& ops) {
  Outputs outputs;
  for (const LinearSpec& spec : kSpecs) {
    TF_ASSIGN_OR_RETURN(LinearCheck check, LinearCheck::create(ops, spec, 40));
    for (const int64_t num_rows : {1, 3, 40}) TF_RETURN_IF_ERROR(check.run(0, num_rows, outputs));
  }
  for (const auto& [num_keys, num_rows] : {std::pair<int64_t, int64_t>{200, 1}, {333, 50}}) {
    TF_ASSIGN_OR_RETURN(AttentionCheck check, AttentionCheck::create(ops, num_keys));
    TF_RETURN_IF_ERROR(check.run(num_keys - num_rows, num_rows, outputs));
  }
  return outputs;
}

/// Runs rows [0, num_rows) at once and in passes of other sizes, and counts what differs.
template <class Check>
Status compare_passes(std::string_view name, Check check, int64_t num_rows, RowCheck& total) {
  RowCheck result;
  Outputs at_once;
  TF_RETURN_IF_ERROR(check.run(0, num_rows, at_once));
  for (const int64_t count : {1, 2, 8, 17, 130}) {
    const int64_t step = std::max<int64_t>(count, num_rows / 8);
    const int64_t row_size = std::ssize(at_once) / num_rows;
    for (int64_t first = 0; first + count <= num_rows; first += step) {
      Outputs part;
      TF_RETURN_IF_ERROR(check.run(first, count, part));
      result.num_outputs += std::ssize(part);
      for (int64_t i = 0; i < std::ssize(part); ++i)
        result.num_different += part[i] != at_once[first * row_size + i] ? 1 : 0;
    }
  }
  total.num_outputs += result.num_outputs;
  total.num_different += result.num_different;
  if (result.num_different > 0) {
    total.differing += fmt::format("{}{}: {} of {}", total.differing.empty() ? "" : ", ", name, result.num_different,
                                   result.num_outputs);
  }
  return {};
}

IsaCheck check_isa(CpuIsa isa, const Outputs& expected) {
  IsaCheck check{.isa = std::string(cpu_isa_name(isa)), .arithmetic_id = {}, .status = {}};
  Result<std::unique_ptr<Ops>> ops = make_cpu_ops(0, isa);
  if (!ops.ok()) {
    check.status = ops.status();
    return check;
  }
  check.arithmetic_id = (*ops)->info().arithmetic_id;
  const Result<Outputs> actual = run_checks(**ops);
  if (!actual.ok()) {
    check.status = actual.status();
    return check;
  }
  check.num_outputs = static_cast<int64_t>(expected.size());
  for (size_t i = 0; i < expected.size(); ++i) check.num_different += (*actual)[i] != expected[i] ? 1 : 0;
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
  const Result<Outputs> expected = run_checks(*reference);
  TF_CHECK(expected.ok(), "the definition runs everywhere");
  std::vector<IsaCheck> checks;
  for (const CpuIsa isa : supported_cpu_isas()) checks.push_back(check_isa(isa, *expected));
  return checks;
}

Result<RowCheck> check_rows(Ops& ops) {
  RowCheck result;
  constexpr int64_t kRows = 300;
  for (const LinearSpec& spec : kSpecs) {
    TF_ASSIGN_OR_RETURN(LinearCheck check, LinearCheck::create(ops, spec, kRows));
    TF_RETURN_IF_ERROR(compare_passes("linear " + to_string(spec), std::move(check), kRows, result));
  }
  TF_ASSIGN_OR_RETURN(AttentionCheck check, AttentionCheck::create(ops, kRows));
  TF_RETURN_IF_ERROR(compare_passes("attention", std::move(check), kRows, result));
  return result;
}

std::vector<CudaCheck> check_cuda_devices() {
  std::vector<CudaCheck> checks;
  for (int i = 0; i < num_cuda_devices(); ++i) {
    CudaCheck& check = checks.emplace_back();
    const auto run = [&]() -> Status {
      TF_ASSIGN_OR_RETURN(const CudaDeviceInfo device, describe_cuda_device(i));
      check.name = device.name;
      check.compute_capability = fmt::format("{}.{}", device.major, device.minor);
      check.total_bytes = device.total_bytes;
      check.free_bytes = device.free_bytes;
      CudaOptions options;
      options.device = i;
      TF_ASSIGN_OR_RETURN(const std::unique_ptr<Ops> ops, make_cuda_ops(options));
      check.arithmetic_id = ops->info().arithmetic_id;
      TF_ASSIGN_OR_RETURN(check.rows, check_rows(*ops));
      return {};
    };
    check.status = run();
  }
  return checks;
}

MachineInfo describe_machine() {
  return {.cpu = cpu_model_name(),
          .num_cpus = num_usable_cpus(),
          .total_bytes = cpu_device().total_bytes(),
          .free_bytes = cpu_device().free_bytes()};
}

}  // namespace tensorfold
