// What drafters of blocks share: which there are, and how tokens are chosen among candidates.
#include "models/block_drafter.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/dflash.h"
#include "ops/sampling_math.h"

namespace tensorfold {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

/// sum_j (a[j] * b[j]) * c[j], in four partial sums so that they need not wait for each other.
float product_of_three(const float* a, const float* b, const float* c, int64_t n) {
  float partial[4] = {};
  for (int64_t j = 0; j < n; ++j) partial[j % 4] = contract::fused(a[j] * b[j], c[j], partial[j % 4]);
  return (partial[0] + partial[2]) + (partial[1] + partial[3]);
}

/// Probability of `chosen` among `scores` at a temperature; greedy choices take 1.
float probability(std::span<const float> scores, int64_t chosen, float temperature) {
  const float t = temperature > 0 ? temperature : 1.0f;
  const float max = *std::ranges::max_element(scores);
  float sum = 0;
  for (const float score : scores) sum += std::exp((score - max) / t);
  return std::exp((scores[chosen] - max) / t) / sum;
}

}  // namespace

void BlockProposals::score(int64_t sequence, int64_t row, int64_t previous, std::span<float> out) const {
  const std::span<const int32_t> candidates = tokens(row);
  const std::span<const float> own = logits(row);
  TF_DCHECK(std::ssize(out) == k_ && (previous < 0) == (row == first_row(sequence)));
  const int64_t predecessor = previous < 0 ? sequence : num_sequences() + (row - 1) * k_ + previous;
  for (int64_t i = 0; i < k_; ++i) {
    out[i] = candidates[i] < 0 ? kNone : own[i];
    if (candidates[i] >= 0 && rank_ > 0)
      out[i] += product_of_three(&predecessors_[predecessor * rank_], &hidden_[row * rank_],
                                 &successors_[(row * k_ + i) * rank_], rank_);
  }
}

void BlockProposals::choose(int64_t sequence, const SampleRow& sampling,
                            std::vector<DraftedToken>& chain) const {
  chain.clear();
  float scores[kMaxCandidates];
  const auto of_row = std::span(scores).first(static_cast<size_t>(k_));
  int64_t previous = -1;
  for (int64_t r = 0; r < num_rows(sequence); ++r) {
    const int64_t row = first_row(sequence) + r;
    const std::span<const int32_t> candidates = tokens(row);
    score(sequence, row, previous, of_row);
    const uint64_t key = sampling::row_key(sampling.seed, sequences_[sequence].first_pos + r);
    double best = -std::numeric_limits<double>::infinity();
    previous = -1;
    for (int64_t i = 0; i < k_ && candidates[i] >= 0; ++i) {
      const double value =
          sampling.temperature > 0
              ? sampling::score(scores[i], sampling.temperature, sampling::token_hash(key, candidates[i]))
              : double{scores[i]};
      if (value > best) best = value, previous = i;
    }
    if (previous < 0) return;
    chain.push_back({.token = candidates[previous],
                     .candidate = static_cast<int32_t>(previous),
                     .confidence = probability(of_row, previous, sampling.temperature)});
  }
}

void BlockProposalsBuilder::begin(const DraftBlocks& blocks, int64_t num_candidates, int64_t rank) {
  to_.k_ = num_candidates;
  to_.rank_ = rank;
  to_.sequences_.clear();
  int64_t num_rows = 0;
  for (const SequenceRows& rows : blocks.rows.sequences) {
    TF_DCHECK(rows.num_rows >= 2);
    to_.sequences_.push_back({num_rows, rows.num_rows - 1, rows.first_pos + 1});
    num_rows += rows.num_rows - 1;
  }
  const int64_t num_found = num_rows * num_candidates, num_anchors = std::ssize(blocks.anchors);
  to_.tokens_.resize(static_cast<size_t>(num_found));
  to_.logits_.resize(static_cast<size_t>(num_found));
  to_.hidden_.resize(static_cast<size_t>(num_rows * rank));
  to_.predecessors_.resize(static_cast<size_t>((num_anchors + num_found) * rank));
  to_.successors_.resize(static_cast<size_t>(num_found * rank));
}

bool is_block_drafter(const HfConfig& config) {
  return std::ranges::any_of(config.architectures, is_dflash_architecture);
}

Result<std::unique_ptr<BlockDrafter>> make_block_drafter(const BlockDrafterSource& source) {
  if (!is_block_drafter(source.config))
    return unsupported("config.json: architectures: expected one of {}, found {}", kDFlashArchitectures,
                       source.config.architectures.empty() ? "none" : source.config.architectures.front());
  TF_ASSIGN_OR_RETURN(std::unique_ptr<BlockDrafter> drafter, make_dflash(source));
  TF_RETURN_IF_ERROR(source.table.status());
  return drafter;
}

}  // namespace tensorfold
