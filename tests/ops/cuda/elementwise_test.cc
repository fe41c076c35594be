// mlp_activation, sigmoid_mul, add_gated, softcap and gather_rows on CUDA: equal, bit for bit, to the
// definition, for passes of few rows and of so many that a thread takes four elements.
#include "ops/cuda/elementwise.h"

#include <fmt/format.h>

#include "ops/reference/reference_ops.h"
#include "tests/ops/cuda/device_copy.h"

namespace tensorfold::test {
namespace {

using CudaMlpActivation = OnCudaDevice;
using CudaSigmoidMul = OnCudaDevice;
using CudaAddGated = OnCudaDevice;
using CudaSoftcap = OnCudaDevice;
using CudaGatherRows = OnCudaDevice;

struct Size {
  int64_t rows, columns;
};
std::vector<Size> element_sizes() {
  std::vector<Size> sizes;
  for (const int64_t n : edge_sizes()) sizes.insert(sizes.end(), {{0, n}, {1, n}, {5, n}});
  sizes.insert(sizes.end(), {{1, 17408}, {16, 6144}});
  return sizes;
}
/// Large enough for four elements a thread, where the placement allows them.
constexpr Size kLarge{600, 2052};

/// The elements of a thread, where the test says how many it wants.
void expect_width(const cuda::ElementShape& shape, int expected_width) {
  if (expected_width != 0) {
    EXPECT_EQ(shape.width, expected_width);
  }
}

/// Rows and addresses that allow loads of four elements, and that do not.
constexpr Placement kAligned{4, 4}, kUnaligned{3, 1};

constexpr MlpActivation kActivations[] = {
    {.kind = MlpActivation::Kind::kSilu},
    {.kind = MlpActivation::Kind::kGeluTanh},
    {.kind = MlpActivation::Kind::kClampedSilu, .alpha = 1.702f, .limit = 7.0f},
    {.kind = MlpActivation::Kind::kRelu2},
};

void check_activation(const Size& size, Placement placement, const MlpActivation& activation, Random& random,
                      int expected_width = 0) {
  Array gate(DType::kF32, size.rows, size.columns, placement),
      up(DType::kF32, size.rows, size.columns, placement);
  gate.fill(random, 6.0f);
  up.fill(random, 6.0f);
  if (size.rows >= 5) sprinkle_specials(gate, random);
  if (size.rows >= 5) sprinkle_specials(up, random);
  const Array out(DType::kBF16, size.rows, size.columns, placement), expected = out;
  const auto gate_or_none = [&](View view) { return activation.has_gate() ? view : View(); };
  ReferenceOps().mlp_activation(expected.view(), gate_or_none(gate.view()), up.view(), activation);
  const DeviceInput device_gate(gate), device_up(up);
  const DeviceCopy device_out(out);
  const cuda::MlpActivationLaunch launch = cuda::mlp_activation_launch(
      device_out.view(), gate_or_none(device_gate.view()), device_up.view(), activation);
  expect_width(launch.shape, expected_width);
  cuda::launch_mlp_activation(nullptr, launch);
  finish_launches();
  expect_same(device_out.download(), expected,
              fmt::format("activation {}, {} rows of {}", static_cast<int>(activation.kind), size.rows,
                          size.columns));
}

TEST_F(CudaMlpActivation, EqualsTheDefinition) {
  Random random(1);
  for (const MlpActivation& activation : kActivations) {
    for (const Size& size : element_sizes()) {
      check_activation(size, kPlacements[0], activation, random);
      check_activation(size, kPlacements[2], activation, random);
    }
    check_activation(kLarge, kAligned, activation, random, 4);
    check_activation(kLarge, kUnaligned, activation, random, 1);
  }
}

// As where gate_proj and up_proj are one product.
TEST_F(CudaMlpActivation, TakesColumnsOfOneMatrix) {
  Random random(2);
  Array both(DType::kF32, 7, 2 * 96);
  both.fill(random);
  const Array out(DType::kBF16, 7, 96), expected = out;
  ReferenceOps().mlp_activation(expected.view(), both.view().columns(0, 96), both.view().columns(96, 96), {});
  const DeviceInput device_both(both);
  const DeviceCopy device_out(out);
  cuda::launch_mlp_activation(
      nullptr, cuda::mlp_activation_launch(device_out.view(), device_both.view().columns(0, 96),
                                           device_both.view().columns(96, 96), {}));
  finish_launches();
  expect_same(device_out.download(), expected, "columns of one matrix");
}

void check_sigmoid_mul(int64_t rows, int64_t heads, int64_t head_dim, int64_t gate_head_stride,
                       Placement placement, bool in_place, Random& random, int expected_width = 0) {
  const int64_t n = heads * head_dim;
  Array x(DType::kBF16, rows, n, placement), out(DType::kBF16, rows, n, placement);
  Array gate(DType::kF32, rows, (heads - 1) * gate_head_stride + head_dim, placement);
  x.fill(random, 3.0f);
  gate.fill(random, 5.0f);
  if (rows >= 5) sprinkle_specials(x, random);
  if (rows >= 5) sprinkle_specials(gate, random);
  const Array expected = in_place ? x : out;
  ReferenceOps().sigmoid_mul(expected.view(), x.view(), gate.view(), head_dim, gate_head_stride);
  for (int64_t t = 0; t < rows; ++t) {  // What lies between the heads' gates is not read.
    for (int64_t i = 0; i < gate.columns(); ++i) {
      if (i % gate_head_stride >= head_dim) gate.set(t, i, NAN);
    }
  }
  const DeviceInput device_gate(gate);
  const DeviceCopy device_x(x), device_out(out);
  const View to = in_place ? device_x.view() : device_out.view();
  const cuda::SigmoidMulLaunch launch =
      cuda::sigmoid_mul_launch(to, device_x.view(), device_gate.view(), head_dim, gate_head_stride);
  expect_width(launch.shape, expected_width);
  cuda::launch_sigmoid_mul(nullptr, launch);
  finish_launches();
  expect_same(in_place ? device_x.download() : device_out.download(), expected,
              fmt::format("{} rows, {} heads of {}, {} apart", rows, heads, head_dim, gate_head_stride));
}

TEST_F(CudaSigmoidMul, EqualsTheDefinition) {
  Random random(3);
  for (const int64_t rows : {0, 1, 6}) {
    for (const int64_t head_dim : {1, 2, 7, 64, 100, 128, 256}) {
      for (const int64_t stride : {head_dim, head_dim + 3, 2 * head_dim}) {
        for (const bool in_place : {false, true})
          check_sigmoid_mul(rows, 3, head_dim, stride, kPlacements[(rows + stride) % 3], in_place, random);
      }
    }
  }
  for (const bool in_place : {false, true}) {
    check_sigmoid_mul(300, 16, 256, 512, kAligned, in_place, random, 4);
    check_sigmoid_mul(300, 16, 256, 511, kAligned, in_place, random, 1);
    check_sigmoid_mul(300, 16, 256, 256, kUnaligned, in_place, random, 1);
  }
}

void check_add_gated(const Size& size, Placement placement, Random& random, int expected_width = 0) {
  Array x(DType::kF32, size.rows, size.columns, placement), gate(DType::kF32, size.rows, 1, {6, 1});
  Array out(DType::kF32, size.rows, size.columns, placement);
  for (Array* array : {&x, &gate, &out}) array->fill(random, 3.0f);
  if (size.rows >= 5) sprinkle_specials(x, random);
  if (size.rows >= 5) sprinkle_specials(out, random);
  const Array expected = out;
  ReferenceOps().add_gated(expected.view(), x.view(), gate.view());
  const DeviceInput device_x(x), device_gate(gate);
  const DeviceCopy device_out(out);
  const cuda::AddGatedLaunch launch =
      cuda::add_gated_launch(device_out.view(), device_x.view(), device_gate.view());
  expect_width(launch.shape, expected_width);
  cuda::launch_add_gated(nullptr, launch);
  finish_launches();
  expect_same(device_out.download(), expected, fmt::format("{} rows of {}", size.rows, size.columns));
}

TEST_F(CudaAddGated, EqualsTheDefinition) {
  Random random(4);
  for (const Size& size : element_sizes()) {
    check_add_gated(size, kPlacements[0], random);
    check_add_gated(size, kPlacements[1], random);
  }
  check_add_gated(kLarge, kAligned, random, 4);
  check_add_gated(kLarge, kUnaligned, random, 1);
}

void check_softcap(const Size& size, Placement placement, Random& random, int expected_width = 0) {
  Array x(DType::kF32, size.rows, size.columns, placement);
  x.fill(random, 40.0f);
  if (size.rows >= 5) sprinkle_specials(x, random);
  const Array expected = x;
  ReferenceOps().softcap(expected.view(), 30.0f);
  const DeviceCopy device_x(x);
  const cuda::SoftcapLaunch launch = cuda::softcap_launch(device_x.view(), 30.0f);
  expect_width(launch.shape, expected_width);
  cuda::launch_softcap(nullptr, launch);
  finish_launches();
  expect_same(device_x.download(), expected, fmt::format("{} rows of {}", size.rows, size.columns));
}

TEST_F(CudaSoftcap, EqualsTheDefinition) {
  Random random(5);
  for (const Size& size : element_sizes()) {
    check_softcap(size, kPlacements[0], random);
    check_softcap(size, kPlacements[1], random);
  }
  check_softcap(kLarge, kAligned, random, 4);
  check_softcap(kLarge, kUnaligned, random, 1);
}

// Kernels start before the ones that they depend on have ended: each must wait.
TEST_F(CudaAddGated, WaitsForTheKernelBefore) {
  constexpr int kSteps = 20;
  Random random(6);
  Array x(DType::kF32, 50, 5000), gate(DType::kF32, 50, 1), sum(DType::kF32, 50, 5000);
  for (Array* array : {&x, &gate, &sum}) array->fill(random, 3.0f);
  const DeviceInput device_gate(gate);
  const DeviceCopy device_x(x), device_sum(sum);
  for (int i = 0; i < kSteps; ++i) {
    ReferenceOps().add_gated(sum.view(), x.view(), gate.view());
    ReferenceOps().softcap(sum.view(), 4.0f);
    ReferenceOps().add_gated(x.view(), sum.view(), gate.view());
    ReferenceOps().softcap(x.view(), 5.0f);
  }
  for (int i = 0; i < kSteps; ++i) {
    cuda::launch_add_gated(nullptr,
                           cuda::add_gated_launch(device_sum.view(), device_x.view(), device_gate.view()));
    cuda::launch_softcap(nullptr, cuda::softcap_launch(device_sum.view(), 4.0f));
    cuda::launch_add_gated(nullptr,
                           cuda::add_gated_launch(device_x.view(), device_sum.view(), device_gate.view()));
    cuda::launch_softcap(nullptr, cuda::softcap_launch(device_x.view(), 5.0f));
  }
  finish_launches();
  expect_same(device_sum.download(), sum, "sum");
  expect_same(device_x.download(), x, "x");
}

TEST_F(CudaGatherRows, CopiesRowsOfEveryWidth) {
  Random random(7);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t n : {0, 1, 2, 3, 4, 8, 16, 17, 255, 256, 1000, 5120}) {
      for (const Placement& placement :
           {Placement{0, 0}, Placement{8, 8}, Placement{3, 1}, Placement{2, 2}}) {
        Array x(dtype, 40, n, placement);
        x.fill(random);
        sprinkle_specials(x, random);
        for (const int64_t num_rows : {0, 1, 3, 90}) {
          std::vector<int32_t> rows(num_rows);
          for (int32_t& row : rows) row = static_cast<int32_t>(random.below(40));
          const Array out(dtype, num_rows, n, placement), expected = out;
          ReferenceOps().gather_rows(expected.view(), x.view(), rows);
          const DeviceInput device_x(x);
          const DeviceCopy device_out(out);
          const DeviceVector<int32_t> device_rows(rows);
          cuda::launch_gather_rows(
              nullptr, cuda::gather_rows_launch(device_out.view(), device_x.view(), device_rows.data()));
          finish_launches();
          expect_same(device_out.download(), expected, fmt::format("{} rows of {}", num_rows, n));
        }
      }
    }
  }
}

TEST_F(CudaGatherRows, RoundsToBf16WhereTheOutputIs) {
  Random random(8);
  const std::vector<int32_t> rows = {4, 0, 0, 8, 3};
  for (const int64_t n : {1, 2, 17, 256, 5120}) {
    for (const Placement& placement : kPlacements) {
      Array x(DType::kF32, 9, n, placement);
      x.fill(random);
      sprinkle_specials(x, random);
      const Array out(DType::kBF16, 5, n, placement), expected = out;
      ReferenceOps().gather_rows(expected.view(), x.view(), rows);
      const DeviceInput device_x(x);
      const DeviceCopy device_out(out);
      const DeviceVector<int32_t> device_rows(rows);
      cuda::launch_gather_rows(
          nullptr, cuda::gather_rows_launch(device_out.view(), device_x.view(), device_rows.data()));
      finish_launches();
      expect_same(device_out.download(), expected, fmt::format("rounded rows of {}", n));
    }
  }
}

}  // namespace
}  // namespace tensorfold::test
