// See draft_branches.h.
#include "engine/draft_branches.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tensorfold {
namespace {

/// The guesses from the root to `node`, and on by the first that follows.
std::vector<int32_t> path_through(const Draft& draft, int32_t node) {
  std::vector<int32_t> path;
  for (int32_t i = node; i >= 0; i = draft.parents[i]) path.push_back(i);
  std::reverse(path.begin(), path.end());
  for (int32_t i = node + 1; i < draft.size(); ++i)
    if (draft.parents[i] == path.back()) path.push_back(i);
  return path;
}

/// New indices of the guesses of a draft, in the order in which branches bring them.
class Order {
 public:
  explicit Order(int64_t size) : index_of_(static_cast<size_t>(size), -1) {}

  /// Numbers what is new of a branch, and renames its guesses.
  void add(DraftBranch& branch) {
    branch.num_shared = 0;
    for (int32_t& node : branch.nodes) {
      int32_t& index = index_of_[static_cast<size_t>(node)];
      if (index < 0) {
        index = static_cast<int32_t>(order_.size());
        order_.push_back(node);
      } else {
        ++branch.num_shared;
      }
      node = index;
    }
  }
  std::span<const int32_t> nodes() const { return order_; }

 private:
  std::vector<int32_t> index_of_, order_;
};

/// Rows of a draft that grows guess by guess.
class AddedRows {
 public:
  explicit AddedRows(const Draft& draft)
      : draft_(draft), is_there_(draft.tokens.size()), is_followed_(draft.tokens.size() + 1) {
    for (const int32_t parent : draft.parents) depths_.push_back(parent < 0 ? 1 : depths_[parent] + 1);
  }

  /// Whether the guess is not there yet, but what it follows is.
  bool may_follow(int32_t i) const {
    const int32_t parent = draft_.parents[i];
    return !is_there_[i] && (parent < 0 || is_there_[parent]);
  }
  /// Rows that the guess adds. It is the only new one where it goes on from the end of a branch; at first
  /// that is the known token.
  int64_t of(int32_t i) const { return is_followed_[draft_.parents[i] + 1] ? 1 + depths_[i] : 1; }
  void add(int32_t i) {
    is_there_[i] = true;
    is_followed_[draft_.parents[i] + 1] = true;
  }

 private:
  const Draft& draft_;
  std::vector<bool> is_there_;
  std::vector<bool> is_followed_;  ///< By 1 + the guess; 0 is the known token.
  std::vector<int32_t> depths_;
};

}  // namespace

void count_added_rows(const Draft& draft, std::span<int32_t> rows) {
  AddedRows added(draft);
  for (int32_t i = 0; i < draft.size(); ++i) {
    rows[static_cast<size_t>(i)] = static_cast<int32_t>(added.of(i));
    added.add(i);
  }
}

void order_by_gain(Draft& draft, std::span<double> gains) {
  AddedRows added(draft);
  std::vector<int32_t> order;
  std::vector<double> ordered;
  while (std::ssize(order) < draft.size()) {
    int32_t best = -1;
    double best_rate = 0;
    for (int32_t i = 0; i < draft.size(); ++i) {
      if (!added.may_follow(i)) continue;
      const double rate = gains[static_cast<size_t>(i)] / static_cast<double>(added.of(i));
      if (best < 0 || rate > best_rate) best = i, best_rate = rate;
    }
    added.add(best);
    order.push_back(best);
    ordered.push_back(gains[static_cast<size_t>(best)]);
  }
  draft.keep(order);
  std::ranges::copy(ordered, gains.begin());
}

void DraftBranches::split(const Draft& draft) {
  branches_.clear();
  if (draft.is_chain()) return;
  std::vector<bool> is_covered(draft.tokens.size());
  for (int32_t node = 0; node < draft.size(); ++node) {
    if (is_covered[node]) continue;
    DraftBranch& branch = branches_.emplace_back(*pool_);
    branch.nodes = path_through(draft, node);
    for (const int32_t i : branch.nodes) is_covered[i] = true;
  }
}

/// False, and none taken, where they are not free.
Result<bool> DraftBranches::take_pages(DraftBranch& branch, int64_t last_pos, const PageTable& pages) {
  const int64_t end_pos = last_pos + branch.num_rows();
  if (pages_for_tokens(end_pos) - last_pos / kPageTokens > pool_->num_free()) return false;
  TF_RETURN_IF_ERROR(branch.pages.fork(pages, last_pos));
  TF_RETURN_IF_ERROR(branch.pages.grow_to(end_pos));
  return true;
}

Status DraftBranches::keep(Draft& draft, const Room& room, const PageTable& pages) {
  TF_DCHECK(!branches_.empty());
  Order order(draft.size());
  branches_.front().nodes.resize(static_cast<size_t>(room.num_first));
  order.add(branches_.front());
  // The row of the last known token is a drafted one as soon as there is a second branch.
  int64_t rows_left = room.num_rows - 1;
  std::vector<DraftBranch> kept;
  kept.push_back(std::move(branches_.front()));
  for (size_t i = 1; i < branches_.size() && room.num_first > 0; ++i) {
    DraftBranch& branch = branches_[i];
    if (branch.num_rows() > rows_left) continue;
    TF_ASSIGN_OR_RETURN(const bool has_pages, take_pages(branch, room.last_pos, pages));
    if (!has_pages) continue;
    rows_left -= branch.num_rows();
    order.add(branch);
    kept.push_back(std::move(branch));
  }
  draft.keep(order.nodes());
  if (kept.size() == 1) kept.clear();
  for (DraftBranch& branch : kept)
    for (const int32_t node : branch.nodes) branch.tokens.push_back(draft.tokens[node]);
  branches_.swap(kept);
  return {};
}

int64_t DraftBranches::num_rows() const {
  int64_t num_rows = 0;
  for (const DraftBranch& branch : branches_) num_rows += branch.num_rows();
  return num_rows;
}

int64_t DraftBranches::accept(int64_t last, PageTable& pages) {
  int64_t first_row = 0;
  size_t winner = 0;
  // Guesses are numbered as branches bring them, so the first branch that ends behind `last` has it.
  while (branches_[winner].nodes.back() < last) first_row += branches_[winner++].num_rows();
  if (winner > 0) pages.swap(branches_[winner].pages);
  clear();
  return first_row;
}

}  // namespace tensorfold
