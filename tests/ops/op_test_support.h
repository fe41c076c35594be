// What the op tests share: arrays with guard bytes, seeded values, comparison of bits, and one fixture that runs a test
// on each instruction set of the cpu backend in turn.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "base/hash.h"
#include "base/view.h"
#include "ops/contract_math.h"
#include "ops/ops.h"
#include "tests/ops/per_isa.h"

namespace tensorfold::test {

/// Seeded values; the seed is part of every failure message through the test's own code, so keep it fixed.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() { return mix64(state_ += 0x9e3779b97f4a7c15ull); }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  /// Roughly normal: the sum of four uniforms, mean 0, deviation 1.
  float normal() {
    return static_cast<float>((uniform() + uniform() + uniform() + uniform() - 2.0) * 1.7320508075688772);
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }

 private:
  uint64_t state_;
};

/// How an array lies in memory: `gap` unused columns after each row, and `shift` elements off the alignment of 64.
struct Placement {
  int64_t gap = 0;
  int64_t shift = 0;
};

/// A two-dimensional array that owns its memory and knows when something else was written: every byte outside of its
/// elements is a guard, every element starts as poison.
class Array {
 public:
  Array(DType dtype, int64_t rows, int64_t columns, Placement placement = {})
      : dtype_(dtype), rows_(rows), columns_(columns), stride_(columns + placement.gap) {
    const int64_t guard = kGuardBytes + placement.shift * dtype_bytes(dtype);
    bytes_.assign(64 + guard + rows * stride_ * dtype_bytes(dtype) + kGuardBytes, kPoison);
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data()) + kGuardBytes;
    start_ = static_cast<int64_t>((address + 63) / 64 * 64 - reinterpret_cast<uintptr_t>(bytes_.data())) +
             placement.shift * dtype_bytes(dtype);
  }

  View view() const {
    View v(const_cast<std::byte*>(bytes_.data()) + start_, dtype_, {rows_, columns_});
    v.row_stride = stride_;
    return v;
  }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }

  float get(int64_t i, int64_t j) const {
    return dtype_ == DType::kBF16 ? to_float(view().row<bf16>(i)[j]) : view().row<float>(i)[j];
  }
  void set(int64_t i, int64_t j, float value) {
    if (dtype_ == DType::kBF16) {
      view().row<bf16>(i)[j] = to_bf16(value);
    } else {
      view().row<float>(i)[j] = value;
    }
  }
  Array& fill(Random& random, float scale = 1.0f) {
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t j = 0; j < columns_; ++j) set(i, j, scale * random.normal());
    }
    return *this;
  }

  /// All of its memory, guards included: for copies on another device.
  std::span<std::byte> block() { return bytes_; }
  std::span<const std::byte> block() const { return bytes_; }

  /// Every byte outside of the elements is as it was.
  bool guards_intact() const {
    std::vector<bool> is_element(bytes_.size(), false);
    const int64_t size = dtype_bytes(dtype_);
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t b = 0; b < columns_ * size; ++b) is_element[start_ + i * stride_ * size + b] = true;
    }
    for (size_t b = 0; b < bytes_.size(); ++b) {
      if (!is_element[b] && bytes_[b] != kPoison) return false;
    }
    return true;
  }

  /// "" where all elements have the same bits (any NaN equals any NaN), else the first difference.
  std::string difference(const Array& expected) const {
    if (rows_ != expected.rows_ || columns_ != expected.columns_ || dtype_ != expected.dtype_) return "shapes differ";
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t j = 0; j < columns_; ++j) {
        const int64_t size = dtype_bytes(dtype_);
        const std::byte* a = view().rows(i, 1).data + j * size;
        const std::byte* e = expected.view().rows(i, 1).data + j * size;
        if (std::memcmp(a, e, size) == 0) continue;
        const bool is_float = dtype_ == DType::kBF16 || dtype_ == DType::kF32;
        if (is_float && std::isnan(get(i, j)) && std::isnan(expected.get(i, j))) continue;
        char text[160];
        std::snprintf(text, sizeof text, "[%ld, %ld] is %a, expected %a", static_cast<long>(i), static_cast<long>(j),
                      is_float ? get(i, j) : static_cast<double>(view().row<int32_t>(i)[j]),
                      is_float ? expected.get(i, j) : static_cast<double>(expected.view().row<int32_t>(i)[j]));
        return text;
      }
    }
    return "";
  }

 private:
  static constexpr std::byte kPoison{0xa5};
  static constexpr int64_t kGuardBytes = 256;
  DType dtype_;
  int64_t rows_, columns_, stride_;
  std::vector<std::byte> bytes_;
  int64_t start_ = 0;
};

/// `actual` equals `expected` bit for bit and nothing was written beside it.
inline void expect_same(const Array& actual, const Array& expected, const std::string& what) {
  EXPECT_EQ(actual.difference(expected), "") << what;
  EXPECT_TRUE(actual.guards_intact()) << what << ": wrote outside of its output";
}

/// Some elements become NaN, infinities, zeros of both signs, denormals and the largest floats.
inline void sprinkle_specials(Array& array, Random& random) {
  constexpr uint32_t kSpecials[] = {0x7fc00000u, 0xff800000u, 0x7f800000u, 0x80000000u,
                                    0u,          0x00400000u, 0x807fffffu, 0x7f7fffffu};
  for (int i = 0; i < 12 && array.rows() * array.columns() > 0; ++i) {
    array.set(random.below(array.rows()), random.below(array.columns()),
              bits_as<float>(kSpecials[random.below(std::size(kSpecials))]));
  }
}

/// Element counts around every vector and tile width.
inline std::vector<int64_t> edge_sizes() {
  return {0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 96, 127, 128, 129, 255, 576, 1000};
}

inline const Placement kPlacements[] = {{0, 0}, {3, 1}, {5, 7}};

/// Runs a test once per instruction set, on the reference and on the cpu backend held to that set.
class EveryIsa : public CpuIsaTest {
 protected:
  void SetUp() override {
    CpuIsaTest::SetUp();
    if (IsSkipped()) return;
    reference_ = make_reference_ops();
    for (const int num_threads : {1, 3}) backends_.push_back(make_ops(num_threads));
  }

  Ops& reference() { return *reference_; }
  /// The cpu backend with one thread and with three.
  std::vector<std::unique_ptr<Ops>>& backends() { return backends_; }

 private:
  std::unique_ptr<Ops> reference_;
  std::vector<std::unique_ptr<Ops>> backends_;
};

}  // namespace tensorfold::test
