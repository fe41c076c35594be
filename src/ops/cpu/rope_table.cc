// rope_table of the cpu backend: lanes of double over the frequencies of one position.
#include "ops/cpu/isa_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rope_table.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/rope_table.h"
#include "ops/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {

void rope_table_row(float* cos, float* sin, double position, const double* inv_freq, int64_t n, double multiplier) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> d32;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto positions = hn::Set(d, position), multipliers = hn::Set(d, multiplier);
  int64_t j = 0;
  for (; j + lanes <= n; j += lanes) {
    hn::Vec<decltype(d)> s, c;
    simd_sincos(d, hn::Mul(positions, hn::LoadU(d, inv_freq + j)), s, c);
    hn::StoreU(hn::DemoteTo(d32, hn::Mul(c, multipliers)), d32, cos + j);
    hn::StoreU(hn::DemoteTo(d32, hn::Mul(s, multipliers)), d32, sin + j);
  }
  for (; j < n; ++j) {
    const SinCos angle = sincos_f64(position * inv_freq[j]);
    cos[j] = static_cast<float>(angle.cos * multiplier);
    sin[j] = static_cast<float>(angle.sin * multiplier);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "ops/cpu/split.h"

namespace tensorfold::cpu {

void rope_table(CpuContext& cpu, View cos, View sin, std::span<const int32_t> positions,
                std::span<const double> inv_freq, double multiplier) {
  const auto row = TF_ISA_FUNCTION(cpu.isa, rope_table_row);
  const int64_t n = static_cast<int64_t>(inv_freq.size());
  constexpr int64_t kCostOfAngle = 8;  // in elements of the other small ops
  for_row_blocks(cpu.pool, static_cast<int64_t>(positions.size()), n * kCostOfAngle, [&](int64_t t) {
    row(cos.row<float>(t), sin.row<float>(t), positions[t], inv_freq.data(), n, multiplier);
  });
}

}  // namespace tensorfold::cpu
#endif
