// append_kv on CUDA: pages hold each row's keys and values, rounded, where ops/cuda/attention_params.h says,
// and nothing else changes.
#include <fmt/format.h>

#include "ops/cuda/attention.h"
#include "tests/ops/cuda/device_copy.h"

namespace tensorfold::test {
namespace {

using CudaAppendKv = OnCudaDevice;

constexpr std::byte kPoison{0x5a};
constexpr int64_t kNumPages = 5;

/// One layer's pages, keys before values, in host memory that the device's is copied from and compared with.
struct Pages {
  explicit Pages(const KvShape& shape)
      : shape(shape),
        half_bytes(cuda::cuda_kv_page_bytes(shape) + 64),
        memory(static_cast<size_t>(2 * half_bytes * kNumPages), kPoison) {}

  KvPages on(const std::byte* device) const {
    auto* k = const_cast<std::byte*>(device);
    return {.shape = shape,
            .k = k,
            .v = k + half_bytes,
            .page_stride_bytes = 2 * half_bytes,
            .num_pages = kNumPages};
  }
  /// Puts row t of `rows` where position `pos` of `page` lies, the padding of head_dim as zeros.
  void put(const Array& rows, int64_t t, int64_t page, int64_t pos, bool is_value) {
    const int64_t padded =
        (shape.head_dim + cuda::kKvBlockColumns - 1) / cuda::kKvBlockColumns * cuda::kKvBlockColumns;
    const int slot = static_cast<int>(pos % kPageTokens);
    for (int64_t head = 0; head < shape.num_kv_heads; ++head) {
      const int64_t at = (2 * page + (is_value ? 1 : 0)) * half_bytes + head * kPageTokens * padded * 2;
      for (int64_t d = 0; d < padded; ++d) {
        const bf16 value = d < shape.head_dim ? to_bf16(rows.get(t, head * shape.head_dim + d)) : bf16{};
        std::memcpy(&memory[at + cuda::kv_byte_in_head(slot, static_cast<int>(d))], &value, 2);
      }
    }
  }

  KvShape shape;
  int64_t half_bytes;
  std::vector<std::byte> memory;
};

/// Byte equality, NaNs alike: what is stored are bf16.
bool same_values(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  for (size_t i = 0; i < a.size(); i += 2) {
    bf16 x, y;
    std::memcpy(&x, &a[i], 2);
    std::memcpy(&y, &b[i], 2);
    if (x.bits != y.bits && !(std::isnan(to_float(x)) && std::isnan(to_float(y)))) return false;
  }
  return a.size() == b.size();
}

void check(int64_t head_dim, DType k_dtype, DType v_dtype, Placement placement) {
  const KvShape shape{3, head_dim, DType::kBF16};
  Random random(static_cast<uint64_t>(head_dim));
  Array k(k_dtype, 100, 3 * head_dim, placement), v(v_dtype, 100, 3 * head_dim, {2, 3});
  k.fill(random);
  v.fill(random);
  sprinkle_specials(k, random);
  sprinkle_specials(v, random);
  const int32_t page_table_a[] = {4, 0, 3}, page_table_b[] = {1};
  const SequenceRows host_sequences[] = {{0, 70, 61, page_table_a}, {70, 30, 5, page_table_b}};
  Pages pages(shape);
  const DeviceVector<std::byte> device_pages(pages.memory);
  for (const SequenceRows& s : host_sequences) {
    for (int64_t i = 0; i < s.num_rows; ++i) {
      const int64_t pos = s.first_pos + i, page = s.page_table[pos / kPageTokens];
      pages.put(k, s.first_row + i, page, pos, false);
      pages.put(v, s.first_row + i, page, pos, true);
    }
  }

  std::vector<cuda::AttentionSequence> sequences;
  std::vector<int32_t> page_tables;
  const std::vector<int32_t> positions(100);
  cuda::AttentionRows rows = cuda::make_attention_rows({positions, host_sequences}, sequences, page_tables);
  const DeviceVector<cuda::AttentionSequence> device_sequences(sequences);
  const DeviceVector<int32_t> device_page_tables(page_tables);
  rows.sequences = device_sequences.data();
  rows.page_tables = device_page_tables.data();
  const DeviceInput device_k(k), device_v(v);
  cuda::launch_append_kv(
      nullptr, cuda::append_kv_launch(pages.on(device_pages.data()), device_k.view(), device_v.view(), rows));
  finish_launches();
  EXPECT_TRUE(same_values(device_pages.download(), pages.memory))
      << fmt::format("D {}, k {}, v {}", head_dim, dtype_name(k_dtype), dtype_name(v_dtype));
}

TEST_F(CudaAppendKv, StoresEachRowRoundedAndNothingElse) {
  for (const int64_t head_dim : {8, 40, 64, 80, 128, 192, 256}) {
    for (const DType k_dtype : {DType::kBF16, DType::kF32}) {
      for (const DType v_dtype : {DType::kBF16, DType::kF32}) {
        for (const Placement& placement : kPlacements) check(head_dim, k_dtype, v_dtype, placement);
      }
    }
  }
}

}  // namespace
}  // namespace tensorfold::test
