// The vector functions of ops/cpu/simd_math-inl.h as plain functions over arrays, one table per instruction set.
#pragma once

#include <cstdint>
#include <string_view>

#include "ops/ops.h"

namespace tensorfold::test {

/// y[i] = f(x[i]); n a multiple of 16.
struct SimdFunction {
  std::string_view name;
  void (*run)(const float* x, float* y, int64_t n);
  float (*scalar)(float x);
  bool only_nonpositive;  ///< f is defined for x <= 0 and NaN.
};

/// sin and cos of doubles; n a multiple of 16.
using SimdSinCos = void (*)(const double* x, double* sin, double* cos, int64_t n);
/// to_bf16 as 16 bits.
using SimdBf16 = void (*)(const float* x, uint16_t* y, int64_t n);

inline constexpr int kNumSimdFunctions = 10;
struct SimdTable {
  SimdFunction functions[kNumSimdFunctions];
  SimdSinCos sincos;
  SimdBf16 bf16;
};

/// `isa` must be one this CPU runs.
SimdTable simd_table(CpuIsa isa);

}  // namespace tensorfold::test
