// See policy.h.
#include "drafters/policy.h"

#include <algorithm>
#include <cmath>

namespace tensorfold {
namespace {

/// Larger passes are counted as of this size: what a row more costs does not change much by then.
constexpr int64_t kMaxRows = 512;
/// A row more costs this share of a pass of one row where nothing is measured.
constexpr double kFirstSlope = 0.15;
/// Guesses that acceptance looks back on.
constexpr double kWindow = 40;
/// What is assumed has the weight of so many guesses.
constexpr double kAssumedWeight = 3;
/// Gains below this are noise.
constexpr double kLeastGain = 1.02;

}  // namespace

void PassCosts::add(int64_t num_rows, double ms) {
  const auto n = static_cast<size_t>(std::clamp<int64_t>(num_rows, 1, kMaxRows));
  if (n >= sizes_.size()) sizes_.resize(n + 1);
  Size& size = sizes_[n];
  size.seen_at = ++num_added_;
  if (size.ms == 0) {
    size.ms = ms;
  } else {
    // Times are skewed: what disturbs a pass makes it longer.
    const double sample = std::min(ms, 1.5 * size.ms);
    size.ms += (sample < size.ms ? 0.3 : 0.1) * (sample - size.ms);
  }
  for (size_t fewer = 1; fewer < n; ++fewer) sizes_[fewer].ms = std::min(sizes_[fewer].ms, size.ms);
  if (num_added_ % stale_passes_ == 0) forget_stale();
}

void PassCosts::skip() {
  if (++num_added_ % stale_passes_ == 0) forget_stale();
}

void PassCosts::forget_stale() {
  for (Size& size : sizes_)
    if (size.seen_at + stale_passes_ < num_added_) size.ms = 0;
}

int64_t PassCosts::largest() const {
  int64_t n = std::ssize(sizes_) - 1;
  while (n > 0 && sizes_[n].ms == 0) --n;
  return std::max<int64_t>(n, 0);
}

double PassCosts::estimate(int64_t num_rows) const {
  const int64_t n = std::clamp<int64_t>(num_rows, 1, kMaxRows);
  int64_t below = 0, above = 0, least = 0;  // known sizes next to n, and the smallest
  for (int64_t i = 1; i < std::ssize(sizes_); ++i) {
    if (sizes_[i].ms == 0) continue;
    if (least == 0) least = i;
    if (i <= n) below = i;
    if (i >= n && above == 0) above = i;
  }
  if (least == 0) return 0;
  const auto ms = [&](int64_t i) { return sizes_[i].ms; };
  if (below == n) return ms(n);
  if (below > 0 && above > 0)
    return ms(below) +
           (ms(above) - ms(below)) * static_cast<double>(n - below) / static_cast<double>(above - below);
  if (below == 0) return ms(above) / (1 + kFirstSlope * static_cast<double>(above - n));
  // Beyond the largest known size: as a row cost between the smallest and that.
  const double slope = below > least
                           ? (ms(below) - ms(least)) / static_cast<double>(below - least)
                           : kFirstSlope * ms(least) / (1 + kFirstSlope * static_cast<double>(least - 1));
  return ms(below) + slope * static_cast<double>(n - below);
}

double GuessRate::probability() const {
  return (kAssumedWeight * assumed_ + right_) / (kAssumedWeight + tried_);
}

void GuessRate::add(bool is_right) {
  static const double kept = std::exp(-1 / kWindow);
  tried_ = tried_ * kept + 1;
  right_ = right_ * kept + (is_right ? 1 : 0);
}

void GuessRate::fade() {
  constexpr double kKept = 1 - 1 / (2 * kWindow);
  tried_ *= kKept;
  right_ *= kKept;
}

void DraftLoss::add(double pass_ms, double extra_ms, double saved_ms) {
  elapsed_ms_ += pass_ms;
  loss_ms_ = std::max(loss_ms_ + extra_ms - saved_ms, -kMostCredit_ms);
}

void CatchUpBudget::add(double pass_ms, double saved_ms) {
  balance_ms_ = std::min(balance_ms_ + kShare * pass_ms + kReturn * saved_ms, kMostCredit_ms);
}

int64_t choose_catch_up(const CatchUpQuery& query) {
  constexpr int64_t kFirst = 16, kGrowth = 4;
  constexpr double kAssumedShare = 0.25, kMostOfReply = 0.25;
  const double serial_ms = query.passes.estimate(query.base_rows);
  const int64_t largest = query.turns.largest();
  const int64_t most = largest == 0 ? kFirst : std::min(kGrowth * largest, kMaxRows);
  const int64_t count = std::min({query.num_missing, most, query.max_rows});
  if (count <= 0 || serial_ms <= 0) return 0;
  const double ms = largest == 0 ? kAssumedShare * query.passes.estimate(count) : query.turns.estimate(count);
  const double all_ms = ms * static_cast<double>(query.num_missing) / static_cast<double>(count);
  if (all_ms > kMostOfReply * serial_ms * static_cast<double>(query.num_left)) return 0;
  return query.budget.allows(largest == 0 ? ms : all_ms, serial_ms) ? count : 0;
}

void choose_drafts(const PassCosts& costs, int64_t base_rows, int64_t num_sequences, int64_t max_rows,
                   std::span<DraftChoice> choices) {
  const double base_ms = costs.estimate(base_rows);
  if (base_ms <= 0) return;  // a serial pass comes first
  max_rows = std::min(max_rows, std::max(2 * costs.largest(), base_rows + 1) - base_rows);
  const auto gain = [&](size_t choice) {
    return choices[choice].gains[static_cast<size_t>(choices[choice].chosen)];
  };
  const auto has_more = [&](size_t choice) {
    return choices[choice].chosen < std::ssize(choices[choice].gains);
  };
  const auto rows = [&](size_t choice) -> int64_t {
    const DraftChoice& of = choices[choice];
    return of.rows.empty() ? 1 : of.rows[static_cast<size_t>(of.chosen)];
  };
  const auto less = [&](size_t a, size_t b) {
    return gain(a) / static_cast<double>(rows(a)) < gain(b) / static_cast<double>(rows(b));
  };
  std::vector<size_t> heap;  // choices with a guess left, by the gain per row of the next one
  for (size_t i = 0; i < choices.size(); ++i) {
    choices[i].chosen = 0;
    if (has_more(i)) heap.push_back(i);
  }
  std::make_heap(heap.begin(), heap.end(), less);
  std::vector<size_t> order;  // choices in the order in which guesses are added
  double tokens = static_cast<double>(num_sequences), best_rate = kLeastGain * tokens / base_ms;
  size_t best = 0;
  int64_t num_rows = 0;
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), less);
    const size_t next = heap.back();
    heap.pop_back();
    if (num_rows + rows(next) > max_rows) continue;  // what follows it has no room either
    order.push_back(next);
    tokens += gain(next);
    num_rows += rows(next);
    const double rate = tokens / costs.estimate(base_rows + num_rows);
    if (rate > best_rate) {
      best_rate = rate;
      best = order.size();
    }
    ++choices[next].chosen;
    if (!has_more(next)) continue;
    heap.push_back(next);
    std::push_heap(heap.begin(), heap.end(), less);
  }
  for (size_t i = best; i < order.size(); ++i) --choices[order[i]].chosen;
}

int64_t choose_depth(const DepthQuery& query) {
  const double base_ms = query.passes.estimate(query.base_rows);
  if (base_ms <= 0 || query.chances.empty()) return 0;  // a serial pass comes first
  const int64_t deepest = std::min(query.max_tokens, std::max<int64_t>(2 * query.turns.largest() - 1, 1));
  double tokens = static_cast<double>(query.num_sequences);
  const double found_ms = query.passes.estimate(query.base_rows + query.found_rows);
  double best_rate = kLeastGain * std::max(tokens / (base_ms + query.idle_ms),
                                           (tokens + query.found_tokens) / (found_ms + query.idle_ms));
  int64_t best = 0;
  std::vector<double> gains(query.chances.size(), 1);
  for (int64_t depth = 1; depth <= deepest && depth * std::ssize(gains) <= query.max_rows; ++depth) {
    for (size_t i = 0; i < gains.size(); ++i) tokens += gains[i] *= query.chances[i];
    const double ms =
        query.passes.estimate(query.base_rows + depth * std::ssize(gains)) + query.turns.estimate(1 + depth);
    if (tokens / ms <= best_rate) continue;
    best_rate = tokens / ms;
    best = depth;
  }
  return best;
}

}  // namespace tensorfold
