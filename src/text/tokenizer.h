// Text to token ids and back, exactly as Hugging Face's tokenizers does it with the same tokenizer.json.
// Specification: tokenizers 0.23.3; streaming of decoded text is text/detokenizer.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tensorfold {

class DecoderChain;

/// How a text is encoded.
struct EncodeOptions {
  bool add_special_tokens =
      false;  ///< Put the special tokens of the post-processor (BOS, say) around the text.
  bool special_tokens_as_text =
      false;  ///< "<|im_end|>" in the text is encoded as these characters, not as the token.
};

/// One model's tokenizer. Immutable once loaded; every method may be called from any number of threads at
/// once. Encoding threads borrow scratch memory (some 2 MB each) from a pool that the tokenizer owns.
class Tokenizer {
 public:
  /// Reads tokenizer.json and, where it exists, tokenizer_config.json of a checkpoint folder. kNotFound
  /// without tokenizer.json; other errors name the component: "tokenizer.json: pre_tokenizer: type 'Foo' is
  /// not supported".
  static Result<std::shared_ptr<const Tokenizer>> load(const std::string& folder);
  /// The same from the files' contents; an empty `tokenizer_config_json` stands for no such file.
  static Result<std::shared_ptr<const Tokenizer>> parse(std::string_view tokenizer_json,
                                                        std::string_view tokenizer_config_json = {});
  ~Tokenizer();

  /// The ids of a text. Invalid UTF-8 counts as U+FFFD, one for each maximal invalid part (Python's
  /// errors="replace"). `truncation` and `padding` of the file are ignored. Takes time n log n at worst.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options) const;
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens) const {
    return encode(text, EncodeOptions{.add_special_tokens = add_special_tokens});
  }

  /// The text of ids. Unknown ids give nothing; with `skip_special_tokens` neither do special tokens. Valid
  /// UTF-8: bytes that form no character become U+FFFD.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  /// Largest id + 1. A model may have more rows than this: their ids decode to nothing.
  int32_t vocab_size() const;
  /// Added tokens first, then the model's vocabulary.
  std::optional<int32_t> token_to_id(std::string_view token) const;
  /// The token as tokenizer.json spells it ("Ġthe"); empty for an unknown id. Valid as long as the tokenizer.
  std::string_view id_to_token(int32_t id) const;
  /// The id is an added token marked special.
  bool is_special(int32_t id) const;

  /// From tokenizer_config.json: a string, or the `content` of an object; absent where the file says null or
  /// nothing.
  const std::optional<std::string>& bos_token() const;
  const std::optional<std::string>& eos_token() const;
  const std::optional<std::string>& pad_token() const;
  const std::optional<std::string>& unk_token() const;
  /// add_bos_token and add_eos_token of tokenizer_config.json. encode() does not look at them: what it adds
  /// is written in tokenizer.json's post_processor.
  std::optional<bool> add_bos_token() const;
  std::optional<bool> add_eos_token() const;

  /// For Detokenizer: the string of an id that goes into the decoders, or nullopt where the id gives nothing.
  /// An added token with `normalized` has its normalized spelling here.
  std::optional<std::string_view> decoder_input(int32_t id, bool skip_special_tokens) const;
  const DecoderChain& decoder_chain() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tensorfold
