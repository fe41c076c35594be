// text/tokenizer_added_tokens.h
#include "text/tokenizer_added_tokens.h"

#include <algorithm>

#include "text/tokenizer_fields.h"
#include "text/unicode.h"

namespace tensorfold {
namespace {

constexpr char kComponent[] = "tokenizer.json: added_tokens";

bool is_word_char_at(std::string_view text, size_t pos) {
  return is_word_char(decode_utf8(text.data() + pos, utf8_length(text[pos])));
}

bool is_white_space_at(std::string_view text, size_t pos) {
  return is_white_space(decode_utf8(text.data() + pos, utf8_length(text[pos])));
}

bool stands_alone(std::string_view text, TextRange range) {
  const bool joined_left = range.begin > 0 && is_word_char_at(text, previous_char(text, range.begin));
  const bool joined_right = range.end < text.size() && is_word_char_at(text, range.end);
  return !joined_left && !joined_right;
}

Result<AddedToken> parse_token(const Json& json) {
  TokenizerFields fields(json, kComponent);
  AddedToken token;
  token.content = fields.text("content");
  token.is_special = fields.flag("special");
  token.single_word = fields.flag("single_word");
  token.lstrip = fields.flag("lstrip");
  token.rstrip = fields.flag("rstrip");
  token.normalized = fields.flag("normalized");
  TF_RETURN_IF_ERROR(fields.status());
  return token;
}

}  // namespace

void AddedTokenTrie::add(std::string_view text, int32_t value) {
  uint32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    auto& children = nodes_[node].children;
    const auto child = std::lower_bound(children.begin(), children.end(), std::pair(byte, uint32_t{0}));
    if (child != children.end() && child->first == byte) {
      node = child->second;
      continue;
    }
    const auto new_node = static_cast<uint32_t>(nodes_.size());
    children.insert(child, {byte, new_node});
    nodes_.emplace_back();
    node = new_node;
  }
  if (nodes_[node].value < 0) nodes_[node].value = value;
}

void AddedTokenTrie::finish() {
  for (const auto& [byte, node] : nodes_[0].children) starts_[byte] = true;
  if (nodes_[0].children.size() == 1) only_start_ = static_cast<char>(nodes_[0].children[0].first);
}

std::optional<AddedTokenTrie::Match> AddedTokenTrie::find(std::string_view text, size_t pos) const {
  while (pos < text.size()) {
    if (only_start_) {
      pos = text.find(*only_start_, pos);
      if (pos == std::string_view::npos) return std::nullopt;
    } else if (!starts_[static_cast<unsigned char>(text[pos])]) {
      ++pos;
      continue;
    }
    if (std::optional<Match> match = longest_at(text, pos)) return match;
    ++pos;
  }
  return std::nullopt;
}

std::optional<AddedTokenTrie::Match> AddedTokenTrie::longest_at(std::string_view text, size_t pos) const {
  std::optional<Match> longest;
  uint32_t node = 0;
  for (size_t i = pos; i < text.size(); ++i) {
    const auto& children = nodes_[node].children;
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto child = std::lower_bound(children.begin(), children.end(), std::pair(byte, uint32_t{0}));
    if (child == children.end() || child->first != byte) break;
    node = child->second;
    if (nodes_[node].value >= 0) longest = Match{{pos, i + 1}, nodes_[node].value};
  }
  return longest;
}

Result<AddedTokens> AddedTokens::parse(const Json& json, const TokenizerVocab& vocab,
                                       const Normalizer& normalizer) {
  AddedTokens added;
  if (json.is_null()) return added;
  if (!json.is_array()) return corrupt("{}: is {}, expected an array", kComponent, json.kind_name());
  added.next_id_ = static_cast<int32_t>(vocab.num_tokens());
  for (const Json& item : json.as_array()) {
    TF_ASSIGN_OR_RETURN(AddedToken token, parse_token(item));
    TF_RETURN_IF_ERROR(added.add(std::move(token), vocab, normalizer));
  }
  added.build_tries();
  return added;
}

Status AddedTokens::add(AddedToken token, const TokenizerVocab& vocab, const Normalizer& normalizer) {
  if (token.content.empty()) return Status();
  token.normalized_content = token.normalized ? normalizer.apply(token.content) : token.content;
  if (std::max(token.content.size(), token.normalized_content.size()) > AddedTokenTrie::kMaxContentBytes) {
    return unsupported("{}: a token has more than {} bytes", kComponent, AddedTokenTrie::kMaxContentBytes);
  }
  const std::optional<int32_t> vocab_id = vocab.find(token.content);
  const std::optional<int32_t> present_id = id_of(token.content);
  token.id = present_id ? *present_id : vocab_id ? *vocab_id : next_id_++;
  if (token.id > kMaxTokenId) return unsupported("{}: more than {} ids", kComponent, kMaxTokenId);
  if (token.is_special) special_contents_.insert(token.content);
  id_limit_ = std::max(id_limit_, token.id + 1);
  const auto [place, is_new] = by_id_.try_emplace(token.id, tokens_.size());
  ids_[token.content] = token.id;
  if (is_new) {
    tokens_.push_back(std::move(token));
  } else {
    tokens_[place->second] = std::move(token);
  }
  return Status();
}

void AddedTokens::build_tries() {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& token = tokens_[i];
    // Of tokens that look the same after normalization the reference takes any one; here it is the first of
    // the list.
    if (token.normalized_content.empty()) continue;
    (token.normalized ? normalized_trie_ : raw_trie_).add(token.normalized_content, static_cast<int32_t>(i));
  }
  raw_trie_.finish();
  normalized_trie_.finish();
}

std::optional<int32_t> AddedTokens::id_of(std::string_view content) const {
  const auto place = ids_.find(std::string(content));
  return place == ids_.end() ? std::nullopt : std::optional(place->second);
}

const AddedToken* AddedTokens::find(int32_t id) const {
  const auto place = by_id_.find(id);
  return place == by_id_.end() ? nullptr : &tokens_[place->second];
}

bool AddedTokens::is_special_content(std::string_view content) const {
  return special_contents_.contains(std::string(content));
}

void AddedTokens::split(const AddedTokenTrie& trie, std::string_view text, bool skip_special,
                        std::vector<AddedTokenSplit>& splits) const {
  size_t done = 0;
  size_t pos = 0;
  while (!trie.is_empty()) {
    const std::optional<AddedTokenTrie::Match> match = trie.find(text, pos);
    if (!match) break;
    pos = match->range.end;
    const AddedToken& token = tokens_[match->value];
    if (skip_special && is_special_content(token.content)) continue;
    TextRange range = match->range;
    if (token.single_word && !stands_alone(text, range)) continue;
    // White space that the token before has taken stays with that token.
    while (token.lstrip && range.begin > done && is_white_space_at(text, previous_char(text, range.begin))) {
      range.begin = previous_char(text, range.begin);
    }
    while (token.rstrip && range.end < text.size() && is_white_space_at(text, range.end)) {
      range.end += utf8_length(text[range.end]);
    }
    if (done < range.begin) splits.push_back({{done, range.begin}, std::nullopt});
    splits.push_back({range, token.id});
    done = range.end;
  }
  if (done != text.size()) splits.push_back({{done, text.size()}, std::nullopt});
}

}  // namespace tensorfold
