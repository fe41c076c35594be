// text/bpe_model.h
#include "text/bpe_model.h"

#include <algorithm>

#include "text/tokenizer_byte_alphabet.h"
#include "text/tokenizer_fields.h"
#include "text/unicode.h"

namespace tensorfold {
namespace {

constexpr char kComponent[] = "tokenizer.json: model";
constexpr std::string_view kMark = "\u2581";  // SentencePiece's blank
constexpr char32_t kMarkChar = 0x2581;

/// The two parts of a merge: ["a", "b"], or "a b" in older files.
struct MergeParts {
  std::string_view left, right;
};
std::optional<MergeParts> merge_parts(const Json& item) {
  if (item.is_array()) {
    const Json::Array& parts = item.as_array();
    if (parts.size() != 2 || !parts[0].is_string() || !parts[1].is_string()) return std::nullopt;
    return MergeParts{parts[0].as_string(), parts[1].as_string()};
  }
  if (!item.is_string()) return std::nullopt;
  const std::string_view text = item.as_string();
  const size_t blank = text.find(' ');
  if (blank == std::string_view::npos || text.find(' ', blank + 1) != std::string_view::npos)
    return std::nullopt;
  return MergeParts{text.substr(0, blank), text.substr(blank + 1)};
}

}  // namespace

Result<BpeModel> BpeModel::parse(const Json& json) {
  BpeModel model;
  TokenizerFields fields(json, kComponent);
  const std::string type = fields.optional_text("type").value_or("BPE");
  TF_RETURN_IF_ERROR(fields.status());
  if (type != "BPE") return fields.unsupported_type(type);
  TF_ASSIGN_OR_RETURN(model.vocab_,
                      TokenizerVocab::parse(fields.required("vocab"), "tokenizer.json: model: vocab"));
  TF_RETURN_IF_ERROR(model.read_options(json));
  TF_RETURN_IF_ERROR(model.read_merges(json));
  model.prepare_bytes();
  model.prepare_cuts();
  return model;
}

Status BpeModel::read_options(const Json& json) {
  TokenizerFields fields(json, kComponent);
  prefix_ = fields.optional_text("continuing_subword_prefix").value_or("");
  suffix_ = fields.optional_text("end_of_word_suffix").value_or("");
  fuse_unk_ = fields.flag_or("fuse_unk", false);
  byte_fallback_ = fields.flag_or("byte_fallback", false);
  ignore_merges_ = fields.flag_or("ignore_merges", false);
  if (const std::optional<std::string> unk = fields.optional_text("unk_token")) unk_id_ = vocab_.find(*unk);
  merge_grows_ = prefix_.empty() && vocab_.has_unique_ids() && !vocab_.find("");
  return fields.status();
}

Status BpeModel::read_merges(const Json& json) {
  TokenizerFields fields(json, kComponent);
  const Json::Array& items = fields.items("merges");
  TF_RETURN_IF_ERROR(fields.status());
  merges_.reserve(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].is_string() && items[i].as_string().starts_with("#version")) continue;
    const std::optional<MergeParts> parts = merge_parts(items[i]);
    if (!parts) return corrupt("{}: merge {} is not a pair of tokens", kComponent, i);
    TF_RETURN_IF_ERROR(add_merge(parts->left, parts->right));
  }
  return Status();
}

Status BpeModel::add_merge(std::string_view left, std::string_view right) {
  const std::optional<int32_t> left_id = vocab_.find(left);
  const std::optional<int32_t> right_id = vocab_.find(right);
  std::string merged(left);
  if (right.size() >= prefix_.size()) merged += right.substr(prefix_.size());
  const std::optional<int32_t> merged_id = vocab_.find(merged);
  const auto missing = [](std::string_view token) {
    return corrupt("{}: merges: '{}' is not in the vocabulary", kComponent, token);
  };
  if (!left_id) return missing(left);
  if (!right_id || right.size() < prefix_.size()) return missing(right);
  if (!merged_id) return missing(merged);
  merges_.add(*left_id, *right_id, *merged_id);
  return Status();
}

void BpeModel::prepare_bytes() {
  takes_bytes_ = prefix_.empty() && suffix_.empty();
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelling;
    append_byte_char(spelling, static_cast<uint8_t>(byte));
    const std::optional<int32_t> id = vocab_.find(spelling);
    takes_bytes_ = takes_bytes_ && id.has_value();
    byte_ids_[byte] = id.value_or(-1);
    fallback_ids_[byte] = vocab_.find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
}

void BpeModel::prepare_cuts() {
  cuts_before_mark_ = merge_grows_ && suffix_.empty() && vocab_.find(kMark).has_value();
  if (!cuts_before_mark_) return;
  joined_before_mark_.push_back(kMarkChar);  // Runs of marks have tokens of their own in most vocabularies.
  for (size_t i = 0; i < vocab_.size(); ++i) {
    const std::string_view token = vocab_.token_at(i);
    for (size_t mark = token.find(kMark, 1); mark != std::string_view::npos;
         mark = token.find(kMark, mark + 1)) {
      const size_t before = previous_char(token, mark);
      joined_before_mark_.push_back(decode_utf8(token.data() + before, utf8_length(token[before])));
    }
  }
  std::sort(joined_before_mark_.begin(), joined_before_mark_.end());
  joined_before_mark_.erase(std::unique(joined_before_mark_.begin(), joined_before_mark_.end()),
                            joined_before_mark_.end());
}

