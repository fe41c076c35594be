// Any bytes as tokenizer.json and, after the first zero byte, as a text: an error that names its file, or a
// tokenizer whose decoded text is valid UTF-8 and the same when streamed.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace tensorfold {
namespace {

void check_decoding(const std::shared_ptr<const Tokenizer>& tokenizer, const std::vector<int32_t>& ids,
                    bool skip) {
  const std::string text = tokenizer->decode(ids, skip);
  TF_CHECK(is_valid_utf8(text));
  Detokenizer detokenizer(tokenizer, skip);
  std::string streamed;
  for (const int32_t id : ids) {
    const std::string part = detokenizer.push(id);
    TF_CHECK(is_valid_utf8(part));
    streamed += part;
  }
  TF_CHECK(streamed + detokenizer.finish() == text);
}

void check_tokenizer(std::string_view json, std::string_view text) {
  const auto tokenizer = Tokenizer::parse(json);
  if (!tokenizer.ok()) {
    TF_CHECK(tokenizer.status().message().starts_with("tokenizer.json: "));
    return;
  }
  for (const bool add_special_tokens : {false, true}) {
    const std::vector<int32_t> ids = (*tokenizer)->encode(text, add_special_tokens);
    TF_CHECK((*tokenizer)->encode(text, add_special_tokens) == ids);
    check_decoding(*tokenizer, ids, add_special_tokens);
  }
  std::vector<int32_t> ids;
  for (const char byte : text) ids.push_back(byte);
  for (const bool skip : {false, true}) check_decoding(*tokenizer, ids, skip);
}

}  // namespace
}  // namespace tensorfold

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view json = input.substr(0, zero);
  tensorfold::check_tokenizer(json, zero == std::string_view::npos ? json : input.substr(zero + 1));
  return 0;
}
