// qk_norm_rope: every instruction set equals the reference, which equals rms_norm per head and a plain
// rotation.
#include <fmt/format.h>

#include "tests/ops/op_test_support.h"

namespace tensorfold::test {
namespace {

/// Inputs of one call.
struct Inputs {
  int64_t rows, num_heads, num_kv_heads, head_dim, half;
  bool has_norm;
  Array q, k, q_norm, k_norm, cos, sin;

  Inputs(int64_t rows, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, int64_t half, bool has_norm,
         Placement placement, uint64_t seed)
      : rows(rows),
        num_heads(num_heads),
        num_kv_heads(num_kv_heads),
        head_dim(head_dim),
        half(half),
        has_norm(has_norm),
        q(DType::kF32, rows, num_heads * head_dim, placement),
        k(DType::kF32, rows, num_kv_heads * head_dim, placement),
        q_norm(DType::kF32, 1, head_dim),
        k_norm(DType::kF32, 1, head_dim),
        cos(DType::kF32, rows, half),
        sin(DType::kF32, rows, half) {
    Random random(seed);
    for (Array* array : {&q, &k, &q_norm, &k_norm}) array->fill(random, 2.0f);
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t j = 0; j < half; ++j) {
        const double angle = random.uniform() * 100;
        cos.set(t, j, static_cast<float>(std::cos(angle)));
        sin.set(t, j, static_cast<float>(std::sin(angle)));
      }
    }
  }

  QkNormRopeCall call(Array& q_out, Array& k_out) const {
    return {.q_out = q_out.view(),
            .k_out = k_out.view(),
            .q = q.view(),
            .k = k.view(),
            .q_norm = has_norm ? q_norm.view() : View(),
            .k_norm = has_norm ? k_norm.view() : View(),
            .norm_eps = 1e-6f,
            .cos = cos.view(),
            .sin = sin.view(),
            .head_dim = head_dim};
  }
};

class QkNormRopeOnEveryIsa : public EveryIsa {};

TEST_P(QkNormRopeOnEveryIsa, EqualsTheReference) {
  constexpr int64_t kWidths[][2] = {{2, 1},   {16, 8},  {17, 8},   {40, 20},  {64, 32}, {66, 33},
                                    {80, 40}, {96, 24}, {128, 64}, {130, 31}, {64, 0},  {256, 128}};
  uint64_t seed = 1;
  for (const auto& [head_dim, half] : kWidths) {
    for (const int64_t rows : {0, 1, 9}) {
      for (const bool has_norm : {false, true}) {
        for (const Placement& placement : kPlacements) {
          Inputs in(rows, 3, 1, head_dim, half, has_norm, placement, seed++);
          Random random(seed);
          if (rows == 9) sprinkle_specials(in.q, random);
          for (const DType dtype : {DType::kBF16, DType::kF32}) {
            Array expected_q(dtype, rows, 3 * head_dim), expected_k(dtype, rows, head_dim);
            reference().qk_norm_rope(in.call(expected_q, expected_k));
            for (auto& ops : backends()) {
              Array q(dtype, rows, 3 * head_dim, placement), k(dtype, rows, head_dim, placement);
              ops->qk_norm_rope(in.call(q, k));
              expect_same(q, expected_q, fmt::format("q, D {} half {} norm {}", head_dim, half, has_norm));
              expect_same(k, expected_k, fmt::format("k, D {} half {} norm {}", head_dim, half, has_norm));
            }
          }
        }
      }
    }
  }
}

// Keys alone, as of context that nobody asks from.
TEST_P(QkNormRopeOnEveryIsa, QueriesMayHaveNoHeads) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const Inputs in(9, 2, 3, 40, 20, true, {}, 5);
    Array no_q(dtype, 9, 0), q(dtype, 9, 80), expected(dtype, 9, 120);
    reference().qk_norm_rope(in.call(q, expected));
    std::vector<Ops*> all = {&reference()};
    for (auto& ops : backends()) all.push_back(ops.get());
    for (Ops* ops : all) {
      Array k(dtype, 9, 120);
      QkNormRopeCall call = in.call(no_q, k);
      call.q = in.q.view().columns(0, 0);
      call.q_norm = View();
      ops->qk_norm_rope(call);
      expect_same(k, expected, ops->info().name);
    }
  }
}

