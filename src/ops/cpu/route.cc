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

/// p[e] = sigmoid(x[e]), n experts.
void sigmoid_row(float* p, const float* x, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t e = 0;
  for (; e + lanes <= n; e += lanes) hn::StoreU(simd_sigmoid(d, hn::LoadU(d, x + e)), d, p + e);
  for (; e < n; ++e) p[e] = sigmoid_f32(x[e]);
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <cmath>

#include "ops/cpu/split.h"

namespace tensorfold::cpu {
namespace {

/// A set of indices out of [0, n), as bytes of a workspace.
struct Allowed {
  uint8_t* is_allowed;
  int64_t n;
};

/// Takes the largest score that is allowed, by (value descending, index ascending); a NaN is never larger.
int64_t take_best(const float* scores, const Allowed& allowed) {
  int64_t best = -1;
  for (int64_t e = 0; e < allowed.n; ++e) {
    if (allowed.is_allowed[e] != 0 && (best < 0 || scores[e] > scores[best])) best = e;
  }
  allowed.is_allowed[best] = 0;
  return best;
}

/// The short sum of `count` floats, divided out of them where asked.
float short_sum(const float* x, int64_t count) {
  float partials[32] = {};
  for (int64_t j = 0; j < count; ++j) partials[j % 32] += x[j];
  for (int half = 16; half >= 1; half /= 2) {
    for (int i = 0; i < half; ++i) partials[i] += partials[i + half];
  }
  return partials[0];
}

/// Leaves allowed only the experts of the kept groups. `group_scores` and `groups` [num_groups] are scratch.
void keep_best_groups(const RouteCall& call, const float* q, const Allowed& experts, float* group_scores,
                      uint8_t* groups) {
  const int64_t size = experts.n / call.num_groups;
  for (int64_t g = 0; g < call.num_groups; ++g) {
    const Allowed group{experts.is_allowed + g * size, size};
    const float* scores = q + g * size;
    group_scores[g] = scores[take_best(scores, group)];
    if (size > 1) group_scores[g] = group_scores[g] + scores[take_best(scores, group)];
    std::fill_n(group.is_allowed, size, 0);
    groups[g] = 1;
  }
  for (int64_t j = 0; j < call.groups_kept; ++j)
    std::fill_n(experts.is_allowed + take_best(group_scores, {groups, call.num_groups}) * size, size, 1);
}

/// Scratch of one row: scores p, what is chosen by q, the flags of experts, and the same of groups.
struct RouteRow {
  float *p, *q, *group_scores;
  uint8_t *allowed, *groups;
};

void choose(const RouteCall& call, int64_t t, const RouteRow& row) {
  const int64_t n = call.router_logits.dim(1), k = call.expert_ids.dim(1);
  const Allowed experts{row.allowed, n};
  std::fill_n(row.allowed, n, 1);
  const float* by = row.p;
  if (call.correction_bias.data != nullptr) {
    for (int64_t e = 0; e < n; ++e) row.q[e] = row.p[e] + call.correction_bias.row<const float>(0)[e];
    by = row.q;
  }
  if (call.groups_kept < call.num_groups) keep_best_groups(call, by, experts, row.group_scores, row.groups);
  for (int64_t j = 0; j < k; ++j) {
    const int64_t best = take_best(by, experts);
    call.expert_ids.row<int32_t>(t)[j] = static_cast<int32_t>(best);
    call.expert_weights.row<float>(t)[j] = row.p[best];
  }
}

void finish_weights(const RouteCall& call, float* weights) {
  const int64_t k = call.expert_ids.dim(1);
  const bool of_chosen = call.scoring == RouterScoring::kSoftmaxOfChosen;
  if (of_chosen) {
    float max = -HUGE_VALF;
    for (int64_t j = 0; j < k; ++j) max = weights[j] > max ? weights[j] : max;
    for (int64_t j = 0; j < k; ++j) weights[j] = exp_f32(weights[j] - max);
  }
  float total = short_sum(weights, k);
  if (call.scoring == RouterScoring::kSigmoid) total = total + 1e-20f;
  for (int64_t j = 0; j < k; ++j) {
    if (of_chosen || call.normalize) weights[j] = weights[j] / total;
    weights[j] = weights[j] * call.scale;
  }
}

}  // namespace

void route(CpuContext& cpu, const RouteCall& call) {
  const int64_t num_rows = call.router_logits.dim(0), n = call.router_logits.dim(1),
                k = call.expert_ids.dim(1);
  const auto softmax = TF_ISA_FUNCTION(cpu.isa, softmax_row);
  const auto sigmoid = TF_ISA_FUNCTION(cpu.isa, sigmoid_row);
  Workspace::Frame frame(cpu.workspace);
  const int64_t floats = 2 * n + call.num_groups, flags = n + call.num_groups;
  float* numbers = cpu.workspace.take<float>(num_rows * floats);
  uint8_t* bytes = cpu.workspace.take<uint8_t>(num_rows * flags);
  for_row_blocks(cpu.pool, num_rows, n * (k + 4), [&](int64_t t) {
    float* p = numbers + t * floats;
    uint8_t* allowed = bytes + t * flags;
    const float* logits = call.router_logits.row<const float>(t);
    switch (call.scoring) {
      case RouterScoring::kSoftmax:
        softmax(p, logits, n);
        break;
      case RouterScoring::kSoftmaxOfChosen:
        std::copy_n(logits, n, p);
        break;
      case RouterScoring::kSigmoid:
        sigmoid(p, logits, n);
        break;
    }
    choose(call, t, {p, p + n, p + 2 * n, allowed, allowed + n});
    finish_weights(call, call.expert_weights.row<float>(t));
  });
}

}  // namespace tensorfold::cpu
#endif
