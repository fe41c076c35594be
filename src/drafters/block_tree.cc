// See block_tree.h.
#include "drafters/block_tree.h"

#include <algorithm>
#include <cmath>

#include "ops/sampling_math.h"

namespace tensorfold {

/// Adds those of a row to candidates_, likeliest first.
std::span<BlockTree::Candidate> BlockTree::find_candidates(const Source& source, int64_t row,
                                                           int32_t previous) {
  const size_t first = candidates_.size();
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
    if (std::isfinite(value)) candidates_.push_back({static_cast<int32_t>(i), value});
  }
  const std::span<Candidate> found = std::span(candidates_).subspan(first);
  if (found.empty()) return found;
  std::stable_sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    return a.log_probability > b.log_probability;
  });
  const double best = found.front().log_probability;
  double sum = 0;
  for (const Candidate& candidate : found) sum += std::exp(candidate.log_probability - best);
  for (Candidate& candidate : found) candidate.log_probability -= best + std::log(sum);
  return found;
}

/// `previous` is the candidate of the row before that `parent` is.
void BlockTree::add_followers(const Source& source, int32_t parent, int64_t row, int32_t previous,
                              double log_probability) {
  if (row == source.proposals.num_rows(source.sequence)) return;
  const size_t first = candidates_.size();
  const size_t count = find_candidates(source, row, previous).size();
  followers_.push_back({parent, row, log_probability, first, count});
  add_next(std::ssize(followers_) - 1, 0);
}

void BlockTree::add_next(int64_t followers, size_t rank) {
  const Followers& of = followers_[static_cast<size_t>(followers)];
  if (rank == of.count) return;
  next_.push_back({of.log_probability + candidates_[of.first + rank].log_probability, followers, rank});
  std::push_heap(next_.begin(), next_.end());
}

void BlockTree::grow(const BlockProposals& proposals, int64_t sequence, const SampleRow& sampling,
                     const BlockTreeLimits& limits, Draft& draft) {
  const Source source{proposals, sequence, sampling};
  draft.clear();
  followers_.clear();
  candidates_.clear();
  next_.clear();
  add_followers(source, -1, 0, -1, 0);
  while (!next_.empty() && draft.size() < limits.max_tokens) {
    std::pop_heap(next_.begin(), next_.end());
    const Next next = next_.back();
    next_.pop_back();
    const Followers& followers = followers_[static_cast<size_t>(next.followers)];
    const Candidate candidate = candidates_[followers.first + next.rank];
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
