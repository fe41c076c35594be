// silu_mul of the cpu backend.
#include "ops/cpu/isa_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/silu_mul.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/silu_mul.h"
#include "ops/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {

template <class Out>
void silu_mul_row(Out* out, const float* gate, const float* up, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    store_as(d, hn::Mul(simd_silu(d, hn::LoadU(d, gate + i)), hn::LoadU(d, up + i)), out + i);
  }
  for (; i < n; ++i) store_one(silu_f32(gate[i]) * up[i], out + i);
}

void silu_mul_row_f32(float* out, const float* gate, const float* up, int64_t n) { silu_mul_row(out, gate, up, n); }
void silu_mul_row_bf16(bf16* out, const float* gate, const float* up, int64_t n) { silu_mul_row(out, gate, up, n); }

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "ops/cpu/split.h"

namespace tensorfold::cpu {

void silu_mul(CpuContext& cpu, View out, View gate, View up) {
  const int64_t n = out.dim(1);
  const auto row_f32 = TF_ISA_FUNCTION(cpu.isa, silu_mul_row_f32);
  const auto row_bf16 = TF_ISA_FUNCTION(cpu.isa, silu_mul_row_bf16);
  for_row_blocks(cpu.pool, out.dim(0), n, [&](int64_t t) {
    if (out.dtype == DType::kBF16) {
      row_bf16(out.row<bf16>(t), gate.row<const float>(t), up.row<const float>(t), n);
    } else {
      row_f32(out.row<float>(t), gate.row<const float>(t), up.row<const float>(t), n);
    }
  });
}

}  // namespace tensorfold::cpu
#endif
