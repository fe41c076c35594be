// text/tokenizer_post_processor.h
#include "text/tokenizer_post_processor.h"

#include <optional>

#include "text/tokenizer_fields.h"
#include "text/tokenizer_vocab.h"

namespace tensorfold {
namespace {

constexpr char kComponent[] = "tokenizer.json: post_processor";
using Template = std::vector<TemplatePiece>;

/// The ids that special_tokens[name] stands for.
Result<std::vector<int32_t>> special_ids(const Json& special_tokens, const std::string& name) {
  const Json* token = special_tokens.find(name);
  if (token == nullptr) return corrupt("{}: special token '{}' is not in special_tokens", kComponent, name);
  TokenizerFields fields(*token, kComponent);
  std::vector<int32_t> ids;
  for (const Json& id : fields.items("ids")) {
    if (!id.is_int() || id.as_int() < 0 || id.as_int() > kMaxTokenId) {
      return corrupt("{}: special token '{}' has an id that is not an integer from 0 to {}", kComponent, name,
                     kMaxTokenId);
    }
    ids.push_back(static_cast<int32_t>(id.as_int()));
  }
  TF_RETURN_IF_ERROR(fields.status());
  return ids;
}

Result<TemplatePiece> parse_piece(const Json& json, const Json& special_tokens) {
  if (const Json* sequence = json.find("Sequence")) {
    TokenizerFields fields(*sequence, kComponent);
    if (fields.text("id") != "A") fields.fail("the single template has a sequence other than A");
    TF_RETURN_IF_ERROR(fields.status());
    return TemplatePiece{true, {}};
  }
  TokenizerFields piece(json, kComponent);
  TokenizerFields fields(piece.required("SpecialToken"), kComponent);
  TF_RETURN_IF_ERROR(piece.status());
  const std::string name = fields.text("id");
  TF_RETURN_IF_ERROR(fields.status());
  TF_ASSIGN_OR_RETURN(std::vector<int32_t> ids, special_ids(special_tokens, name));
  return TemplatePiece{false, std::move(ids)};
}

Status parse_template(TokenizerFields& fields, std::optional<Template>& result) {
  if (result) return unsupported("{}: has more than one TemplateProcessing", kComponent);
  const Json::Array& single = fields.items("single");
  const Json& special_tokens = fields.required("special_tokens");
  TF_RETURN_IF_ERROR(fields.status());
  result.emplace();
  for (const Json& item : single) {
    TF_ASSIGN_OR_RETURN(TemplatePiece piece, parse_piece(item, special_tokens));
    result->push_back(std::move(piece));
  }
  return Status();
}

Status parse_processor(const Json& json, int depth, std::optional<Template>& result) {
  TokenizerFields fields(json, kComponent);
  const std::string type = fields.text("type");
  if (depth > kMaxComponentDepth) fields.fail("nests deeper than {} levels", kMaxComponentDepth);
  TF_RETURN_IF_ERROR(fields.status());
  if (type == "ByteLevel") return Status();
  if (type == "TemplateProcessing") return parse_template(fields, result);
  if (type != "Sequence") return fields.unsupported_type(type);
  const Json::Array& items = fields.items("processors");
  TF_RETURN_IF_ERROR(fields.status());
  for (const Json& item : items) TF_RETURN_IF_ERROR(parse_processor(item, depth + 1, result));
  return Status();
}

}  // namespace

Result<std::vector<TemplatePiece>> parse_post_processor(const Json& json) {
  std::optional<Template> result;
  if (!json.is_null()) TF_RETURN_IF_ERROR(parse_processor(json, 0, result));
  return result.value_or(Template{TemplatePiece{true, {}}});
}

}  // namespace tensorfold
