// top_tokens on CUDA: equal to the definition, over slices of every number and size.
#include "ops/cuda/top_tokens.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <vector>

#include "ops/reference/reference_ops.h"
#include "tests/ops/cuda/device_copy.h"

namespace tensorfold::test {
namespace {

using CudaTopTokens = OnCudaDevice;

void check(const Array& logits, int64_t k, const std::string& what) {
  const auto count = static_cast<size_t>(logits.rows() * k);
  std::vector<int32_t> tokens(count);
  std::vector<float> values(count);
  ReferenceOps().top_tokens(tokens, values, logits.view(), k);

  const DeviceInput device_logits(logits);
  const DeviceVector<int32_t> found_tokens(std::vector<int32_t>(count, 77));
  const DeviceVector<float> found_values(std::vector<float>(count, 77.0f));
  const DeviceVector<std::byte> scratch(
      std::vector<std::byte>(static_cast<size_t>(cuda::top_tokens_scratch_bytes(logits.view(), k))));
  cuda::launch_top_tokens(
      nullptr, cuda::top_tokens_launch(const_cast<int32_t*>(found_tokens.data()),
                                       const_cast<float*>(found_values.data()), device_logits.view(), k,
                                       const_cast<std::byte*>(scratch.data())));
  finish_launches();
  EXPECT_EQ(found_tokens.download(), tokens) << what;
  EXPECT_EQ(std::memcmp(found_values.download().data(), values.data(), count * sizeof(float)), 0) << what;
}

TEST_F(CudaTopTokens, EqualsTheDefinition) {
  uint64_t seed = 1;
  for (const int64_t size : {1, 2, 31, 255, 256, 257, 8191, 8192, 8193, 32064, 248320}) {
    for (const int64_t k : {1, 16, 64}) {
      Random random(seed++);
      Array logits(DType::kF32, 4, size, kPlacements[seed % 3]);
      logits.fill(random, 4.0f);
      check(logits, k, fmt::format("{} logits, k {}", size, k));
      for (int64_t j = 0; j < size; ++j) logits.set(1, j, std::round(logits.get(1, j)));
      sprinkle_specials(logits, random);
      check(logits, k, fmt::format("{} logits with specials, k {}", size, k));
    }
  }
}

TEST_F(CudaTopTokens, ANaNAtAnyTokenLeavesNoneOfItsRow) {
  Random random(40);
  for (const int64_t size : {1, 5, 8192, 8193, 32064}) {
    for (const int64_t place : {int64_t{0}, size / 2, std::min<int64_t>(8191, size - 1), size - 1}) {
      for (const uint32_t nan : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xffffffffu}) {
        Array logits(DType::kF32, 3, size);
        logits.fill(random, 4.0f);
        logits.set(1, (place + 1) % size, std::numeric_limits<float>::infinity());
        logits.set(1, place, bits_as<float>(nan));
        check(logits, 3, fmt::format("NaN at {} of {}", place, size));
      }
    }
  }
}

}  // namespace
}  // namespace tensorfold::test
