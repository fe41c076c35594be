// text/tokenizer_config.h
#include "text/tokenizer_config.h"

#include "text/tokenizer_fields.h"

namespace tensorfold {
namespace {

constexpr char kFile[] = "tokenizer_config.json";

/// A token written as a string or as an object with `content`.
std::optional<std::string> token_text(TokenizerFields& fields, std::string_view key) {
  const Json* value = fields.optional(key);
  if (value == nullptr) return std::nullopt;
  const Json* content = value->is_object() ? value->find("content") : value;
  if (content != nullptr && content->is_string()) return content->as_string();
  fields.fail("'{}' is neither a string nor an object with the string 'content'", key);
  return std::nullopt;
}

std::optional<bool> optional_flag(TokenizerFields& fields, std::string_view key) {
  return fields.optional(key) == nullptr ? std::nullopt : std::optional(fields.flag(key));
}

}  // namespace

Result<TokenizerConfig> parse_tokenizer_config(std::string_view text) {
  TokenizerConfig config;
  if (text.empty()) return config;
  const Result<Json> json = parse_json(text);
  if (!json.ok()) return corrupt("{}: {}", kFile, json.status().message());
  TokenizerFields fields(*json, kFile);
  config.bos_token = token_text(fields, "bos_token");
  config.eos_token = token_text(fields, "eos_token");
  config.pad_token = token_text(fields, "pad_token");
  config.unk_token = token_text(fields, "unk_token");
  config.add_bos_token = optional_flag(fields, "add_bos_token");
  config.add_eos_token = optional_flag(fields, "add_eos_token");
  TF_RETURN_IF_ERROR(fields.status());
  return config;
}

}  // namespace tensorfold
