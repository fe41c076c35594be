// What the files of the reference backend share: one element of a view as float, and the short sum.
#pragma once

#include <array>
#include <cstdint>

#include "base/bf16.h"
#include "base/check.h"
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

/// A sum in `partials` partial sums, a power of two: term i goes to partial i mod `partials`, then halving.
template <int kMaxPartials>
class HalvedSum {
 public:
  explicit HalvedSum(int partials = kMaxPartials) : num_partials_(partials) {
    TF_DCHECK(partials >= 1 && partials <= kMaxPartials && (partials & (partials - 1)) == 0);
  }
  void add(float value) { next() += value; }
  void add_square(float value) { add_product(value, value); }
  void add_product(float left, float right) {
    float& partial = next();
    partial = contract::fused(left, right, partial);
  }
  float total() const {
    std::array<float, kMaxPartials> sum = partials_;
    for (int half = num_partials_ / 2; half >= 1; half /= 2) {
      for (int i = 0; i < half; ++i) sum[i] += sum[i + half];
    }
    return sum[0];
  }

 private:
  float& next() { return partials_[count_++ % num_partials_]; }
  int num_partials_;
  std::array<float, kMaxPartials> partials_{};
  int64_t count_ = 0;
};

/// Sums of squares, softmax denominators and the like (arithmetic.md, "The rest") take the backend's number
/// of partials.
struct ShortSum : HalvedSum<256> {
  explicit ShortSum(int partials) : HalvedSum(partials) {}
};

/// Sums over the key dimension of a recurrent state (arithmetic.md, "Recurrences").
using KeySum = HalvedSum<8>;

}  // namespace tensorfold::reference
