// text/tokenizer_regex.h; the only file that knows PCRE2.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/tokenizer_regex.h"

#include <pcre2.h>

#include <string>

#include "base/check.h"
#include "text/tokenizer_oniguruma.h"
#include "text/unicode.h"

namespace tensorfold {
namespace {

template <auto kFree>
struct Freer {
  template <class T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Code = std::unique_ptr<pcre2_code, Freer<pcre2_code_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Freer<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>>;

/// Far above what the patterns of real tokenizers take for one match, and a few milliseconds of work.
constexpr uint32_t kMatchLimit = 1'000'000;
constexpr uint32_t kHeapLimitKib = 64 * 1024;

std::string pcre2_message(int error) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(error, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

/// The next match at or after `start`; false for none.
bool search(const pcre2_code* code, bool has_jit, std::string_view text, size_t start, pcre2_match_data* data,
            pcre2_match_context* context) {
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int rc = PCRE2_ERROR_JIT_STACKLIMIT;
  if (has_jit) rc = pcre2_jit_match(code, subject, text.size(), start, 0, data, context);
  // The compiled matcher has 32 KiB of stack; the interpreter takes over where a pattern needs more.
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
    rc = pcre2_match(code, subject, text.size(), start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, context);
  }
  return rc >= 0;
}

}  // namespace

/// Either a compiled pattern or a literal.
struct TokenizerRegex::Impl {
  Code code;
  bool has_jit = false;
  std::string literal;

  bool find(std::string_view text, size_t start, pcre2_match_data* data, pcre2_match_context* context,
            TextRange& match) const {
    if (code == nullptr) {
      const size_t begin = text.find(literal, start);
      match = {begin, begin + literal.size()};
      return begin != std::string_view::npos;
    }
    if (!search(code.get(), has_jit, text, start, data, context)) return false;
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data);
    match = {offsets[0], offsets[1]};
    return true;
  }
};

TokenizerRegex::TokenizerRegex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TokenizerRegex::TokenizerRegex(TokenizerRegex&&) noexcept = default;
TokenizerRegex& TokenizerRegex::operator=(TokenizerRegex&&) noexcept = default;
TokenizerRegex::~TokenizerRegex() = default;

Result<TokenizerRegex> TokenizerRegex::compile(std::string_view oniguruma_pattern) {
  TF_ASSIGN_OR_RETURN(const std::string pattern, oniguruma_to_pcre2(oniguruma_pattern));
  const CompileContext context(pcre2_compile_context_create(nullptr));
  TF_CHECK(context != nullptr);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 100);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto impl = std::make_unique<Impl>();
  impl->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                                 context.get()));
  if (impl->code == nullptr) return corrupt("pattern '{}': {}", oniguruma_pattern, pcre2_message(error));
  impl->has_jit = pcre2_jit_compile(impl->code.get(), PCRE2_JIT_COMPLETE) == 0;
  return TokenizerRegex(std::move(impl));
}

TokenizerRegex TokenizerRegex::literal(std::string_view text) {
  auto impl = std::make_unique<Impl>();
  impl->literal = text;
  return TokenizerRegex(std::move(impl));
}

void TokenizerRegex::find_all(std::string_view text, std::vector<TextRange>& matches) const {
  MatchData data;
  MatchContext context;
  if (impl_->code != nullptr) {
    data.reset(pcre2_match_data_create(1, nullptr));
    context.reset(pcre2_match_context_create(nullptr));
    TF_CHECK(data != nullptr && context != nullptr);
    pcre2_set_match_limit(context.get(), kMatchLimit);
    pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  }
  size_t start = 0;
  size_t previous_end = std::string_view::npos;
  TextRange match;
  while (start <= text.size() && impl_->find(text, start, data.get(), context.get(), match)) {
    if (match.size() == 0 && match.end == previous_end) {
      start += start < text.size() ? utf8_length(text[start]) : 1;
      continue;
    }
    matches.push_back(match);
    start = previous_end = match.end;
  }
}

}  // namespace tensorfold
