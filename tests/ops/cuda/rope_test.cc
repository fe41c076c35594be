// rope_table and qk_norm_rope on CUDA: equal, bit for bit, to the definition (with CUDA's number of partial
// sums), for passes of several sizes.
#include "ops/cuda/rope.h"

#include <fmt/format.h>

#include "ops/reference/reference_ops.h"
#include "tests/ops/cuda/device_copy.h"

namespace tensorfold::test {
namespace {

using CudaRopeTable = OnCudaDevice;
using CudaQkNormRope = OnCudaDevice;

constexpr int kCudaPartials = 256;

TEST_F(CudaRopeTable, EqualsTheDefinition) {
  Random random(1);
  for (const int64_t n : {0, 1, 2, 31, 32, 33, 63, 64, 65, 96, 128, 129}) {
    std::vector<double> inv_freq(n);
    for (int64_t j = 0; j < n; ++j)
      inv_freq[j] = pow_f64(500000.0, -static_cast<double>(j) / static_cast<double>(n));
    for (const int64_t rows : {0, 1, 2, 300}) {
      std::vector<int32_t> positions(rows);
      for (int32_t& p : positions) p = static_cast<int32_t>(random.below(rows == 300 ? 2147483647 : 5000));
      if (rows == 2) positions[0] = 0;
      const DeviceVector<double> device_inv_freq(inv_freq);
      const DeviceVector<int32_t> device_positions(positions);
      for (const double multiplier : {1.0, 1.25}) {
        Array expected_cos(DType::kF32, rows, n), expected_sin(DType::kF32, rows, n);
        ReferenceOps().rope_table(expected_cos.view(), expected_sin.view(), positions, inv_freq, multiplier);
        const DeviceCopy cos(Array(DType::kF32, rows, n, {3, 1})), sin(Array(DType::kF32, rows, n, {5, 7}));
        cuda::launch_rope_table(nullptr,
                                cuda::rope_table_launch(cos.view(), sin.view(), device_positions.data(),
                                                        device_inv_freq.data(), multiplier));
        finish_launches();
        expect_same(cos.download(), expected_cos, fmt::format("cos, {} rows of {}", rows, n));
        expect_same(sin.download(), expected_sin, fmt::format("sin, {} rows of {}", rows, n));
      }
    }
  }
}

/// One call's shape and arrays. Queries lie `gap` elements apart, filled with NaN, as where gates follow
/// them.
struct Case {
  int64_t rows, num_heads, num_kv_heads, head_dim, half, gap;
  bool has_q_norm, has_k_norm;

  int64_t q_stride() const { return head_dim + gap; }
  int64_t q_columns() const { return num_heads == 0 ? 0 : (num_heads - 1) * q_stride() + head_dim; }
};

std::string to_string(const Case& c) {
  return fmt::format("{} rows, {} and {} heads of {}, rotary width {}, gap {}, norms {} {}", c.rows,
                     c.num_heads, c.num_kv_heads, c.head_dim, 2 * c.half, c.gap, c.has_q_norm, c.has_k_norm);
}

void check(const Case& c, Placement placement, uint64_t seed) {
  Random random(seed);
  Array q(DType::kF32, c.rows, c.q_columns(), placement);
  Array k(DType::kF32, c.rows, c.num_kv_heads * c.head_dim, {placement.gap + 2, placement.shift});
  Array q_norm(DType::kF32, 1, c.head_dim), k_norm(DType::kF32, 1, c.head_dim);
  Array cos(DType::kF32, c.rows, c.half, placement), sin(DType::kF32, c.rows, c.half, placement);
  for (Array* array : {&q, &k, &q_norm, &k_norm}) array->fill(random, 2.0f);
  for (int64_t t = 0; t < c.rows; ++t) {
    for (int64_t j = 0; j < c.half; ++j) {
      const double angle = random.uniform() * 100;
      cos.set(t, j, static_cast<float>(std::cos(angle)));
      sin.set(t, j, static_cast<float>(std::sin(angle)));
    }
    for (int64_t i = 0; i < q.columns(); ++i) {
      if (i % c.q_stride() >= c.head_dim) q.set(t, i, NAN);
    }
  }
  if (c.rows == 9 && c.gap == 0) sprinkle_specials(q, random);
  if (c.rows == 9) sprinkle_specials(k, random);

  const auto call = [&](View q_out, View k_out, View q_in, View k_in, View q_weight, View k_weight,
                        View cosines, View sines) {
    return QkNormRopeCall{.q_out = q_out,
                          .k_out = k_out,
                          .q = q_in,
                          .k = k_in,
                          .q_norm = c.has_q_norm ? q_weight : View(),
                          .k_norm = c.has_k_norm ? k_weight : View(),
                          .norm_eps = 1e-6f,
                          .cos = cosines,
                          .sin = sines,
                          .head_dim = c.head_dim,
                          .q_head_stride = c.gap == 0 ? 0 : c.q_stride()};
  };
  const Array q_out(DType::kBF16, c.rows, c.num_heads * c.head_dim, placement);
  const Array k_out(DType::kBF16, c.rows, c.num_kv_heads * c.head_dim, placement);
  const Array expected_q = q_out, expected_k = k_out;
  ReferenceOps(kCudaPartials)
      .qk_norm_rope(call(expected_q.view(), expected_k.view(), q.view(), k.view(), q_norm.view(),
                         k_norm.view(), cos.view(), sin.view()));
  const DeviceInput device_q(q), device_k(k), device_q_norm(q_norm), device_k_norm(k_norm), device_cos(cos),
      device_sin(sin);
  const DeviceCopy device_q_out(q_out), device_k_out(k_out);
  cuda::launch_qk_norm_rope(
      nullptr, cuda::qk_norm_rope_launch(call(device_q_out.view(), device_k_out.view(), device_q.view(),
                                              device_k.view(), device_q_norm.view(), device_k_norm.view(),
                                              device_cos.view(), device_sin.view())));
  finish_launches();
  expect_same(device_q_out.download(), expected_q, "q: " + to_string(c));
  expect_same(device_k_out.download(), expected_k, "k: " + to_string(c));
}

TEST_F(CudaQkNormRope, EqualsTheDefinition) {
  constexpr int64_t kWidths[][2] = {{2, 1},    {16, 8},    {17, 8},   {40, 20},  {64, 32},  {64, 0},
                                    {66, 33},  {80, 40},   {96, 24},  {96, 48},  {128, 64}, {128, 32},
                                    {130, 31}, {255, 127}, {256, 32}, {256, 128}};
  uint64_t seed = 1;
  for (const auto& [head_dim, half] : kWidths) {
    for (const int64_t rows : {0, 1, 9, 100}) {
      for (const int64_t gap : {int64_t{0}, head_dim, int64_t{5}}) {
        const Placement& placement = kPlacements[seed % 3];
        check({rows, 3, 1, head_dim, half, gap, true, true}, placement, seed++);
        check({rows, 6, 2, head_dim, half, gap, false, false}, placement, seed++);
      }
      check({rows, 3, 2, head_dim, half, 0, true, false}, {}, seed++);
      check({rows, 3, 2, head_dim, half, 0, false, true}, {}, seed++);
      check({rows, 0, 2, head_dim, half, 0, false, true}, {}, seed++);
    }
  }
}

}  // namespace
}  // namespace tensorfold::test
