// route by its formulas in ops.h.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/fp_env.h"
#include "ops/reference/reference_math.h"
#include "ops/reference/reference_ops.h"

namespace tensorfold {
namespace {

using Scores = std::vector<float>;

float largest(const Scores& x) {
  float max = -std::numeric_limits<float>::infinity();
  for (const float value : x) max = value > max ? value : max;
  return max;
}

/// e^(x - max x), and divided by their sum if `over_sum`.
Scores exponentials(const Scores& x, bool over_sum, int short_sum_partials) {
  const float max = largest(x);
  Scores p;
  reference::ShortSum sum(short_sum_partials);
  for (const float value : x) sum.add(p.emplace_back(exp_f32(value - max)));
  const float total = sum.total();
  for (float& value : p) value = over_sum ? value / total : value;
  return p;
}

/// Indices of the k largest, by (value descending, index ascending); NaN is never larger. `allowed` must hold
/// k.
std::vector<int32_t> best(const Scores& scores, std::vector<bool> allowed, int64_t k) {
  std::vector<int32_t> chosen;
  for (int64_t j = 0; j < k; ++j) {
    int32_t found = -1;
    for (size_t e = 0; e < scores.size(); ++e) {
      if (allowed[e] && (found < 0 || scores[e] > scores[found])) found = static_cast<int32_t>(e);
    }
    allowed[found] = false;
    chosen.push_back(found);
  }
  return chosen;
}

/// Which experts the kept groups hold.
std::vector<bool> experts_of_best_groups(const Scores& q, int64_t num_groups, int64_t groups_kept) {
  const int64_t size = std::ssize(q) / num_groups;
  Scores group_scores;
  for (int64_t g = 0; g < num_groups; ++g) {
    const Scores group(q.begin() + g * size, q.begin() + (g + 1) * size);
    const std::vector<int32_t> two = best(group, std::vector<bool>(size, true), std::min<int64_t>(2, size));
    group_scores.push_back(two.size() == 2 ? group[two[0]] + group[two[1]] : group[two[0]]);
  }
  std::vector<bool> allowed(q.size(), false);
  for (const int32_t g : best(group_scores, std::vector<bool>(num_groups, true), groups_kept))
    std::fill_n(allowed.begin() + g * size, size, true);
  return allowed;
}

/// The score of every expert, by which the weights are made.
Scores scores_of(const RouteCall& call, const Scores& logits, int short_sum_partials) {
  if (call.scoring == RouterScoring::kSoftmax) return exponentials(logits, true, short_sum_partials);
  Scores p = logits;
  if (call.scoring == RouterScoring::kSigmoid)
    for (float& value : p) value = sigmoid_f32(value);
  return p;
}

/// The scores by which experts are chosen.
Scores corrected(const RouteCall& call, const Scores& p) {
  Scores q = p;
  for (size_t e = 0; call.correction_bias.data != nullptr && e < q.size(); ++e)
    q[e] = p[e] + call.correction_bias.row<const float>(0)[e];
  return q;
}

std::vector<int32_t> choose(const RouteCall& call, const Scores& q) {
  const int64_t k = call.expert_ids.dim(1);
  if (call.scoring != RouterScoring::kSigmoid) return best(q, std::vector<bool>(q.size(), true), k);
  return best(q, experts_of_best_groups(q, call.num_groups, call.groups_kept), k);
}

Scores weights_of(const RouteCall& call, const Scores& p, const std::vector<int32_t>& chosen,
                  int short_sum_partials) {
  Scores weights;
  for (const int32_t e : chosen) weights.push_back(p[e]);
  const bool softmax_of_chosen = call.scoring == RouterScoring::kSoftmaxOfChosen;
  if (softmax_of_chosen) weights = exponentials(weights, false, short_sum_partials);
  reference::ShortSum sum(short_sum_partials);
  for (const float weight : weights) sum.add(weight);
  float total = sum.total();
  if (call.scoring == RouterScoring::kSigmoid) total = total + 1e-20f;
  for (float& weight : weights) {
    if (softmax_of_chosen || call.normalize) weight = weight / total;
    weight = weight * call.scale;
  }
  return weights;
}

}  // namespace

void ReferenceOps::route(const RouteCall& call) {
  ScopedFlushDenormals flush;
  for (int64_t t = 0; t < call.router_logits.dim(0); ++t) {
    const float* logits = call.router_logits.row<const float>(t);
    const Scores p = scores_of(call, Scores(logits, logits + call.router_logits.dim(1)), short_sum_partials_);
    const Scores q = corrected(call, p);
    const std::vector<int32_t> chosen = choose(call, q);
    Scores weights = weights_of(call, p, chosen, short_sum_partials_);
    // Else an expert whose score is NaN would just never be chosen, and nobody would learn of it.
    if (std::ranges::any_of(q, [](float score) { return std::isnan(score); }))
      std::ranges::fill(weights, std::numeric_limits<float>::quiet_NaN());
    std::ranges::copy(chosen, call.expert_ids.row<int32_t>(t));
    std::ranges::copy(weights, call.expert_weights.row<float>(t));
  }
}

}  // namespace tensorfold
