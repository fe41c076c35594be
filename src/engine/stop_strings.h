// Finds stop strings in text that arrives in pieces, and says how much of it is certain to be visible.
// Follows Aho & Corasick 1975 ("Efficient string matching"), one byte at a time.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tensorfold {

/// A search for several strings at once. The text ends before the stop string whose last byte comes first; of
/// several that end there, before the longest. What is visible therefore depends on the text alone, never on
/// its pieces. Text is held back only while it could still begin a stop string. One thread.
class StopStrings {
 public:
  /// Each string has at least one byte. No strings: push() returns its argument.
  explicit StopStrings(std::span<const std::string> strings);

  /// The text that became visible: what was held back, followed by `piece`, less what must be held back now.
  /// After a match: what lies before the stop string, and nothing from then on.
  std::string push(std::string_view piece);

  /// The text that was held back, now that no more comes. Empty after a match.
  std::string finish();

  bool matched() const { return matched_; }

 private:
  struct Node {
    std::array<int32_t, 256> next;  ///< By byte: the node of the longest suffix that begins a stop string.
    int32_t depth = 0;              ///< Bytes of that suffix.
    int32_t match_bytes = 0;        ///< Length of the longest stop string that ends here; 0: none.
  };
  void insert(std::string_view string);
  void link_suffixes();

  std::vector<Node> nodes_;  ///< Node 0 is the empty suffix; empty where there are no strings.
  int32_t state_ = 0;
  std::string held_;  ///< The last nodes_[state_].depth bytes of the text.
  bool matched_ = false;
};

}  // namespace tensorfold