// Each head's queries followed by its gate: the gate is not read, and the bits are those of queries side by
// side.
TEST_P(QkNormRopeOnEveryIsa, QueriesMayLieApart) {
  constexpr int64_t kRows = 9, kHeads = 3, kHeadDim = 40, kStride = 70;
  for (const int64_t half : {0, 7, 20}) {
    for (const bool has_norm : {false, true}) {
      const Inputs in(kRows, kHeads, 1, kHeadDim, half, has_norm, {}, 77);
      Array apart(DType::kF32, kRows, (kHeads - 1) * kStride + kHeadDim, {3, 1});
      for (int64_t t = 0; t < kRows; ++t) {
        for (int64_t i = 0; i < apart.columns(); ++i) {
          const int64_t head = i / kStride, d = i % kStride;
          apart.set(t, i, d < kHeadDim ? in.q.get(t, head * kHeadDim + d) : NAN);
        }
      }
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        Array expected_q(dtype, kRows, kHeads * kHeadDim), expected_k(dtype, kRows, kHeadDim);
        reference().qk_norm_rope(in.call(expected_q, expected_k));
        std::vector<Ops*> all = {&reference()};
        for (auto& ops : backends()) all.push_back(ops.get());
        for (Ops* ops : all) {
          Array q(dtype, kRows, kHeads * kHeadDim), k(dtype, kRows, kHeadDim);
          QkNormRopeCall call = in.call(q, k);
          call.q = apart.view();
          call.q_head_stride = kStride;
          ops->qk_norm_rope(call);
          expect_same(q, expected_q, fmt::format("{}: q, half {} norm {}", ops->info().name, half, has_norm));
          expect_same(k, expected_k, fmt::format("{}: k, half {} norm {}", ops->info().name, half, has_norm));
        }
      }
    }
  }
}

TF_INSTANTIATE_FOR_EVERY_ISA(QkNormRopeOnEveryIsa);

TEST(QkNormRopeReference, WithoutRotationIsTheNormOfEachHead) {
  auto reference = make_reference_ops();
  const Inputs in(7, 2, 1, 48, 0, true, {}, 6);
  Array q(DType::kF32, 7, 96), k(DType::kF32, 7, 48), normed(DType::kF32, 7, 48);
  reference->qk_norm_rope(in.call(q, k));
  reference->rms_norm(normed.view(), in.k.view(), in.k_norm.view(), {.eps = 1e-6f});
  expect_same(k, normed, "k");
  reference->rms_norm(normed.view(), in.q.view().columns(48, 48), in.q_norm.view(), {.eps = 1e-6f});
  for (int64_t t = 0; t < 7; ++t) {
    for (int64_t d = 0; d < 48; ++d) ASSERT_EQ(q.get(t, 48 + d), normed.get(t, d)) << "of the second head";
  }
}

TEST(QkNormRopeReference, IsTheNormOfEachHeadThenARotation) {
  auto reference = make_reference_ops();
  for (const bool has_norm : {false, true}) {
    const Inputs in(7, 2, 1, 48, 16, has_norm, {}, 5);
    Array q(DType::kF32, 7, 96), k(DType::kF32, 7, 48);
    reference->qk_norm_rope(in.call(q, k));
    for (int64_t t = 0; t < 7; ++t) {
      for (int64_t h = 0; h < 2; ++h) {
        Array head(DType::kF32, 1, 48), normed(DType::kF32, 1, 48);
        for (int64_t d = 0; d < 48; ++d) head.set(0, d, in.q.get(t, h * 48 + d));
        reference->rms_norm(normed.view(), head.view(), in.q_norm.view(), {.eps = 1e-6f});
        const Array& x = has_norm ? normed : head;
        for (int64_t j = 0; j < 16; ++j) {
          const double a = x.get(0, j), b = x.get(0, j + 16), c = in.cos.get(t, j), s = in.sin.get(t, j);
          // One product and one fma: two roundings of at most 2^-24 of the terms.
          const double tolerance = 2 * 0x1p-24 * (std::fabs(a) + std::fabs(b));
          EXPECT_NEAR(q.get(t, h * 48 + j), a * c - b * s, tolerance);
          EXPECT_NEAR(q.get(t, h * 48 + j + 16), b * c + a * s, tolerance);
        }
        for (int64_t d = 32; d < 48; ++d) EXPECT_EQ(q.get(t, h * 48 + d), x.get(0, d)) << "passes through";
      }
    }
  }
}

}  // namespace
}  // namespace tensorfold::test
