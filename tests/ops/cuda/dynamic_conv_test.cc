// dynamic_conv on CUDA: equal, bit for bit, to the definition.
#include "ops/cuda/dynamic_conv.h"

#include <fmt/format.h>

#include <vector>

#include "ops/reference/reference_ops.h"
#include "tests/ops/cuda/device_copy.h"

namespace tensorfold::test {
namespace {

using CudaDynamicConv = OnCudaDevice;

struct Sizes {
  int64_t groups, group_size, taps;
};

void check(const Sizes& sizes, Placement placement, DType dtype, bool accumulate, uint64_t seed) {
  std::vector<SequenceRows> sequences;
  int64_t num_rows = 0;
  const int32_t page = 0;
  for (const int64_t length : {8, 1, 16, 3}) {
    sequences.push_back({.first_row = num_rows, .num_rows = length, .page_table = &page});
    num_rows += length;
  }
  const std::vector<int32_t> positions(num_rows);
  const int64_t channels = sizes.groups * sizes.group_size;
  Array x(DType::kF32, num_rows, channels, placement), base(DType::kF32, sizes.taps, channels, {2, 3});
  Array dynamic(DType::kF32, num_rows, sizes.taps * sizes.groups, placement);
  Array out(dtype, num_rows, channels, placement);
  Random random(seed);
  for (Array* array : {&x, &base, &dynamic, &out}) array->fill(random);
  if (seed % 3 == 0) sprinkle_specials(x, random);
  const auto call = [&](View to, View from, View weights, View additions) {
    return DynamicConvCall{.out = to,
                           .x = from,
                           .base = weights,
                           .dynamic = additions,
                           .rows = {positions, sequences},
                           .accumulate = accumulate};
  };
  const Array expected = out;
  ReferenceOps().dynamic_conv(call(expected.view(), x.view(), base.view(), dynamic.view()));

  const DeviceInput device_x(x), device_base(base), device_dynamic(dynamic);
  const DeviceCopy device_out(out);
  std::vector<cuda::AttentionSequence> on_device;
  std::vector<int32_t> tables;
  cuda::AttentionRows rows = cuda::make_attention_rows({positions, sequences}, on_device, tables);
  const DeviceVector<cuda::AttentionSequence> device_sequences(on_device);
  rows.sequences = device_sequences.data();
  cuda::launch_dynamic_conv(
      nullptr,
      cuda::dynamic_conv_launch(
          call(device_out.view(), device_x.view(), device_base.view(), device_dynamic.view()), rows));
  finish_launches();
  expect_same(device_out.download(), expected,
              fmt::format("{} groups of {}, {} taps", sizes.groups, sizes.group_size, sizes.taps));
}

TEST_F(CudaDynamicConv, EqualsTheDefinition) {
  uint64_t seed = 1;
  for (const int64_t group_size : {1, 3, 16, 64}) {
    for (const int64_t groups : {1, 5, 40}) {
      for (const int64_t taps : {1, 2, 5}) {
        const Placement& placement = kPlacements[seed % 3];
        check({groups, group_size, taps}, placement, DType::kF32, false, seed++);
        check({groups, group_size, taps}, placement, DType::kF32, true, seed++);
        check({groups, group_size, taps}, placement, DType::kBF16, false, seed++);
      }
    }
  }
  check({320, 16, 2}, {}, DType::kBF16, false, seed);
}

}  // namespace
}  // namespace tensorfold::test
