// text/tokenizer_added_tokens.h
#include "text/tokenizer_added_tokens.h"

#include <algorithm>
#include <tuple>

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

/// Start of the white space that ends at `pos`, but not before `done`, where the token before ends.
size_t white_begin_before(std::string_view text, size_t pos, size_t done) {
  while (pos > done && is_white_space_at(text, previous_char(text, pos))) pos = previous_char(text, pos);
  return std::max(pos, done);
}

/// End of the white space that begins at `pos`; `known_end` is the end of a run that was found before.
size_t white_end_after(std::string_view text, size_t pos, size_t known_end) {
  if (pos < known_end && is_white_space_at(text, pos)) pos = known_end;
  while (pos < text.size() && is_white_space_at(text, pos)) pos += utf8_length(text[pos]);
  return pos;
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

void AddedTokenFinder::finish() {
  std::sort(strings_.begin(), strings_.end(), [](const String& a, const String& b) {
    return std::tie(a.text, a.value) < std::tie(b.text, b.value);
  });
  const auto same = [](const String& a, const String& b) { return a.text == b.text; };
  strings_.erase(std::unique(strings_.begin(), strings_.end(), same), strings_.end());
  for (const String& string : strings_) starts_[static_cast<unsigned char>(string.text[0])] = true;
  if (std::count(starts_.begin(), starts_.end(), true) == 1) only_start_ = strings_[0].text[0];
}

std::optional<AddedTokenFinder::Match> AddedTokenFinder::find(std::string_view text, size_t pos) const {
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

std::optional<AddedTokenFinder::Match> AddedTokenFinder::longest_at(std::string_view text, size_t pos) const {
  std::optional<Match> longest;
  auto first = strings_.begin();
  auto last = strings_.end();
  for (size_t depth = 0; pos + depth < text.size(); ++depth) {
    // All of [first, last) begin with the bytes seen so far; one that has no more is the first of them.
    if (first->text.size() == depth) ++first;
    const auto byte = static_cast<unsigned char>(text[pos + depth]);
    const auto byte_of = [depth](const String& string) {
      return static_cast<unsigned char>(string.text[depth]);
    };
    first = std::partition_point(first, last, [&](const String& string) { return byte_of(string) < byte; });
    last = std::partition_point(first, last, [&](const String& string) { return byte_of(string) == byte; });
    if (first == last) break;
    if (first->text.size() == depth + 1) longest = Match{{pos, pos + depth + 1}, first->value};
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
  added.build_finders();
  return added;
}

Status AddedTokens::add(AddedToken token, const TokenizerVocab& vocab, const Normalizer& normalizer) {
  if (token.content.empty()) return Status();
  token.normalized_content = token.normalized ? normalizer.apply(token.content) : token.content;
  if (std::max(token.content.size(), token.normalized_content.size()) > AddedTokenFinder::kMaxContentBytes) {
    return unsupported("{}: a token has more than {} bytes", kComponent, AddedTokenFinder::kMaxContentBytes);
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

void AddedTokens::build_finders() {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& token = tokens_[i];
    // Of tokens that look the same after normalization the reference takes any one; here it is the first of
    // the list.
    if (token.normalized_content.empty()) continue;
    (token.normalized ? normalized_ : raw_).add(token.normalized_content, i);
  }
  raw_.finish();
  normalized_.finish();
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

void AddedTokens::split(const AddedTokenFinder& finder, std::string_view text, bool skip_special,
                        std::vector<AddedTokenSplit>& splits) const {
  size_t done = 0;
  size_t pos = 0;
  size_t white_end = 0;  // of the last run of white space looked at: tokens inside it need not walk it again
  while (!finder.is_empty()) {
    const std::optional<AddedTokenFinder::Match> match = finder.find(text, pos);
    if (!match) break;
    pos = match->range.end;
    const AddedToken& token = tokens_[match->value];
    if (skip_special && is_special_content(token.content)) continue;
    TextRange range = match->range;
    if (token.single_word && !stands_alone(text, range)) continue;
    if (token.lstrip) range.begin = white_begin_before(text, range.begin, done);
    if (token.rstrip) range.end = white_end = white_end_after(text, range.end, white_end);
    if (done < range.begin) splits.push_back({{done, range.begin}, std::nullopt});
    // Empty: the token before has taken all of it.
    if (range.begin < range.end) splits.push_back({range, token.id});
    done = range.end;
  }
  if (done != text.size()) splits.push_back({{done, text.size()}, std::nullopt});
}

}  // namespace tensorfold
