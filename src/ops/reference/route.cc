// route by its formula in ops.h.
#include <limits>
#include <vector>

#include "base/fp_env.h"
#include "ops/reference/reference_math.h"
#include "ops/reference/reference_ops.h"

namespace tensorfold {
namespace {

std::vector<float> softmax(const float* logits, int64_t num_experts) {
  float max = -std::numeric_limits<float>::infinity();
  for (int64_t e = 0; e < num_experts; ++e) max = logits[e] > max ? logits[e] : max;
  std::vector<float> p(num_experts);
  reference::ShortSum sum;
  for (int64_t e = 0; e < num_experts; ++e) sum.add(p[e] = exp_f32(logits[e] - max));
  const float total = sum.total();
  for (float& value : p) value = value / total;
  return p;
}

/// Index of the largest value not taken yet, the lowest of equals; NaN is never larger.
int64_t best_left(const std::vector<float>& p, const std::vector<bool>& taken) {
  int64_t best = -1;
  for (size_t e = 0; e < p.size(); ++e) {
    if (!taken[e] && (best < 0 || p[e] > p[best])) best = static_cast<int64_t>(e);
  }
  return best;
}

}  // namespace

void ReferenceOps::route(const RouteCall& call) {
  ScopedFlushDenormals flush;
  const int64_t num_experts = call.router_logits.dim(1), k = call.expert_ids.dim(1);
  for (int64_t t = 0; t < call.router_logits.dim(0); ++t) {
    const std::vector<float> p = softmax(call.router_logits.row<const float>(t), num_experts);
    std::vector<bool> taken(num_experts);
    int32_t* ids = call.expert_ids.row<int32_t>(t);
    float* weights = call.expert_weights.row<float>(t);
    reference::ShortSum sum;
    for (int64_t j = 0; j < k; ++j) {
      const int64_t best = best_left(p, taken);
      taken[best] = true;
      ids[j] = static_cast<int32_t>(best);
      sum.add(weights[j] = p[best]);
    }
    const float total = sum.total();
    for (int64_t j = 0; call.normalize && j < k; ++j) weights[j] = weights[j] / total;
  }
}

}  // namespace tensorfold
