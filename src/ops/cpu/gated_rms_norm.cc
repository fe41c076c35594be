// gated_rms_norm of the cpu backend: one group of one row at a time, the gate's result kept in a buffer where
// the norm comes after it.
#include "ops/cpu/isa_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/gated_rms_norm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/gated_rms_norm.h"
#include "ops/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {

float inverse_rms(const float* x, int64_t n, float eps) {
  return rsqrt_f32(sum_of_squares(x, n) * (1.0f / static_cast<float>(n)) + eps);
}

template <class Out>
HWY_INLINE void norm_then_gate(Out* out, const float* x, const float* gate, const float* weight, int64_t n,
                               float eps) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const float inverse = inverse_rms(x, n, eps);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto y = hn::Mul(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse)), hn::LoadU(d, weight + i));
    store_as(d, hn::Mul(y, simd_silu(d, hn::LoadU(d, gate + i))), out + i);
  }
  for (; i < n; ++i) store_one(((x[i] * inverse) * weight[i]) * silu_f32(gate[i]), out + i);
}

/// `gated` [n] is scratch.
template <class Out>
HWY_INLINE void gate_then_norm(Out* out, const float* x, const float* gate, const float* weight, int64_t n,
                               float eps, float* gated) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), simd_silu(d, hn::LoadU(d, gate + i))), d, gated + i);
  for (; i < n; ++i) gated[i] = x[i] * silu_f32(gate[i]);
  const float inverse = inverse_rms(gated, n, eps);
  for (i = 0; i + lanes <= n; i += lanes) {
    store_as(d, hn::Mul(hn::Mul(hn::LoadU(d, gated + i), hn::Set(d, inverse)), hn::LoadU(d, weight + i)),
             out + i);
  }
  for (; i < n; ++i) store_one((gated[i] * inverse) * weight[i], out + i);
}

/// One group; `gated` [n] is scratch, or null where the norm comes first.
template <class Out>
HWY_INLINE void gated_group(Out* out, const float* x, const float* gate, const float* weight, int64_t n,
                            float eps, float* gated) {
  if (gated == nullptr) {
    norm_then_gate(out, x, gate, weight, n, eps);
  } else {
    gate_then_norm(out, x, gate, weight, n, eps, gated);
  }
}

void gated_group_f32(float* out, const float* x, const float* gate, const float* weight, int64_t n, float eps,
                     float* gated) {
  gated_group(out, x, gate, weight, n, eps, gated);
}
void gated_group_bf16(bf16* out, const float* x, const float* gate, const float* weight, int64_t n, float eps,
                      float* gated) {
  gated_group(out, x, gate, weight, n, eps, gated);
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "ops/cpu/split.h"

namespace tensorfold::cpu {

void gated_rms_norm(CpuContext& cpu, const GatedRmsNormCall& call) {
  const auto group_f32 = TF_ISA_FUNCTION(cpu.isa, gated_group_f32);
  const auto group_bf16 = TF_ISA_FUNCTION(cpu.isa, gated_group_bf16);
  const int64_t n = call.x.dim(1), size = call.group_size;
  const float* weight = call.weight.row<const float>(0);
  const int64_t weight_step = call.weight.dim(0) == n ? size : 0;
  const Workspace::Frame frame(cpu.workspace);
  float* gated = nullptr;
  if (call.order == GatedRmsNormCall::Order::kGateThenNorm)
    gated = cpu.workspace.take<float>(call.x.dim(0) * n);
  for_row_blocks(cpu.pool, call.x.dim(0), n, [&](int64_t t) {
    for (int64_t first = 0, g = 0; first < n; first += size, ++g) {
      const float* x = call.x.row<const float>(t) + first;
      const float* gate = call.gate.row<const float>(t) + first;
      float* scratch = gated == nullptr ? nullptr : gated + t * n + first;
      if (call.out.dtype == DType::kBF16) {
        group_bf16(call.out.row<bf16>(t) + first, x, gate, weight + g * weight_step, size, call.eps, scratch);
      } else {
        group_f32(call.out.row<float>(t) + first, x, gate, weight + g * weight_step, size, call.eps, scratch);
      }
    }
  });
}

}  // namespace tensorfold::cpu
#endif
