// Optimal string alignment distance (Damerau 1964, restricted form) over bytes.
#include "base/nearest_name.h"

#include <algorithm>
#include <vector>

namespace tensorfold {
namespace {

size_t distance(std::string_view a, std::string_view b) {
  // Rows i-2, i-1 and i of the table; row i holds the distances of a[0, i) to every b[0, j).
  std::vector<size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      const bool is_swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_swap) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    std::swap(before_last, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace

std::string nearest_name(std::string_view word, std::span<const std::string> candidates) {
  constexpr size_t kMaxWordBytes = 64;  // nobody mistypes more than that; bounds the table
  std::string best;
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
  if (word.size() > kMaxWordBytes) return best;
  for (const std::string& candidate : candidates) {
    const size_t d = distance(word, candidate);
    if (d < best_distance) {
      best_distance = d;
      best = candidate;
    }
  }
  return best;
}

}  // namespace tensorfold
