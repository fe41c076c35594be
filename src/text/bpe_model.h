// The `model` of tokenizer.json where its type is BPE: from a piece of text to ids.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "text/bpe_cache.h"
#include "text/bpe_word.h"
#include "text/tokenizer_vocab.h"

namespace tensorfold {

/// Immutable; any number of threads, each with its own Scratch.
class BpeModel {
 public:
  /// Errors name "tokenizer.json: model". `dropout` is ignored: encoding is deterministic. An unk_token that
  /// is not in the vocabulary is allowed (byte-level files carry them); characters that would need it are
  /// dropped.
  static Result<BpeModel> parse(const Json& json);

  const TokenizerVocab& vocab() const { return vocab_; }

  /// Every byte has a token of its own under its byte-level spelling and nothing is added to characters, so
  /// that pieces may come as raw bytes (encode with kBytes) instead of spelled.
  bool takes_bytes() const { return takes_bytes_; }

  /// What a piece consists of: UTF-8 characters, or bytes that stand for their byte-level spelling.
  enum class PieceKind { kChars, kBytes };

  /// Memory of one encoding thread. Its cache holds words of one model and one PieceKind: never share it
  /// between models.
  struct Scratch {
    BpeWordScratch word;
    BpeCache cache;
    std::string spelling;
  };

  /// Appends the ids of a piece, which is not empty. kBytes requires takes_bytes().
  void encode(std::string_view piece, PieceKind kind, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  Status read_options(const Json& json);
  Status read_merges(const Json& json);
  Status add_merge(std::string_view left, std::string_view right);
  void prepare_bytes();
  void prepare_cuts();

  std::optional<int32_t> whole_piece(std::string_view piece, PieceKind kind, Scratch& scratch) const;
  void encode_word(std::string_view word, PieceKind kind, Scratch& scratch, std::vector<int32_t>& ids) const;
  void set_symbols(std::string_view word, PieceKind kind, std::vector<int32_t>& symbols) const;
  void set_char_symbols(std::string_view word, std::vector<int32_t>& symbols) const;
  bool append_fallback_bytes(std::string_view text, std::vector<int32_t>& symbols) const;
  size_t next_cut(std::string_view piece, size_t pos) const;

  TokenizerVocab vocab_;
  BpeMerges merges_;
  std::string prefix_;  // continuing_subword_prefix
  std::string suffix_;  // end_of_word_suffix
  std::optional<int32_t> unk_id_;
  bool fuse_unk_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
  bool merge_grows_ = false;

  bool takes_bytes_ = false;
  std::array<int32_t, 256> byte_ids_{};      // of the byte-level spelling; with takes_bytes_
  std::array<int32_t, 256> fallback_ids_{};  // of "<0xHH>", or -1

  // Before a U+2581 no merge can reach back, unless the character before it is one of joined_before_mark_ (a
  // token of the vocabulary has it there). Cutting there changes nothing and turns a long segment into words
  // for the cache.
  bool cuts_before_mark_ = false;
  std::vector<char32_t> joined_before_mark_;  // ascending
};

}  // namespace tensorfold
