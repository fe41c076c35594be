// mlp_activation, sigmoid_mul and add_gated of the cpu backend: one row a task.
#include "ops/cpu/isa_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/mlp_activation.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/mlp_activation.h"
#include "ops/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {

// Comparisons pick as the reference's do, so that a NaN goes the same way: a value is replaced only where it
// is smaller (larger) than the bound.
template <class D, class V>
HWY_INLINE V at_most(D, V x, V bound) {
  return hn::IfThenElse(hn::Gt(x, bound), bound, x);
}
template <class D, class V>
HWY_INLINE V at_least(D, V x, V bound) {
  return hn::IfThenElse(hn::Lt(x, bound), bound, x);
}

struct SiluMul {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V gate, V up) const {
    return hn::Mul(simd_silu(d, gate), up);
  }
};
struct GeluTanhMul {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V gate, V up) const {
    return hn::Mul(simd_gelu_tanh(d, gate), up);
  }
};
struct ClampedSilu {
  float alpha, limit;
  template <class D, class V>
  HWY_INLINE V operator()(D d, V gate, V up) const {
    const V top = hn::Set(d, limit);
    const V g = at_most(d, gate, top);
    const V u = at_most(d, at_least(d, up, hn::Neg(top)), top);
    const V gated = hn::Mul(g, simd_sigmoid(d, hn::Mul(hn::Set(d, alpha), g)));
    return hn::Mul(hn::Add(u, hn::Set(d, 1.0f)), gated);
  }
};
struct Relu2 {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V, V up) const {
    const V r = at_least(d, up, hn::Zero(d));
    return hn::Mul(r, r);
  }
};

/// out[i] = f(gate[i], up[i]); gate may be null where f reads none. The rest of a row that fills no vector
/// goes through a buffer, so that every element takes the same instructions.
template <class Out, class F>
HWY_INLINE void activate(Out* out, const float* gate, const float* up, int64_t n, const F& f) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const float* g = gate == nullptr ? up : gate;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) store_as(d, f(d, hn::LoadU(d, g + i), hn::LoadU(d, up + i)), out + i);
  if (i == n) return;
  HWY_ALIGN float rest[2][hn::MaxLanes(d)] = {};
  HWY_ALIGN Out results[hn::MaxLanes(d)];
  for (int64_t j = i; j < n; ++j) {
    rest[0][j - i] = g[j];
    rest[1][j - i] = up[j];
  }
  store_as(d, f(d, hn::Load(d, rest[0]), hn::Load(d, rest[1])), results);
  for (int64_t j = i; j < n; ++j) out[j] = results[j - i];
}

template <class Out>
HWY_INLINE void activate_row(Out* out, const float* gate, const float* up, int64_t n,
                             const MlpActivation& activation) {
  switch (activation.kind) {
    case MlpActivation::Kind::kSilu:
      return activate(out, gate, up, n, SiluMul{});
    case MlpActivation::Kind::kGeluTanh:
      return activate(out, gate, up, n, GeluTanhMul{});
    case MlpActivation::Kind::kClampedSilu:
      return activate(out, gate, up, n, ClampedSilu{activation.alpha, activation.limit});
    case MlpActivation::Kind::kRelu2:
      return activate(out, nullptr, up, n, Relu2{});
  }
}

void activate_row_f32(float* out, const float* gate, const float* up, int64_t n, const MlpActivation& a) {
  activate_row(out, gate, up, n, a);
}
void activate_row_bf16(bf16* out, const float* gate, const float* up, int64_t n, const MlpActivation& a) {
  activate_row(out, gate, up, n, a);
}

struct SigmoidMul {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V gate, V x) const {
    return hn::Mul(x, simd_sigmoid(d, gate));
  }
};

void sigmoid_mul_f32(float* out, const float* gate, const float* x, int64_t n) {
  activate(out, gate, x, n, SigmoidMul{});
}
/// x is bf16: widened into a buffer a few vectors at a time.
void sigmoid_mul_bf16(bf16* out, const float* gate, const bf16* x, int64_t n) {
  constexpr int64_t kBlock = 256;
  HWY_ALIGN float wide[kBlock];
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t count = n - first < kBlock ? n - first : kBlock;
    for (int64_t i = 0; i < count; ++i) wide[i] = to_float(x[first + i]);
    activate(out + first, gate + first, wide, count, SigmoidMul{});
  }
}

void add_scaled_row(float* out, const float* x, float scale, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t e = 0;
  for (; e + lanes <= n; e += lanes) {
    hn::StoreU(hn::MulAdd(hn::Set(d, scale), hn::LoadU(d, x + e), hn::LoadU(d, out + e)), d, out + e);
  }
  for (; e < n; ++e) out[e] = contract::fused(scale, x[e], out[e]);
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "ops/cpu/split.h"

namespace tensorfold::cpu {

void mlp_activation(CpuContext& cpu, View out, View gate, View up, const MlpActivation& activation) {
  const int64_t n = out.dim(1);
  const auto row_f32 = TF_ISA_FUNCTION(cpu.isa, activate_row_f32);
  const auto row_bf16 = TF_ISA_FUNCTION(cpu.isa, activate_row_bf16);
  for_row_blocks(cpu.pool, out.dim(0), n, [&](int64_t t) {
    const float* g = activation.has_gate() ? gate.row<const float>(t) : nullptr;
    if (out.dtype == DType::kBF16) {
      row_bf16(out.row<bf16>(t), g, up.row<const float>(t), n, activation);
    } else {
      row_f32(out.row<float>(t), g, up.row<const float>(t), n, activation);
    }
  });
}

void sigmoid_mul(CpuContext& cpu, View out, View x, View gate, int64_t head_dim, int64_t gate_head_stride) {
  const auto head_f32 = TF_ISA_FUNCTION(cpu.isa, sigmoid_mul_f32);
  const auto head_bf16 = TF_ISA_FUNCTION(cpu.isa, sigmoid_mul_bf16);
  const int64_t num_heads = out.dim(1) / head_dim;
  for_row_blocks(cpu.pool, out.dim(0), out.dim(1), [&](int64_t t) {
    for (int64_t h = 0; h < num_heads; ++h) {
      const float* g = gate.row<const float>(t) + h * gate_head_stride;
      const int64_t first = h * head_dim;
      if (out.dtype == DType::kBF16) {
        head_bf16(out.row<bf16>(t) + first, g, x.row<const bf16>(t) + first, head_dim);
      } else {
        head_f32(out.row<float>(t) + first, g, x.row<const float>(t) + first, head_dim);
      }
    }
  });
}

void add_gated(CpuContext& cpu, View out, View x, View gate) {
  const auto row = TF_ISA_FUNCTION(cpu.isa, add_scaled_row);
  for_row_blocks(cpu.pool, out.dim(0), out.dim(1), [&](int64_t t) {
    row(out.row<float>(t), x.row<const float>(t), sigmoid_f32(gate.row<const float>(t)[0]), out.dim(1));
  });
}

}  // namespace tensorfold::cpu
#endif
