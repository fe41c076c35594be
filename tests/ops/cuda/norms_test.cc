// rms_norm and gated_rms_norm on CUDA: equal, bit for bit, to the definition with CUDA's number of partial
// sums. Passes of several sizes are compared with the definition, which knows one row at a time: a row's bits
// then depend on no other row.
#include "ops/cuda/norms.h"

#include <fmt/format.h>

#include "ops/reference/reference_ops.h"
#include "tests/ops/cuda/device_copy.h"

namespace tensorfold::test {
namespace {

using CudaRmsNorm = OnCudaDevice;
using CudaGatedRmsNorm = OnCudaDevice;

constexpr int kCudaPartials = 256;

/// Around the numbers of partials and of pieces a thread; 450 rows are more than blocks of the kernel.
struct Size {
  int64_t rows, columns;
};
std::vector<Size> norm_sizes() {
  std::vector<Size> sizes;
  for (const int64_t n : edge_sizes()) sizes.insert(sizes.end(), {{0, n}, {1, n}, {5, n}});
  for (const int64_t n :
       {256, 257, 511, 513, 1024, 1025, 2048, 2049, 4096, 4097, 5120, 6144, 6145, 8192, 8193, 16384})
    sizes.insert(sizes.end(), {{1, n}, {3, n}});
  sizes.insert(sizes.end(), {{450, 100}, {450, 2100}, {800, 576}});
  return sizes;
}

void check_rms_norm(const Size& size, Placement placement, DType dtype, bool accumulate, Random& random) {
  Array x(DType::kF32, size.rows, size.columns, placement);
  Array weight(DType::kF32, 1, size.columns, {0, placement.shift});
  Array before(dtype, size.rows, size.columns, {2, placement.shift});
  x.fill(random, 3.0f);
  weight.fill(random);
  if (accumulate) before.fill(random, 3.0f);
  if (size.rows == 5) sprinkle_specials(accumulate ? before : x, random);
  const RmsNormOptions options{.eps = 1e-5f, .accumulate = accumulate};
  Array expected = before;
  ReferenceOps(kCudaPartials).rms_norm(expected.view(), x.view(), weight.view(), options);

  const DeviceInput device_x(x), device_weight(weight);
  const DeviceCopy out(before);
  cuda::launch_rms_norm(nullptr,
                        cuda::rms_norm_launch(out.view(), device_x.view(), device_weight.view(), options));
  finish_launches();
  expect_same(out.download(), expected,
              fmt::format("{} rows of {}, {}, accumulate {}", size.rows, size.columns, dtype_name(dtype),
                          accumulate));
}

TEST_F(CudaRmsNorm, EqualsTheDefinition) {
  Random random(1);
  for (const Size& size : norm_sizes()) {
    const bool is_small = size.columns <= 1025 && size.rows <= 5;
    for (const Placement& placement :
         is_small ? std::span(kPlacements) : std::span(kPlacements).subspan(1, 1)) {
      check_rms_norm(size, placement, DType::kF32, false, random);
      check_rms_norm(size, placement, DType::kBF16, false, random);
      check_rms_norm(size, placement, DType::kF32, true, random);
    }
  }
}

TEST_F(CudaRmsNorm, MayWriteOverItsInput) {
  Random random(2);
  Array weight(DType::kF32, 1, 577), x(DType::kF32, 900, 577), expected(DType::kF32, 900, 577);
  weight.fill(random);
  x.fill(random);
  ReferenceOps(kCudaPartials).rms_norm(expected.view(), x.view(), weight.view(), {});
  const DeviceInput device_weight(weight);
  const DeviceCopy in_place(x);
  cuda::launch_rms_norm(nullptr,
                        cuda::rms_norm_launch(in_place.view(), in_place.view(), device_weight.view(), {}));
  finish_launches();
  expect_same(in_place.download(), expected, "in place");
}

// Kernels start before the ones that they depend on have ended: each must wait.
TEST_F(CudaRmsNorm, WaitsForTheKernelBefore) {
  constexpr int kSteps = 30;
  Random random(3);
  Array weight(DType::kF32, 1, 4096), x(DType::kF32, 60, 4096), sum(DType::kF32, 60, 4096);
  for (Array* array : {&weight, &x, &sum}) array->fill(random);
  const DeviceInput device_weight(weight);
  const DeviceCopy device_x(x), device_sum(sum);
  ReferenceOps reference(kCudaPartials);
  for (int i = 0; i < kSteps; ++i) {
    reference.rms_norm(x.view(), sum.view(), weight.view(), {});
    reference.rms_norm(sum.view(), x.view(), weight.view(), {.accumulate = true});
  }
  for (int i = 0; i < kSteps; ++i) {
    cuda::launch_rms_norm(
        nullptr, cuda::rms_norm_launch(device_x.view(), device_sum.view(), device_weight.view(), {}));
    cuda::launch_rms_norm(nullptr, cuda::rms_norm_launch(device_sum.view(), device_x.view(),
                                                         device_weight.view(), {.accumulate = true}));
  }
  finish_launches();
  expect_same(device_x.download(), x, "x");
  expect_same(device_sum.download(), sum, "sum");
}

void check_gated(int64_t rows, int64_t groups, int64_t group_size, bool weight_per_group, Placement placement,
                 GatedRmsNormCall::Order order, Random& random) {
  const int64_t n = groups * group_size;
  Array x(DType::kF32, rows, n, placement), gate(DType::kF32, rows, n, {placement.gap + 1, placement.shift});
  Array weight(DType::kF32, 1, weight_per_group ? n : group_size, {0, placement.shift});
  Array out(DType::kBF16, rows, n, placement), expected(DType::kBF16, rows, n);
  x.fill(random, 3.0f);
  gate.fill(random, 3.0f);
  weight.fill(random);
  if (rows == 5) sprinkle_specials(x, random);
  if (rows == 5) sprinkle_specials(gate, random);
  const auto call = [&](View to, View from, View by, View weights) {
    return GatedRmsNormCall{.out = to,
                            .x = from,
                            .gate = by,
                            .weight = View(weights.data, DType::kF32, {weights.dim(1)}),
                            .group_size = group_size,
                            .eps = 1e-5f,
                            .order = order};
  };
  ReferenceOps(kCudaPartials).gated_rms_norm(call(expected.view(), x.view(), gate.view(), weight.view()));
  const DeviceInput device_x(x), device_gate(gate), device_weight(weight);
  const DeviceCopy device_out(out);
  cuda::launch_gated_rms_norm(
      nullptr, cuda::gated_rms_norm_launch(
                   call(device_out.view(), device_x.view(), device_gate.view(), device_weight.view())));
  finish_launches();
  expect_same(
      device_out.download(), expected,
      fmt::format("{} rows of {} groups of {}, order {}", rows, groups, group_size, static_cast<int>(order)));
}

TEST_F(CudaGatedRmsNorm, EqualsTheDefinition) {
  constexpr int64_t kGroups[][2] = {{1, 1},    {3, 7},    {2, 32},   {5, 33},   {48, 128},
                                    {3, 129},  {2, 255},  {3, 256},  {2, 257},  {8, 1024},
                                    {1, 2048}, {2, 2049}, {1, 8192}, {1, 8200}, {1, 16384}};
  Random random(4);
  for (const auto& [groups, group_size] : kGroups) {
    for (const int64_t rows : {0, 1, 5, 70}) {
      for (const auto order :
           {GatedRmsNormCall::Order::kNormThenGate, GatedRmsNormCall::Order::kGateThenNorm}) {
        check_gated(rows, groups, group_size, false, kPlacements[rows % 3], order, random);
        check_gated(rows, groups, group_size, true, kPlacements[(rows + 1) % 3], order, random);
      }
    }
  }
}

}  // namespace
}  // namespace tensorfold::test
