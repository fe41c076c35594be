// rms_norm of the cpu backend: one row a task; a row is read twice, the second time from L1.
#include "ops/cpu/isa_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rms_norm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/rms_norm.h"
#include "ops/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {

template <class Out>
HWY_INLINE void rms_norm_row(Out* out, const float* x, const float* weight, int64_t n, float eps) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const float mean = sum_of_squares(x, n) * (1.0f / static_cast<float>(n));
  const float inverse = rsqrt_f32(mean + eps);
  const auto inverses = hn::Set(d, inverse);
  int64_t e = 0;
  for (; e + lanes <= n; e += lanes) {
    store_as(d, hn::Mul(hn::Mul(hn::LoadU(d, x + e), inverses), hn::LoadU(d, weight + e)), out + e);
  }
  for (; e < n; ++e) store_one((x[e] * inverse) * weight[e], out + e);
}

void rms_norm_row_f32(float* out, const float* x, const float* weight, int64_t n, float eps) {
  rms_norm_row(out, x, weight, n, eps);
}
/// out += the norm.
void rms_norm_row_accumulate(float* out, const float* x, const float* weight, int64_t n, float eps) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const float mean = sum_of_squares(x, n) * (1.0f / static_cast<float>(n));
  const float inverse = rsqrt_f32(mean + eps);
  int64_t e = 0;
  for (; e + lanes <= n; e += lanes) {
    const auto y = hn::Mul(hn::Mul(hn::LoadU(d, x + e), hn::Set(d, inverse)), hn::LoadU(d, weight + e));
    hn::StoreU(hn::Add(hn::LoadU(d, out + e), y), d, out + e);
  }
  for (; e < n; ++e) out[e] = out[e] + (x[e] * inverse) * weight[e];
}
void rms_norm_row_bf16(bf16* out, const float* x, const float* weight, int64_t n, float eps) {
  rms_norm_row(out, x, weight, n, eps);
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "ops/cpu/split.h"

namespace tensorfold::cpu {

void rms_norm(CpuContext& cpu, View out, View x, View weight, const RmsNormOptions& options) {
  const int64_t n = x.dim(1);
  const float* w = weight.row<const float>(0);
  const auto row_f32 = options.accumulate ? TF_ISA_FUNCTION(cpu.isa, rms_norm_row_accumulate)
                                          : TF_ISA_FUNCTION(cpu.isa, rms_norm_row_f32);
  const auto row_bf16 = TF_ISA_FUNCTION(cpu.isa, rms_norm_row_bf16);
  for_row_blocks(cpu.pool, x.dim(0), n, [&](int64_t t) {
    if (out.dtype == DType::kBF16) {
      row_bf16(out.row<bf16>(t), x.row<const float>(t), w, n, options.eps);
    } else {
      row_f32(out.row<float>(t), x.row<const float>(t), w, n, options.eps);
    }
  });
}

}  // namespace tensorfold::cpu
#endif
