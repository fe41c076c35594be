// top_tokens: every instruction set equals the reference, and the reference is its definition.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "tests/ops/op_test_support.h"

namespace tensorfold::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Top {
  std::vector<int32_t> tokens;
  std::vector<float> values;
  friend bool operator==(const Top& a, const Top& b) {
    return a.tokens == b.tokens &&
           std::memcmp(a.values.data(), b.values.data(), a.values.size() * sizeof(float)) == 0;
  }
};

Top top_of(Ops& ops, const Array& logits, int64_t k) {
  const auto size = static_cast<size_t>(logits.rows() * k);
  Top top{std::vector<int32_t>(size, 77), std::vector<float>(size, 77.0f)};
  ops.top_tokens(top.tokens, top.values, logits.view(), k);
  return top;
}

class TopTokensOnEveryIsa : public EveryIsa {
 protected:
  void expect_reference(const Array& logits, int64_t k, const std::string& what) {
    const Top expected = top_of(reference(), logits, k);
    for (auto& ops : backends()) EXPECT_EQ(top_of(*ops, logits, k), expected) << what << ", k " << k;
  }
};

TEST_P(TopTokensOnEveryIsa, EqualsTheReference) {
  uint64_t seed = 1;
  for (const int64_t size : edge_sizes()) {
    if (size == 0) continue;
    for (const int64_t k : {1, 2, 16, 64}) {
      Random random(seed++);
      Array logits(DType::kF32, 5, size, {3, 1});
      logits.fill(random, 4.0f);
      expect_reference(logits, k, "normal");
      sprinkle_specials(logits, random);
      expect_reference(logits, k, "specials");
    }
  }
}

TEST_P(TopTokensOnEveryIsa, EqualsTheReferenceOnALargeVocabularyWithManyEquals) {
  for (const float step : {1.0f, 0.001f}) {
    Random random(9);
    Array logits(DType::kF32, 3, 50000, {0, 2});
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t j = 0; j < 50000; ++j) logits.set(i, j, std::round(random.normal() / step) * step);
    }
    expect_reference(logits, 16, "equals");
  }
}

TEST_P(TopTokensOnEveryIsa, ANaNAtAnyTokenLeavesNoneOfItsRow) {
  Random random(4);
  for (const int64_t n : {1, 2, 5, 64, 65, 1000}) {
    for (const int64_t place : {int64_t{0}, n / 2, n - 1}) {
      for (const uint32_t nan : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xffffffffu}) {
        Array logits(DType::kF32, 2, n);
        logits.fill(random, 4.0f);
        logits.set(0, (place + 1) % n, kInfinity);
        logits.set(0, place, bits_as<float>(nan));
        expect_reference(logits, 3, fmt::format("NaN at {} of {}", place, n));
        const Top top = top_of(reference(), logits, 3);
        for (size_t i = 0; i < 3; ++i) {
          EXPECT_EQ(top.tokens[i], -1);
          EXPECT_EQ(top.values[i], -kInfinity);
        }
        EXPECT_NE(top.tokens[3], -1) << "the row beside it";
      }
    }
  }
}

TF_INSTANTIATE_FOR_EVERY_ISA(TopTokensOnEveryIsa);

TEST(TopTokensReference, IsInOrderOfLogitThenToken) {
  const float rows[][6] = {{1, 3, 2, 3, -0.0f, 0.0f},
                           {-kInfinity, 2, -kInfinity, kInfinity, -kInfinity, -kInfinity},
                           {1, 2, NAN, 4, 5, 6}};
  Array logits(DType::kF32, 3, 6);
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 6; ++j) logits.set(i, j, rows[i][j]);
  }
  const Top top = top_of(*make_reference_ops(), logits, 5);
  EXPECT_EQ(top.tokens, (std::vector<int32_t>{1, 3, 2, 0, 4, 3, 1, -1, -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(top.values, (std::vector<float>{3, 3, 2, 1, 0, kInfinity, 2, -kInfinity, -kInfinity, -kInfinity,
                                            -kInfinity, -kInfinity, -kInfinity, -kInfinity, -kInfinity}));
  EXPECT_FALSE(std::signbit(top.values[4]));
}

}  // namespace
}  // namespace tensorfold::test
