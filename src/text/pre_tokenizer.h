// The `pre_tokenizer` of tokenizer.json: cuts a normalized text into the pieces that the model encodes one by
// one.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "text/tokenizer_regex.h"

namespace tensorfold {

/// A text on its way through the steps. Pieces are ascending, do not overlap and are never empty.
struct PieceText {
  std::string_view text;          ///< The caller's, or `storage` once a step has rewritten it.
  std::vector<TextRange> pieces;  ///< Of `text`.
  size_t origin_bytes = 0;  ///< As in Normalizer::Step; Metaspace asks whether a piece begins inside it.
  std::string storage;
  std::string spare;                    ///< Scratch of steps that rewrite.
  std::vector<TextRange> spare_pieces;  ///< Scratch of all steps.
};

/// A chain of steps that cut pieces. Immutable; any number of threads.
class PreTokenizer {
 public:
  /// `json` is the member's value; null gives the empty chain. Errors name "tokenizer.json: pre_tokenizer".
  static Result<PreTokenizer> parse(const Json& json);

  class Step {
   public:
    virtual ~Step() = default;
    virtual void apply(PieceText& text) const = 0;
  };

  /// True where the last step is ByteLevel: its pieces may be handed on as raw bytes instead of their
  /// spelling.
  bool ends_in_byte_level() const { return last_byte_level_ != nullptr; }

  /// Cuts `text.pieces`. With `keep_bytes` (requires ends_in_byte_level) the last step does not spell bytes
  /// as characters.
  void apply(PieceText& text, bool keep_bytes) const;

 private:
  std::vector<std::shared_ptr<const Step>> steps_;
  std::shared_ptr<const Step> last_byte_level_;  // steps_.back() without its spelling, or null
};

}  // namespace tensorfold
