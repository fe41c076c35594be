// The `decoder` of tokenizer.json: from the strings of tokens to text, one token at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace tensorfold {

/// One step of decoding, with what it must hold back. Steps form a list; each hands its output to the next.
/// In front of the first Fuse or ByteLevel a step sees whole tokens; behind it, the parts of the one token
/// they make. All text is valid UTF-8. One thread at a time.
class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  virtual void push(std::string_view text) = 0;
  /// There is nothing more to come. Called once.
  virtual void finish() { next_->finish(); }
  void set_next(DecodeStage* next) { next_ = next; }

 protected:
  DecodeStage* next_ = nullptr;
};

/// Immutable; makes the stages of any number of streams. Any number of threads.
class DecoderChain {
 public:
  /// `json` is the member's value; null joins tokens with blanks. Errors name "tokenizer.json: decoder".
  static Result<DecoderChain> parse(const Json& json);

  /// Fresh stages in order, linked but for the last one's next. Not empty.
  std::vector<std::unique_ptr<DecodeStage>> make_stages() const;

  using Factory = std::function<std::unique_ptr<DecodeStage>()>;

 private:
  std::vector<Factory> factories_;
};

}  // namespace tensorfold
