// The `added_tokens` of tokenizer.json: strings that become one id wherever they stand, whatever surrounds
// them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "text/normalizer.h"
#include "text/tokenizer_regex.h"
#include "text/tokenizer_vocab.h"

namespace tensorfold {

/// One entry of the list.
struct AddedToken {
  int32_t id = 0;  ///< The one in use; not always the file's (see AddedTokens::parse).
  std::string content;
  std::string
      normalized_content;  ///< What it looks like in normalized text; equal to content if not `normalized`.
  bool is_special = false;
  bool single_word = false;  ///< Matches only where no word character is next to it.
  bool lstrip = false;       ///< Takes white space before it along.
  bool rstrip = false;
  bool normalized = false;  ///< Is looked for in the normalized text, by its normalized content.
};

/// A stretch of text and the added token it is, or no id where it is ordinary text.
struct AddedTokenSplit {
  TextRange range;
  std::optional<int32_t> id;
};

/// Finds the longest of many strings at the leftmost place. A trie; strings have at most kMaxContentBytes, so
/// a search takes at most that many steps per byte.
class AddedTokenTrie {
 public:
  static constexpr size_t kMaxContentBytes = 1024;

  bool is_empty() const { return nodes_.size() == 1; }
  /// `value` (0 or more) comes back from find; a string added twice keeps the first.
  void add(std::string_view text, int32_t value);
  /// Call once, after the last add.
  void finish();

  struct Match {
    TextRange range;
    int32_t value;
  };
  /// The longest string at the first place from `pos` on where any begins.
  std::optional<Match> find(std::string_view text, size_t pos) const;

 private:
  struct Node {
    int32_t value = -1;
    std::vector<std::pair<unsigned char, uint32_t>> children;  // ascending
  };
  std::optional<Match> longest_at(std::string_view text, size_t pos) const;
  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<bool, 256> starts_{};  // bytes that a string begins with
  std::optional<char> only_start_;  // where all begin with the same one
};

/// Immutable; any number of threads.
class AddedTokens {
 public:
  AddedTokens() = default;
  /// `json` is the member's value, null for none. As in the reference, a token whose content is in the
  /// vocabulary has that id; others are numbered from the end of the vocabulary in the order of the list,
  /// whatever the file says.
  static Result<AddedTokens> parse(const Json& json, const TokenizerVocab& vocab,
                                   const Normalizer& normalizer);

  std::optional<int32_t> id_of(std::string_view content) const;
  /// Null where the id is no added token's. Of entries that share an id, the last of the list.
  const AddedToken* find(int32_t id) const;
  /// Some special token has this content.
  bool is_special_content(std::string_view content) const;
  /// Every token, in the order of the list.
  const std::vector<AddedToken>& all() const { return tokens_; }
  /// Largest id + 1; 0 without tokens.
  int32_t id_limit() const { return id_limit_; }

  /// Splits raw text at the tokens that are not normalized, or normalized text at those that are. The ranges
  /// follow each other, but a token with rstrip may reach into the next. With `skip_special` special tokens
  /// are ordinary text.
  void split_raw(std::string_view text, bool skip_special, std::vector<AddedTokenSplit>& splits) const {
    split(raw_trie_, text, skip_special, splits);
  }
  void split_normalized(std::string_view text, bool skip_special,
                        std::vector<AddedTokenSplit>& splits) const {
    split(normalized_trie_, text, skip_special, splits);
  }

 private:
  Status add(AddedToken token, const TokenizerVocab& vocab, const Normalizer& normalizer);
  void build_tries();
  void split(const AddedTokenTrie& trie, std::string_view text, bool skip_special,
             std::vector<AddedTokenSplit>& splits) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, int32_t> ids_;  // by content
  std::unordered_map<int32_t, size_t> by_id_;     // index into tokens_
  std::unordered_set<std::string> special_contents_;
  AddedTokenTrie raw_trie_, normalized_trie_;  // values are indices into tokens_
  int32_t next_id_ = 0;
  int32_t id_limit_ = 0;
};

}  // namespace tensorfold
