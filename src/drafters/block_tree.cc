// See block_tree.h.
#include "drafters/block_tree.h"

#include <algorithm>
#include <cmath>

#include "ops/sampling_math.h"

namespace tensorfold {

void BlockTree::find_candidates(const Source& source, int64_t row, int32_t previous,
                                std::vector<Candidate>& found) {
  const BlockProposals& proposals = source.proposals;
  const int64_t of_all = proposals.first_row(source.sequence) + row;
  const std::span<const int32_t> tokens = proposals.tokens(of_all);
  scores_.resize(tokens.size());
  proposals.score(source.sequence, of_all, previous, scores_);
  const float temperature = source.sampling.temperature;
  const uint64_t key = sampling::row_key(source.sampling.seed, proposals.first_pos(source.sequence) + row);
  for (size_t i = 0; i < tokens.size() && tokens[i] >= 0; ++i) {
    const double value = temperature > 0
                             ? sampling::score(scores_[i], temperature, sampling::token_hash(key, tokens[i]))
                             : double{scores_[i]};
    if (std::isfinite(value)) found.push_back({static_cast<int32_t>(i), value});
  }
  if (found.empty()) return;
  std::stable_sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    return a.log_probability > b.log_probability;
  });
  const double best = found.front().log_probability;
  double sum = 0;
  for (const Candidate& candidate : found) sum += std::exp(candidate.log_probability - best);
  for (Candidate& candidate : found) candidate.log_probability -= best + std::log(sum);
}

/// `previous` is the candidate of the row before that `parent` is.
void BlockTree::add_followers(const Source& source, int32_t parent, int64_t row, int32_t previous,
                              double log_probability) {
  if (row == source.proposals.num_rows(source.sequence)) return;
  Followers& followers = followers_.emplace_back(
      Followers{.parent = parent, .row = row, .log_probability = log_probability, .candidates = {}});
  find_candidates(source, row, previous, followers.candidates);
  add_next(std::ssize(followers_) - 1, 0);
}

void BlockTree::add_next(int64_t followers, size_t rank) {
  const Followers& of = followers_[static_cast<size_t>(followers)];
  if (rank == of.candidates.size()) return;
  next_.push_back({of.log_probability + of.candidates[rank].log_probability, followers, rank});
  std::push_heap(next_.begin(), next_.end());
}

void BlockTree::grow(const BlockProposals& proposals, int64_t sequence, const SampleRow& sampling,
                     const BlockTreeLimits& limits, Draft& draft) {
  const Source source{proposals, sequence, sampling};
  draft.clear();
  followers_.clear();
  next_.clear();
  add_followers(source, -1, 0, -1, 0);
  while (!next_.empty() && draft.size() < limits.max_tokens) {
    std::pop_heap(next_.begin(), next_.end());
    const Next next = next_.back();
    next_.pop_back();
    const Followers& followers = followers_[static_cast<size_t>(next.followers)];
    const Candidate candidate = followers.candidates[next.rank];
    const int64_t row = followers.row;
    const auto confidence = static_cast<float>(std::exp(candidate.log_probability));
    draft.append_to(
        followers.parent,
        proposals.tokens(proposals.first_row(sequence) + row)[static_cast<size_t>(candidate.candidate)],
        evidence_of_probability(confidence));
    add_next(next.followers, next.rank + 1);
    if (confidence >= limits.least_confidence)
      add_followers(source, static_cast<int32_t>(draft.size() - 1), row + 1, candidate.candidate,
                    next.log_probability);
  }
}

}  // namespace tensorfold
