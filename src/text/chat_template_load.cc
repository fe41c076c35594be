// A model folder's templates and special tokens.
#include <fstream>
#include <sstream>

#include "text/chat_template.h"

namespace tensorfold {
namespace {

namespace fs = std::filesystem;

Result<std::string> read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file.is_open() || file.bad() || text.fail()) {
    return make_error(StatusCode::kIo, "{}: cannot be read", path.string());
  }
  return std::move(text).str();
}

Result<Json> read_json(const fs::path& path) {
  TF_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  Result<Json> json = parse_json(text);
  if (!json.ok()) return corrupt("{}: {}", path.string(), json.status().message());
  if (!json->is_object())
    return corrupt("{}: expected an object, found {}", path.string(), json->kind_name());
  return json;
}

Status parse_into(std::shared_ptr<const ChatTemplate>& target, std::string source, std::string name) {
  TF_ASSIGN_OR_RETURN(target, ChatTemplate::parse(std::move(source), std::move(name)));
  return Status();
}

/// "chat_template": one text, or a list of named ones.
Status parse_field(ModelChat& chat, const Json& field, const std::string& where) {
  if (field.is_string()) return parse_into(chat.default_template, field.as_string(), where);
  if (!field.is_array())
    return corrupt("{}: chat_template: expected a string or a list, found {}", where, field.kind_name());
  std::string names;
  for (const Json& entry : field.as_array()) {
    const Json* name = entry.find("name");
    const Json* source = entry.find("template");
    if (name == nullptr || source == nullptr || !name->is_string() || !source->is_string()) {
      return corrupt("{}: chat_template: each entry of the list needs the strings name and template", where);
    }
    names += (names.empty() ? "" : ", ") + name->as_string();
    const std::string label = where + ":" + name->as_string();
    if (name->as_string() == "default")
      TF_RETURN_IF_ERROR(parse_into(chat.default_template, source->as_string(), label));
    if (name->as_string() == "tool_use")
      TF_RETURN_IF_ERROR(parse_into(chat.tool_use, source->as_string(), label));
  }
  if (chat.default_template == nullptr)
    return not_found("{}: no chat template named 'default' (there are: {})", where, names);
  return Status();
}

/// bos_token and its kin: a string, or an object with the string under "content".
Json::Object special_tokens(const Json& config) {
  constexpr const char* kNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};
  Json::Object tokens;
  for (const char* name : kNames) {
    const Json* token = config.find(name);
    if (token != nullptr && token->is_object()) token = token->find("content");
    if (token != nullptr && token->is_string()) tokens.emplace_back(name, *token);
  }
  return tokens;
}

/// Fills in the templates from the first file that has them; leaves them null when none does.
Status load_templates(ModelChat& chat, const fs::path& folder, const Json& config) {
  std::error_code ignored;
  if (fs::exists(folder / "chat_template.jinja", ignored)) {
    TF_ASSIGN_OR_RETURN(std::string source, read_file(folder / "chat_template.jinja"));
    TF_RETURN_IF_ERROR(parse_into(chat.default_template, std::move(source), "chat_template.jinja"));
    const fs::path tool_use = folder / "additional_chat_templates" / "tool_use.jinja";
    if (!fs::exists(tool_use, ignored)) return Status();
    TF_ASSIGN_OR_RETURN(source, read_file(tool_use));
    return parse_into(chat.tool_use, std::move(source), "additional_chat_templates/tool_use.jinja");
  }
  if (fs::exists(folder / "chat_template.json", ignored)) {
    TF_ASSIGN_OR_RETURN(const Json json, read_json(folder / "chat_template.json"));
    const Json* field = json.find("chat_template");
    if (field == nullptr)
      return corrupt("{}: no chat_template in it", (folder / "chat_template.json").string());
    return parse_field(chat, *field, "chat_template.json");
  }
  const Json* field = config.find("chat_template");
  return field == nullptr || field->is_null() ? Status() : parse_field(chat, *field, "tokenizer_config.json");
}

}  // namespace

Result<ModelChat> load_model_chat(const fs::path& model_folder) {
  ModelChat chat;
  std::error_code ignored;
  Json config = Json::object();
  if (fs::exists(model_folder / "tokenizer_config.json", ignored)) {
    TF_ASSIGN_OR_RETURN(config, read_json(model_folder / "tokenizer_config.json"));
  }
  chat.special_tokens = special_tokens(config);
  TF_RETURN_IF_ERROR(load_templates(chat, model_folder, config));
  if (chat.default_template == nullptr) {
    return not_found(
        "{}: the model has no chat template (looked for chat_template.jinja, chat_template.json and "
        "chat_template in "
        "tokenizer_config.json)",
        model_folder.string());
  }
  return chat;
}

}  // namespace tensorfold
