// sample by the formulas of ops/sampling_math.h: sort everything, cut, take the best score.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/fp_env.h"
#include "ops/reference/reference_ops.h"
#include "ops/sampling_math.h"
#include "ops/token_probability.h"

namespace tensorfold {
namespace {

struct Candidate {
  float logit;  // canonical
  int32_t token;
  uint64_t weight;
};

/// All tokens by (logit descending, token ascending), weights not set; empty where a logit is NaN or none is above
/// minus infinity.
std::vector<Candidate> sorted_tokens(const float* logits, int64_t vocab_size) {
  std::vector<Candidate> tokens;
  for (int64_t v = 0; v < vocab_size; ++v) {
    if (std::isnan(logits[v])) return {};
    tokens.push_back({sampling::canonical(logits[v]), static_cast<int32_t>(v), 0});
  }
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
  if (!tokens.empty() && tokens.front().logit == -std::numeric_limits<float>::infinity()) return {};
  return tokens;
}

void cut(std::vector<Candidate>& tokens, const SampleRow& row) {
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < tokens.size()) tokens.resize(row.top_k);
  uint64_t total = 0;
  for (Candidate& c : tokens) {
    c.weight = sampling::weight(c.logit, tokens.front().logit, row.temperature);
    total += c.weight;
  }
  if (row.top_p < 1.0f) {
    const uint64_t target = sampling::top_p_target(row.top_p, total);
    size_t count = 0;
    for (uint64_t sum = 0; sum < target; ++count) sum += tokens[count].weight;
    tokens.resize(std::max<size_t>(count, 1));
  }
  const uint64_t least = sampling::min_p_weight(row.min_p);
  while (tokens.back().weight < least) tokens.pop_back();
}

int32_t draw(const std::vector<Candidate>& candidates, const SampleRow& row) {
  const uint64_t key = sampling::row_key(row.seed, row.pos);
  double best_score = -std::numeric_limits<double>::infinity();
  int32_t best = -1;
  for (const Candidate& c : candidates) {
    const double score = sampling::score(c.logit, row.temperature, sampling::token_hash(key, c.token));
    if (score > best_score || (score == best_score && best >= 0 && c.token < best)) {
      best_score = score;
      best = c.token;
    }
  }
  return best;
}

}  // namespace

void ReferenceOps::sample(std::span<int32_t> tokens, View logits, std::span<const SampleRow> rows,
                          std::span<float> probabilities) {
  TF_DCHECK(probabilities.empty() || probabilities.size() == rows.size());
  ScopedFlushDenormals flush;
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<Candidate> candidates = sorted_tokens(logits.row<const float>(i), logits.dim(1));
    if (candidates.empty()) {
      tokens[i] = -1;
    } else if (rows[i].temperature == 0.0f) {
      tokens[i] = candidates.front().token;
    } else {
      cut(candidates, rows[i]);
      tokens[i] = draw(candidates, rows[i]);
    }
  }
  for (size_t i = 0; i < probabilities.size(); ++i)
    probabilities[i] =
        tokens[i] < 0 ? 0.0f : token_probability(logits.row<const float>(i), logits.dim(1), tokens[i]);
}

}  // namespace tensorfold
