// See logprobs.h. A logprob of minus infinity, which JSON cannot say, is written as -9999, as OpenAI does.
#include "server/logprobs.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/tokenizer_byte_alphabet.h"

namespace tensorfold {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

double json_logprob(float logprob) { return std::isfinite(logprob) ? static_cast<double>(logprob) : -9999.0; }

/// The byte of a token spelled "<0xE2>", or -1.
int fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
  int value = -1;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  return error == std::errc() && end == token.data() + 5 ? value : -1;
}

/// The bytes of one token, also where they are only part of a character.
std::string token_bytes(const Tokenizer& tokenizer, int32_t id) {
  std::string text = tokenizer.decode(std::span(&id, 1), false);
  if (text.find(kReplacement) == std::string::npos) return text;
  const std::string_view spelled = tokenizer.id_to_token(id);
  if (const int byte = fallback_byte(spelled); byte >= 0) return std::string(1, static_cast<char>(byte));
  std::string bytes;
  return append_spelled_bytes(bytes, spelled) ? bytes : text;
}

Json bytes_json(std::string_view bytes) {
  Json list = Json::array();
  for (const char byte : bytes) list.push_back(static_cast<int>(static_cast<unsigned char>(byte)));
  return list;
}

Json chat_entry(const Tokenizer& tokenizer, int32_t token, float logprob) {
  const std::string bytes = token_bytes(tokenizer, token);
  Json entry = Json::object();
  entry.set("token", bytes);
  entry.set("logprob", json_logprob(logprob));
  entry.set("bytes", bytes_json(bytes));
  return entry;
}

int64_t num_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

Json chat_logprobs(const Tokenizer& tokenizer, std::span<const GeneratedToken> tokens) {
  Json content = Json::array();
  for (const GeneratedToken& token : tokens) {
    Json entry = chat_entry(tokenizer, token.token, token.logprob);
    Json top = Json::array();
    for (const TokenLogprob& other : token.top_logprobs)
      top.push_back(chat_entry(tokenizer, other.token, other.logprob));
    entry.set("top_logprobs", std::move(top));
    content.push_back(std::move(entry));
  }
  Json json = Json::object();
  json.set("content", std::move(content));
  json.set("refusal", Json());
  return json;
}

Json completion_logprobs(const Tokenizer& tokenizer, std::span<const GeneratedToken> tokens,
                         int64_t& text_offset) {
  Json names = Json::array(), logprobs = Json::array(), tops = Json::array(), offsets = Json::array();
  for (const GeneratedToken& token : tokens) {
    const std::string bytes = token_bytes(tokenizer, token.token);
    names.push_back(bytes);
    logprobs.push_back(json_logprob(token.logprob));
    offsets.push_back(text_offset);
    text_offset += num_characters(bytes);
    Json top = Json::object();
    for (const TokenLogprob& other : token.top_logprobs) {
      const std::string name = token_bytes(tokenizer, other.token);
      // Of tokens that look alike the most likely one is shown; it comes first.
      if (top.find(name) == nullptr) top.set(name, json_logprob(other.logprob));
    }
    tops.push_back(std::move(top));
  }
  Json json = Json::object();
  json.set("tokens", std::move(names));
  json.set("token_logprobs", std::move(logprobs));
  json.set("top_logprobs", std::move(tops));
  json.set("text_offset", std::move(offsets));
  return json;
}

}  // namespace tensorfold
