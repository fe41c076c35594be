// Token ids to text as they are generated: what Tokenizer::decode gives for all ids, in parts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace tensorfold {

class DecodeStage;

/// The text of one sequence of ids. Owned by who reads the sequence; one thread at a time.
/// The parts joined are decode(all ids, skip_special_tokens), to the byte, for any ids. Each part is valid
/// UTF-8: bytes of an unfinished character are held back, and so is what later ids may still change: a run of
/// byte-fallback tokens until it ends, trailing blanks that a decoder strips.
class Detokenizer {
 public:
  Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens);
  ~Detokenizer();
  Detokenizer(Detokenizer&&) noexcept;
  Detokenizer& operator=(Detokenizer&&) noexcept;

  /// Text that this id completes; often empty. Not after finish().
  std::string push(int32_t id);
  /// What was held back; an unfinished character as U+FFFD. Called once, after the last id.
  std::string finish();

 private:
  class Output;
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_tokens_;
  std::unique_ptr<Output> output_;
  std::vector<std::unique_ptr<DecodeStage>> stages_;
};

}  // namespace tensorfold
