// append_kv: pages hold each row's values where ops/kv_layout.h says, rounded, and nothing else changes.
#include <fmt/format.h>

#include <cstring>

#include "ops/kv_layout.h"
#include "tests/ops/op_test_support.h"

namespace tensorfold::test {
namespace {

constexpr std::byte kPoison{0x5a};

/// Pages of one layer in memory of known content.
struct Pages {
  Pages(const Ops& ops, const KvShape& shape, int64_t num_pages) {
    const int64_t bytes = ops.kv_page_bytes(shape);
    pages = {.shape = shape, .page_stride_bytes = 2 * bytes + 128, .num_pages = num_pages};
    memory.assign(num_pages * pages.page_stride_bytes + 64, kPoison);
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    pages.k = memory.data() + ((address + 63) / 64 * 64 - address);
    pages.v = pages.k + bytes + 64;
  }

  /// The memory without what alignment puts before it.
  std::vector<std::byte> content() const { return {pages.k, pages.k + pages.num_pages * pages.page_stride_bytes}; }

  KvPages pages;
  std::vector<std::byte> memory;
};

class AppendKvOnEveryIsa : public EveryIsa {};

TEST_P(AppendKvOnEveryIsa, EqualsTheReferenceByteForByte) {
  const int32_t page_table_a[] = {4, 0, 3}, page_table_b[] = {1};
  for (const int64_t head_dim : {1, 2, 15, 16, 17, 40, 64, 80}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      for (const DType k_dtype : {DType::kBF16, DType::kF32}) {
        for (const DType v_dtype : {DType::kBF16, DType::kF32}) {
          if (dtype == DType::kF32 && (k_dtype != DType::kF32 || v_dtype != DType::kF32)) continue;
          const KvShape shape{3, head_dim, dtype};
          Random random(head_dim);
          Array k(k_dtype, 100, 3 * head_dim, {1, 1}), v(v_dtype, 100, 3 * head_dim, {2, 3});
          k.fill(random);
          v.fill(random);
          sprinkle_specials(k, random);
          sprinkle_specials(v, random);
          const SequenceRows sequences[] = {{0, 70, 61, page_table_a}, {70, 30, 5, page_table_b}};
          std::vector<int32_t> positions(100);
          Pages expected(reference(), shape, 5);
          reference().append_kv(expected.pages, k.view(), v.view(), {positions, sequences});
          for (auto& ops : backends()) {
            Pages actual(*ops, shape, 5);
            ops->append_kv(actual.pages, k.view(), v.view(), {positions, sequences});
            EXPECT_TRUE(actual.content() == expected.content()) << fmt::format("D {}", head_dim);
          }
        }
      }
    }
  }
}

TF_INSTANTIATE_FOR_EVERY_ISA(AppendKvOnEveryIsa);

TEST(AppendKvReference, PutsEachElementWhereTheLayoutSays) {
  auto reference = make_reference_ops();
  const KvShape shape{2, 18, DType::kBF16};
  Pages pages(*reference, shape, 2);
  Array k(DType::kF32, 1, 36), v(DType::kF32, 1, 36);
  Random random(1);
  k.fill(random);
  v.fill(random);
  const int32_t page_table[] = {0, 1};
  const SequenceRows sequence{0, 1, 64 + 13, page_table};
  const int32_t position = 64 + 13;
  reference->append_kv(pages.pages, k.view(), v.view(), {{&position, 1}, {&sequence, 1}});
  const auto* keys = reinterpret_cast<const bf16*>(pages.pages.key_page(1));
  const auto* values = reinterpret_cast<const bf16*>(pages.pages.value_page(1));
  // Dp = 32. keys [K][16][64][2], values [K][32][32][2].
  EXPECT_EQ(keys[1 * 2048 + 3 * 128 + 13 * 2 + 1], to_bf16(k.get(0, 18 + 7)));
  EXPECT_EQ(values[1 * 2048 + 6 * 64 + 7 * 2 + 1], to_bf16(v.get(0, 18 + 7)));
  EXPECT_EQ(keys[12 * 128 + 13 * 2].bits, 0) << "padding of head_dim";
  EXPECT_EQ(values[6 * 64 + 20 * 2 + 1].bits, 0) << "padding of head_dim";
  EXPECT_EQ(std::memcmp(&keys[3 * 128 + 14 * 2], "\x5a\x5a\x5a\x5a", 4), 0) << "the next slot";
}

}  // namespace
}  // namespace tensorfold::test
