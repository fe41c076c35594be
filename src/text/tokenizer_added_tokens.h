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

/// Finds the longest of many strings at the leftmost place. The strings are sorted; those that agree with the
/// text so far are a range that each further byte narrows. Strings have at most kMaxContentBytes, so a search
/// takes at most that many steps per byte of text.
class AddedTokenFinder {
 public:
  static constexpr size_t kMaxContentBytes = 1024;

  /// `text` is not empty and `value` comes back from find. Of equal strings the one of least value counts.
  void add(std::string_view text, size_t value) { strings_.push_back({std::string(text), value}); }
  /// Call once, after the last add and before the first find.
  void finish();

  bool is_empty() const { return strings_.empty(); }
  struct Match {
    TextRange range;
    size_t value;
  };
  /// The longest string at the first place from `pos` on where any begins.
  std::optional<Match> find(std::string_view text, size_t pos) const;

 private:
  struct String {
    std::string text;
    size_t value;
  };
  std::optional<Match> longest_at(std::string_view text, size_t pos) const;

  std::vector<String> strings_;
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
    split(raw_, text, skip_special, splits);
  }
  void split_normalized(std::string_view text, bool skip_special,
                        std::vector<AddedTokenSplit>& splits) const {
    split(normalized_, text, skip_special, splits);
  }

 private:
  Status add(AddedToken token, const TokenizerVocab& vocab, const Normalizer& normalizer);
  void build_finders();
  void split(const AddedTokenFinder& finder, std::string_view text, bool skip_special,
             std::vector<AddedTokenSplit>& splits) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, int32_t> ids_;  // by content
  std::unordered_map<int32_t, size_t> by_id_;     // index into tokens_
  std::unordered_set<std::string> special_contents_;
  AddedTokenFinder raw_, normalized_;  // values are indices into tokens_
  int32_t next_id_ = 0;
  int32_t id_limit_ = 0;
};

}  // namespace tensorfold
