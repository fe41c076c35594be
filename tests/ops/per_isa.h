// What tests of the cpu backend share: the same test under each instruction set, guarded buffers, and bits
// compared.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "base/view.h"
#include "ops/ops.h"

namespace tensorfold {

/// A test that runs once per instruction set; one that this CPU lacks is skipped by name.
class CpuIsaTest : public testing::TestWithParam<CpuIsa> {
 protected:
  void SetUp() override {
    for (CpuIsa isa : supported_cpu_isas()) {
      if (isa == GetParam()) return;
    }
    GTEST_SKIP() << "this CPU cannot run " << cpu_isa_name(GetParam());
  }

  /// The backend held to this test's set, and proof that it is.
  std::unique_ptr<Ops> make_ops(int num_threads = 1) const {
    Result<std::unique_ptr<Ops>> ops = make_cpu_ops(num_threads, GetParam());
    TF_CHECK(ops.ok(), ops.status().message());
    EXPECT_EQ((*ops)->info().isa, cpu_isa_name(GetParam()));
    EXPECT_EQ((*ops)->info().num_threads, num_threads);
    return std::move(ops).value();
  }
};

inline std::string cpu_isa_test_name(const testing::TestParamInfo<CpuIsa>& info) {
  std::string name(cpu_isa_name(info.param));
  std::erase(name, '-');
  return name;
}

#define TF_INSTANTIATE_FOR_EVERY_ISA(suite)                                                            \
  INSTANTIATE_TEST_SUITE_P(                                                                            \
      Isa, suite, testing::Values(CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16, CpuIsa::kNeon), \
      cpu_isa_test_name)

/// A matrix of f32 or bf16 with a row stride of its own. Everything starts poisoned, and check_guards() fails
/// where anything but the rows' own elements has changed.
class GuardedMatrix {
 public:
  GuardedMatrix(DType dtype, int64_t rows, int64_t columns, int64_t row_stride)
      : bytes_(static_cast<size_t>((rows * row_stride + 2 * kGuard) * dtype_bytes(dtype)), kPoison),
        view_(bytes_.data() + kGuard * dtype_bytes(dtype), dtype, {rows, columns}) {
    view_.row_stride = row_stride;
  }
  GuardedMatrix(DType dtype, int64_t rows, int64_t columns)
      : GuardedMatrix(dtype, rows, columns, columns + 5) {}

  const View& view() const { return view_; }

  void check_guards() const {
    const int64_t size = dtype_bytes(view_.dtype), stride = view_.row_stride * size;
    std::vector<std::byte> expected(bytes_.size(), kPoison);
    for (int64_t t = 0; t < view_.num_rows(); ++t) {
      const int64_t start = kGuard * size + t * stride;
      std::memcpy(expected.data() + start, bytes_.data() + start, static_cast<size_t>(view_.dim(1) * size));
    }
    EXPECT_EQ(std::memcmp(expected.data(), bytes_.data(), bytes_.size()), 0)
        << "bytes around the output changed";
  }

 private:
  static constexpr int64_t kGuard = 64;  ///< Elements before and after.
  static constexpr std::byte kPoison =
      std::byte{0xa7};  ///< No NaN in either dtype, and no value a test produces.
  std::vector<std::byte> bytes_;
  View view_;
};

/// Element as bits, all NaNs alike.
inline uint32_t comparable_bits(const View& view, int64_t row, int64_t column) {
  const float value =
      view.dtype == DType::kF32 ? view.row<float>(row)[column] : to_float(view.row<bf16>(row)[column]);
  return std::isnan(value) ? 0x7fc00000u : std::bit_cast<uint32_t>(value);
}

/// The number of elements that differ; the first is described.
inline testing::AssertionResult same_bits(const View& actual, const View& expected) {
  for (int64_t t = 0; t < actual.num_rows(); ++t) {
    for (int64_t i = 0; i < actual.dim(1); ++i) {
      const uint32_t a = comparable_bits(actual, t, i), e = comparable_bits(expected, t, i);
      if (a == e) continue;
      return testing::AssertionFailure()
             << "row " << t << ", column " << i << ": " << std::bit_cast<float>(a) << " (" << std::hex << a
             << "), expected " << std::bit_cast<float>(e) << " (" << e << ")";
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace tensorfold
