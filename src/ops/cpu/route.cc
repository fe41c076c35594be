// route of the cpu backend: one row a task. The k best are taken one after the other; two levels of maxima
// spare each from looking at every expert again.
#include "ops/cpu/isa_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/route.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/route.h"
#include "ops/cpu/simd_math-inl.h"

#ifndef TENSORFOLD_OPS_CPU_ROUTE_TYPES_
#define TENSORFOLD_OPS_CPU_ROUTE_TYPES_
#include <algorithm>
#include <cmath>
#include <limits>

namespace tensorfold::cpu {

/// Below the key of every score, -infinity included.
inline constexpr int32_t kTaken = INT32_MIN;

}  // namespace tensorfold::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {

/// The largest of n floats that is a number; -infinity where none is.
HWY_INLINE float largest(const float* x, int64_t n) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(d));
  HWY_ALIGN float lanes[kLanes];
  auto maxima = hn::Set(d, -HUGE_VALF);
  int64_t e = 0;
  for (; e + kLanes <= n; e += kLanes) {
    const auto value = hn::LoadU(d, x + e);
    maxima = hn::IfThenElse(hn::Gt(value, maxima), value, maxima);
  }
  hn::Store(maxima, d, lanes);
  float max = -HUGE_VALF;
  for (const float value : lanes) max = value > max ? value : max;
  for (; e < n; ++e) max = x[e] > max ? x[e] : max;
  return max;
}

/// p[e] = e^(x[e] - max x) / sum, n experts.
void softmax_row(float* p, const float* x, int64_t n) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(d));
  const auto maxima = hn::Set(d, largest(x, n));
  HWY_ALIGN float partials[32] = {};
  int64_t e = 0;
  for (; e + kLanes <= n; e += kLanes) {
    const auto value = simd_exp(d, hn::Sub(hn::LoadU(d, x + e), maxima));
    hn::StoreU(value, d, p + e);
    float* partial = partials + e % 32;
    hn::Store(hn::Add(hn::Load(d, partial), value), d, partial);
  }
  for (; e < n; ++e) partials[e % 32] += p[e] = exp_f32(x[e] - hn::GetLane(maxima));
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

/// The largest of 16 integers.
HWY_INLINE int32_t max_of_16(const int32_t* x) {
  const hn::CappedTag<int32_t, 16> d;
  auto max = hn::Load(d, x);
  for (size_t i = hn::MaxLanes(d); i < 16; i += hn::MaxLanes(d)) max = hn::Max(max, hn::Load(d, x + i));
  return hn::GetLane(hn::MaxOfLanes(d, max));
}

/// The first place of `value` in x, which has one.
HWY_INLINE int64_t first_place(const int32_t* x, int32_t value) {
  const hn::CappedTag<int32_t, 16> d;
  for (int64_t i = 0;; i += static_cast<int64_t>(hn::MaxLanes(d))) {
    const auto found = hn::Eq(hn::Load(d, x + i), hn::Set(d, value));
    if (const intptr_t lane = hn::FindFirstTrue(d, found); lane >= 0) return i + lane;
  }
}

/// An integer for each score, in the same order: keys[e] of n, the rest of a multiple of 16 below them all.
/// False where a score is NaN. Adding 0 makes one of both zeros and of what a comparison takes for zero.
HWY_INLINE bool ordered_keys(int32_t* keys, const float* scores, int64_t n) {
  bool is_ordered = true;
  for (int64_t e = 0; e < n; ++e) {
    const auto bits = bits_as<int32_t>(scores[e] + 0.0f);
    keys[e] = bits ^ ((bits >> 31) & 0x7fffffff);
    is_ordered &= !(scores[e] != scores[e]);
  }
  for (int64_t e = n; e % 16 != 0; ++e) keys[e] = kTaken;
  return is_ordered;
}

