// What every device must do with its memory: the host's, and that of a CUDA device where there is one.
#include "device/device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "device/cuda_device.h"

namespace tensorfold {
namespace {

using Bytes = std::vector<std::byte>;

Bytes counted(int64_t size, int first) {
  Bytes bytes;
  for (int64_t i = 0; i < size; ++i) bytes.push_back(static_cast<std::byte>((first + i * 7) & 0xff));
  return bytes;
}

Bytes read(Device& device, const Buffer& buffer) {
  Bytes bytes(static_cast<size_t>(buffer.size_bytes()));
  EXPECT_TRUE(device.copy_to_host(bytes.data(), buffer.data(), buffer.size_bytes()).ok());
  return bytes;
}

/// The bytes of a buffer that a copy must not touch lie before and behind its target.
void check_copies(Device& device) {
  constexpr int64_t kSize = 5000;
  const Buffer from = device.allocate(kSize, "source").value(), to = device.allocate(kSize, "target").value();
  const Bytes source = counted(kSize, 1);
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{333}, kSize - 64}) {
    for (const int64_t offset : {0, 1, 64}) {
      Bytes expected = counted(kSize, 100);
      ASSERT_TRUE(device.copy_to_device(from.data(), source.data(), kSize).ok());
      ASSERT_TRUE(device.copy_to_device(to.data(), expected.data(), kSize).ok());
      ASSERT_TRUE(device.copy(to.data() + offset, from.data() + 3, std::min(count, kSize - 3)).ok());
      std::copy_n(source.begin() + 3, std::min(count, kSize - 3), expected.begin() + offset);
      Bytes found = read(device, to);
      found.resize(kSize);  // the rest of the block is nobody's
      EXPECT_EQ(found, expected) << count << " bytes at " << offset;
    }
  }
  // In order: what was copied is what was cleared before.
  ASSERT_TRUE(device.zero(from.data(), 100).ok());
  ASSERT_TRUE(device.copy(to.data(), from.data(), 200).ok());
  ASSERT_TRUE(device.zero(to.data() + 150, 50).ok());
  Bytes expected = source;
  std::fill_n(expected.begin(), 100, std::byte{0});
  std::fill_n(expected.begin() + 150, 50, std::byte{0});
  const Bytes found = read(device, to);
  EXPECT_TRUE(std::equal(expected.begin(), expected.begin() + 200, found.begin()));
}

TEST(CpuDevice, CopiesWithinItsMemory) { check_copies(cpu_device()); }

TEST(CudaDevice, OtherComputeCapabilitiesAreRefusedInOneSentence) {
  const auto refusal = [](int major, int minor) {
    return check_compute_capability(2, {.name = "Some GPU", .major = major, .minor = minor});
  };
  EXPECT_TRUE(refusal(9, 0).ok());
  EXPECT_EQ(refusal(8, 0).code(), StatusCode::kUnsupported);
  EXPECT_EQ(
      refusal(8, 0).message(),
      "cuda:2 (Some GPU) has compute capability 8.0; the CUDA kernels run on 9.0 alone (H100, H200, GH200): "
      "use the CPU (--device cpu)");
  for (const auto& [major, minor] : {std::pair(7, 5), {8, 6}, {8, 9}, {9, 1}, {10, 0}, {12, 0}})
    EXPECT_FALSE(refusal(major, minor).ok()) << major << "." << minor;
}

TEST(CudaDevice, CopiesWithinItsMemory) {
  if (num_cuda_devices() == 0) GTEST_SKIP() << "no CUDA device";
  const auto device = make_cuda_device({.ordinal = 0, .memory_bytes = int64_t{1} << 28});
  ASSERT_TRUE(device.ok()) << device.status().message();
  check_copies(**device);
}

}  // namespace
}  // namespace tensorfold
