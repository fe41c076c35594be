// qk_norm_rope of the cpu backend: one row a task, head by head; a head stays in L1 between the norm and the
// rotation.
#include "ops/cpu/isa_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/qk_norm_rope.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/qk_norm_rope.h"
#include "ops/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {

/// The d-th element after the norm: x itself where there is no weight.
struct NormedHead {
  const float* x;
  const float* weight;
  float inverse;

  HWY_INLINE float at(int64_t i) const { return weight == nullptr ? x[i] : (x[i] * inverse) * weight[i]; }
  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, int64_t i) const {
    const auto v = hn::LoadU(d, x + i);
    return weight == nullptr ? v : hn::Mul(hn::Mul(v, hn::Set(d, inverse)), hn::LoadU(d, weight + i));
  }
};

template <class Out>
HWY_INLINE void norm_rope_head(Out* out, const float* x, const float* weight, float eps, const float* cos,
                               const float* sin, int64_t head_dim, int64_t half) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  NormedHead head{x, weight, 1.0f};
  if (weight != nullptr) {
    const float mean = sum_of_squares(x, head_dim) * (1.0f / static_cast<float>(head_dim));
    head.inverse = rsqrt_f32(mean + eps);
  }
  int64_t j = 0;
  for (; j + lanes <= half; j += lanes) {
    const auto a = head.load(d, j), b = head.load(d, j + half);
    const auto c = hn::LoadU(d, cos + j), s = hn::LoadU(d, sin + j);
    store_as(d, hn::MulAdd(a, c, hn::Neg(hn::Mul(b, s))), out + j);
    store_as(d, hn::MulAdd(b, c, hn::Mul(a, s)), out + j + half);
  }
  for (; j < half; ++j) {
    const float a = head.at(j), b = head.at(j + half);
    store_one(contract::fused(a, cos[j], -(b * sin[j])), out + j);
    store_one(contract::fused(b, cos[j], a * sin[j]), out + j + half);
  }
  int64_t i = 2 * half;
  for (; i + lanes <= head_dim; i += lanes) store_as(d, head.load(d, i), out + i);
  for (; i < head_dim; ++i) store_one(head.at(i), out + i);
}

template <class Out>
void norm_rope_row(const NormRopeRow& row) {
  for (int64_t h = 0; h < row.num_heads; ++h) {
    norm_rope_head(reinterpret_cast<Out*>(row.out) + h * row.head_dim, row.x + h * row.head_stride,
                   row.weight, row.eps, row.cos, row.sin, row.head_dim, row.half);
  }
}

void norm_rope_row_f32(const NormRopeRow& row) { norm_rope_row<float>(row); }
void norm_rope_row_bf16(const NormRopeRow& row) { norm_rope_row<bf16>(row); }

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "ops/cpu/split.h"

namespace tensorfold::cpu {
namespace {

void norm_rope(CpuContext& cpu, View out, View in, View norm, int64_t head_stride,
               const QkNormRopeCall& call) {
  const auto row_f32 = TF_ISA_FUNCTION(cpu.isa, norm_rope_row_f32);
  const auto row_bf16 = TF_ISA_FUNCTION(cpu.isa, norm_rope_row_bf16);
  for_row_blocks(cpu.pool, out.dim(0), out.dim(1), [&](int64_t t) {
    const NormRopeRow row{
        .out = out.rows(t, 1).data,
        .x = in.row<const float>(t),
        .num_heads = out.dim(1) / call.head_dim,
        .head_stride = head_stride,
        .head_dim = call.head_dim,
        .half = call.cos.dim(1),
        .weight = norm.data == nullptr ? nullptr : norm.row<const float>(0),
        .eps = call.norm_eps,
        .cos = call.cos.row<const float>(t),
        .sin = call.sin.row<const float>(t),
    };
    out.dtype == DType::kBF16 ? row_bf16(row) : row_f32(row);
  });
}

}  // namespace

void qk_norm_rope(CpuContext& cpu, const QkNormRopeCall& call) {
  norm_rope(cpu, call.q_out, call.q, call.q_norm, call.q_head_stride > 0 ? call.q_head_stride : call.head_dim,
            call);
  norm_rope(cpu, call.k_out, call.k, call.k_norm, call.head_dim, call);
}

}  // namespace tensorfold::cpu
#endif