/// The k best of n scores by (value descending, index ascending), of those whose flag is set (all without
/// flags), of which there are k. False, with nothing chosen, where a score is NaN. `keys` [n, then n / 16,
/// each rounded up to 16s] is scratch: the scores' keys, and the largest key of each 16.
bool best_of(int32_t* ids, int64_t k, const float* scores, const uint8_t* flags, int64_t n, int32_t* keys) {
  if (!ordered_keys(keys, scores, n)) return false;
  for (int64_t e = 0; flags != nullptr && e < n; ++e) keys[e] = flags[e] != 0 ? keys[e] : kTaken;
  const int64_t num_chunks = (n + 15) / 16;
  int32_t* maxima = keys + num_chunks * 16;
  for (int64_t c = 0; c < num_chunks; ++c) maxima[c] = max_of_16(keys + c * 16);
  for (int64_t c = num_chunks; c % 16 != 0; ++c) maxima[c] = kTaken;
  for (int64_t j = 0; j < k; ++j) {
    int32_t best = kTaken;
    for (int64_t c = 0; c < num_chunks; c += 16) best = std::max(best, max_of_16(maxima + c));
    const int64_t chunk = first_place(maxima, best);
    const int64_t e = chunk * 16 + first_place(keys + chunk * 16, best);
    ids[j] = static_cast<int32_t>(e);
    keys[e] = kTaken;
    maxima[chunk] = max_of_16(keys + chunk * 16);
  }
  return true;
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
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

/// The short sum of `count` floats.
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

using BestOf = bool (*)(int32_t* ids, int64_t k, const float* scores, const uint8_t* flags, int64_t n,
                        int32_t* keys);

/// Scratch of one row: scores p, what is chosen by q, the flags of experts, and the same of groups.
struct RouteRow {
  float *p, *q, *group_scores;
  uint8_t *allowed, *groups;
  int32_t* keys;  ///< Of best_of().
};

/// The row's experts, and their scores as weights: NaN where any score is.
void choose(const RouteCall& call, int64_t t, const RouteRow& row, BestOf best_of) {
  const int64_t n = call.router_logits.dim(1), k = call.expert_ids.dim(1);
  const Allowed experts{row.allowed, n};
  std::fill_n(row.allowed, n, 1);
  const float* by = row.p;
  if (call.correction_bias.data != nullptr) {
    for (int64_t e = 0; e < n; ++e) row.q[e] = row.p[e] + call.correction_bias.row<const float>(0)[e];
    by = row.q;
  }
  const bool in_groups = call.groups_kept < call.num_groups;
  if (in_groups) keep_best_groups(call, by, experts, row.group_scores, row.groups);
  int32_t* ids = call.expert_ids.row<int32_t>(t);
  float* weights = call.expert_weights.row<float>(t);
  if (best_of(ids, k, by, in_groups ? row.allowed : nullptr, n, row.keys)) {
    for (int64_t j = 0; j < k; ++j) weights[j] = row.p[ids[j]];
    return;
  }
  for (int64_t j = 0; j < k; ++j) ids[j] = static_cast<int32_t>(take_best(by, experts));
  std::fill_n(weights, k, std::numeric_limits<float>::quiet_NaN());
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
  const auto best = TF_ISA_FUNCTION(cpu.isa, best_of);
  Workspace::Frame frame(cpu.workspace);
  const int64_t floats = 2 * n + call.num_groups, flags = n + call.num_groups;
  float* numbers = cpu.workspace.take<float>(num_rows * floats);
  uint8_t* bytes = cpu.workspace.take<uint8_t>(num_rows * flags);
  const int64_t keys_per_row = (n + 15) / 16 * 16 + (n + 255) / 256 * 16;
  int32_t* keys = cpu.workspace.take<int32_t>(num_rows * keys_per_row);
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
    choose(call, t, {p, p + n, p + 2 * n, allowed, allowed + n, keys + t * keys_per_row}, best);
    finish_weights(call, call.expert_weights.row<float>(t));
  });
}

}  // namespace tensorfold::cpu
#endif
