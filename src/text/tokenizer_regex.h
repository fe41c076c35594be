// Searching with the patterns of tokenizer.json: Oniguruma's syntax and iteration, PCRE2's matcher.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tensorfold {

/// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin, end;
  size_t size() const { return end - begin; }
  friend bool operator==(const TextRange&, const TextRange&) = default;
};

/// A compiled pattern. Immutable; searches may run on any number of threads at once.
class TokenizerRegex {
 public:
  /// Compiles with JIT where the machine has it. Errors: as oniguruma_to_pcre2, or kCorrupt for what PCRE2
  /// refuses.
  static Result<TokenizerRegex> compile(std::string_view oniguruma_pattern);
  /// A pattern that matches `text` itself.
  static TokenizerRegex literal(std::string_view text);

  TokenizerRegex(TokenizerRegex&&) noexcept;
  TokenizerRegex& operator=(TokenizerRegex&&) noexcept;
  ~TokenizerRegex();

  /// Appends the successive leftmost matches in `text` (valid UTF-8, one subject of its own: look-arounds see
  /// nothing outside it). An empty match right after the previous match is skipped, as Rust's onig crate
  /// does. A search that exceeds a million steps (a pattern that backtracks without end) counts as "no
  /// further match".
  void find_all(std::string_view text, std::vector<TextRange>& matches) const;

 private:
  struct Impl;
  explicit TokenizerRegex(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tensorfold
