// The automaton behind engine/stop_strings.h.
#include "engine/stop_strings.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tensorfold {

StopStrings::StopStrings(std::span<const std::string> strings) {
  if (strings.empty()) return;
  nodes_.emplace_back().next.fill(-1);
  for (const std::string& string : strings) insert(string);
  link_suffixes();
}

void StopStrings::insert(std::string_view string) {
  TF_CHECK(!string.empty(), "empty stop string");
  int32_t node = 0;
  for (const char c : string) {
    const auto byte = static_cast<uint8_t>(c);
    if (nodes_[node].next[byte] < 0) {
      const Node child{.next = {}, .depth = nodes_[node].depth + 1};
      nodes_[node].next[byte] = static_cast<int32_t>(nodes_.size());
      nodes_.push_back(child);
      nodes_.back().next.fill(-1);
    }
    node = nodes_[node].next[byte];
  }
  nodes_[node].match_bytes = nodes_[node].depth;
}

// Breadth first: a node's suffix node is shallower, so it is complete when the node is reached. Missing edges
// become those of the suffix node, which is all that push() needs.
void StopStrings::link_suffixes() {
  std::vector<int32_t> suffix(nodes_.size(), 0);
  std::vector<int32_t> order = {0};
  for (size_t i = 0; i < order.size(); ++i) {
    const int32_t node = order[i];
    const int32_t shorter = suffix[node];
    nodes_[node].match_bytes = std::max(nodes_[node].match_bytes, nodes_[shorter].match_bytes);
    for (size_t byte = 0; byte < 256; ++byte) {
      const int32_t fallback = node == 0 ? 0 : nodes_[shorter].next[byte];
      int32_t& child = nodes_[node].next[byte];
      if (child < 0) {
        child = fallback;
      } else {
        suffix[child] = fallback;
        order.push_back(child);
      }
    }
  }
}

std::string StopStrings::push(std::string_view piece) {
  if (nodes_.empty()) return std::string(piece);
  if (matched_) return {};
  std::string text = std::exchange(held_, {});
  for (const char c : piece) {
    text += c;
    state_ = nodes_[state_].next[static_cast<uint8_t>(c)];
    if (const int32_t match_bytes = nodes_[state_].match_bytes; match_bytes > 0) {
      matched_ = true;
      text.erase(text.size() - static_cast<size_t>(match_bytes));
      return text;
    }
  }
  const auto held_bytes = static_cast<size_t>(nodes_[state_].depth);
  held_ = text.substr(text.size() - held_bytes);
  text.erase(text.size() - held_bytes);
  return text;
}

std::string StopStrings::finish() { return std::exchange(held_, {}); }

}  // namespace tensorfold