void BpeModel::encode(std::string_view piece, PieceKind kind, Scratch& scratch,
                      std::vector<int32_t>& ids) const {
  const bool is_cut = kind == PieceKind::kChars && cuts_before_mark_;
  if (!is_cut) return encode_word(piece, kind, scratch, ids);
  if (const std::optional<int32_t> id = whole_piece(piece, kind, scratch)) {
    ids.push_back(*id);
    return;
  }
  for (size_t pos = 0; pos < piece.size();) {
    const size_t cut = next_cut(piece, pos);
    encode_word(piece.substr(pos, cut - pos), kind, scratch, ids);
    pos = cut;
  }
}

std::optional<int32_t> BpeModel::whole_piece(std::string_view piece, PieceKind kind, Scratch& scratch) const {
  if (!ignore_merges_) return std::nullopt;
  if (kind == PieceKind::kChars) return vocab_.find(piece);
  scratch.spelling.clear();
  for (const char byte : piece) append_byte_char(scratch.spelling, static_cast<uint8_t>(byte));
  return vocab_.find(scratch.spelling);
}

size_t BpeModel::next_cut(std::string_view piece, size_t pos) const {
  while (true) {
    const size_t mark = piece.find(kMark, pos + 1);
    if (mark == std::string_view::npos) return piece.size();
    const size_t before = previous_char(piece, mark);
    const int length = utf8_length(piece[before]);
    const char32_t c = decode_utf8(piece.data() + before, length);
    // An unknown character must stay with what follows: unk tokens are fused, and written when a known one
    // arrives.
    const bool may_cut = !std::binary_search(joined_before_mark_.begin(), joined_before_mark_.end(), c) &&
                         vocab_.find(piece.substr(before, length)).has_value();
    if (may_cut) return mark;
    pos = mark;
  }
}

void BpeModel::encode_word(std::string_view word, PieceKind kind, Scratch& scratch,
                           std::vector<int32_t>& ids) const {
  const bool is_cached = word.size() <= BpeCache::kMaxWordBytes;
  const BpeCache::Key key = is_cached ? BpeCache::key_of(word) : BpeCache::Key{};
  if (is_cached) {
    if (const std::span<const int32_t> hit = scratch.cache.find(key); !hit.empty()) {
      ids.insert(ids.end(), hit.begin(), hit.end());
      return;
    }
  }
  std::vector<int32_t>& symbols = scratch.word.symbols;
  const bool was_cut = kind == PieceKind::kChars && cuts_before_mark_;
  const std::optional<int32_t> whole = was_cut ? std::nullopt : whole_piece(word, kind, scratch);
  if (whole) {
    symbols.assign(1, *whole);
  } else {
    set_symbols(word, kind, symbols);
    merge_word(merges_, merge_grows_, scratch.word);
  }
  if (is_cached) scratch.cache.put(key, symbols);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

void BpeModel::set_symbols(std::string_view word, PieceKind kind, std::vector<int32_t>& symbols) const {
  symbols.clear();
  if (kind == PieceKind::kChars) return set_char_symbols(word, symbols);
  for (const char byte : word) symbols.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
}

void BpeModel::set_char_symbols(std::string_view word, std::vector<int32_t>& symbols) const {
  bool unk_is_pending = false;
  const auto write_pending_unk = [&] {
    if (unk_is_pending) symbols.push_back(*unk_id_);
    unk_is_pending = false;
  };
  std::string affixed;
  for (size_t pos = 0; pos < word.size();) {
    const int length = utf8_length(word[pos]);
    std::string_view character = word.substr(pos, length);
    const bool is_last = pos + length == word.size();
    if ((pos > 0 && !prefix_.empty()) || (is_last && !suffix_.empty())) {
      affixed = pos > 0 ? prefix_ : std::string();
      affixed += character;
      if (is_last) affixed += suffix_;
      character = affixed;
    }
    pos += length;
    if (const std::optional<int32_t> id = vocab_.find(character)) {
      write_pending_unk();
      symbols.push_back(*id);
      continue;
    }
    // The reference writes a pending unk after these bytes, not before them; so does this.
    if (byte_fallback_ && append_fallback_bytes(character, symbols)) continue;
    if (!unk_id_) continue;
    if (!fuse_unk_) write_pending_unk();
    unk_is_pending = true;
  }
  write_pending_unk();
}

bool BpeModel::append_fallback_bytes(std::string_view text, std::vector<int32_t>& symbols) const {
  const auto has_token = [this](char byte) { return fallback_ids_[static_cast<uint8_t>(byte)] >= 0; };
  if (!std::all_of(text.begin(), text.end(), has_token)) return false;
  for (const char byte : text) symbols.push_back(fallback_ids_[static_cast<uint8_t>(byte)]);
  return true;
}

}  // namespace tensorfold
