// What the files of the reference backend share: one element of a view as float, and the short sum.
#pragma once

#include <array>
#include <cstdint>

#include "base/bf16.h"
#include "base/view.h"
#include "ops/contract_math.h"

namespace tensorfold::reference {

/// Element (row, column) of a two-dimensional bf16 or f32 view.
inline float load(const View& view, int64_t row, int64_t column) {
  return view.dtype == DType::kBF16 ? to_float(view.row<const bf16>(row)[column])
                                    : view.row<const float>(row)[column];
}

/// Stores it, rounded to the view's dtype.
inline void store(const View& view, int64_t row, int64_t column, float value) {
  if (view.dtype == DType::kBF16) {
    view.row<bf16>(row)[column] = to_bf16(value);
  } else {
    view.row<float>(row)[column] = value;
  }
}

/// The value after a round trip through `dtype`.
inline float rounded_to(DType dtype, float value) {
  return dtype == DType::kBF16 ? to_float(to_bf16(value)) : value;
}

/// A sum in kPartials partial sums: term i goes to partial i mod kPartials, then halving.
template <int kPartials>
class HalvedSum {
 public:
  void add(float value) { next() += value; }
  void add_square(float value) { add_product(value, value); }
  void add_product(float left, float right) {
    float& partial = next();
    partial = contract::fused(left, right, partial);
  }
  float total() const {
    std::array<float, kPartials> sum = partials_;
    for (int half = kPartials / 2; half >= 1; half /= 2) {
      for (int i = 0; i < half; ++i) sum[i] += sum[i + half];
    }
    return sum[0];
  }

 private:
  float& next() { return partials_[count_++ % kPartials]; }
  std::array<float, kPartials> partials_{};
  int64_t count_ = 0;
};

/// Sums of squares, softmax denominators and the like (arithmetic.md, "The rest").
using ShortSum = HalvedSum<32>;
/// Sums over the key dimension of a recurrent state (arithmetic.md, "Recurrences").
using KeySum = HalvedSum<8>;

}  // namespace tensorfold::reference
