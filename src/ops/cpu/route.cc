// route of the cpu backend: one row a task.
#include "ops/cpu/isa_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/route.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/route.h"
#include "ops/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {

/// p[e] = e^(x[e] - max x) / sum, n experts.
void softmax_row(float* p, const float* x, int64_t n) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(d));
  float max = -HUGE_VALF;
  for (int64_t e = 0; e < n; ++e) max = x[e] > max ? x[e] : max;
  const auto maxima = hn::Set(d, max);
  HWY_ALIGN float partials[32] = {};
  int64_t e = 0;
  for (; e + kLanes <= n; e += kLanes) {
    const auto value = simd_exp(d, hn::Sub(hn::LoadU(d, x + e), maxima));
    hn::StoreU(value, d, p + e);
    float* partial = partials + e % 32;
    hn::Store(hn::Add(hn::Load(d, partial), value), d, partial);
  }
  for (; e < n; ++e) partials[e % 32] += p[e] = exp_f32(x[e] - max);
  const float total = halve_32(partials);
  const auto totals = hn::Set(d, total);
  for (e = 0; e + kLanes <= n; e += kLanes) hn::StoreU(hn::Div(hn::LoadU(d, p + e), totals), d, p + e);
  for (; e < n; ++e) p[e] = p[e] / total;
}

/// The k best of p by (value descending, index ascending); a NaN is never larger. p's chosen entries become -1.
void top_k_row(int32_t* ids, float* weights, float* p, int64_t n, int64_t k, bool normalize) {
  HWY_ALIGN float partials[32] = {};
  for (int64_t j = 0; j < k; ++j) {
    int64_t best = 0;
    while (p[best] == -1.0f) ++best;
    for (int64_t e = best + 1; e < n; ++e) {
      if (p[e] > p[best]) best = e;
    }
    ids[j] = static_cast<int32_t>(best);
    weights[j] = p[best];
    partials[j % 32] += p[best];
    p[best] = -1.0f;
  }
  const float total = halve_32(partials);
  for (int64_t j = 0; normalize && j < k; ++j) weights[j] = weights[j] / total;
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "ops/cpu/split.h"

namespace tensorfold::cpu {

void route(CpuContext& cpu, const RouteCall& call) {
  const int64_t num_rows = call.router_logits.dim(0), n = call.router_logits.dim(1), k = call.expert_ids.dim(1);
  const auto softmax = TF_ISA_FUNCTION(cpu.isa, softmax_row);
  const auto top_k = TF_ISA_FUNCTION(cpu.isa, top_k_row);
  Workspace::Frame frame(cpu.workspace);
  float* p = cpu.workspace.take<float>(num_rows * n);
  for_row_blocks(cpu.pool, num_rows, n * (k + 4), [&](int64_t t) {
    softmax(p + t * n, call.router_logits.row<const float>(t), n);
    top_k(call.expert_ids.row<int32_t>(t), call.expert_weights.row<float>(t), p + t * n, n, k, call.normalize);
  });
}

}  // namespace tensorfold::cpu
#endif
