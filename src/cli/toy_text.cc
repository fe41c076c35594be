// The text files of toy checkpoints: a tokenizer of bytes and filler words, and a chat template.
#include <span>

#include "cli/toy_checkpoint.h"
#include "text/tokenizer_byte_alphabet.h"

namespace tensorfold {
namespace {

/// What the published chat templates of a family have a place for.
struct ToyChat {
  bool has_tools = false;
  bool has_thinking = false;
};

ToyChat toy_chat(std::string_view model_type) {
  if (model_type == "llama" || model_type.starts_with("gemma3")) return {};
  return {.has_tools = true, .has_thinking = model_type != "qwen2"};
}

constexpr std::string_view kPlainTemplate =
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor "
    "%}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Tools and calls as Hermes writes them (text/output_parser.h).
constexpr std::string_view kToolsTemplate =
    "{% if tools %}<|im_start|>system\nFunctions, one JSON object a line:\n"
    "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}A call of one:\n"
    "<tool_call>\n{\"name\": NAME, \"arguments\": OBJECT}\n</tool_call><|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}\n<tool_call>\n"
    "{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}\n</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n$THINKING{% endif %}";

/// Random weights hardly begin to think by themselves: only a request that says so finds them thinking.
constexpr std::string_view kThinking =
    "{% if enable_thinking is defined %}{{ '<think>\n' if enable_thinking else '<think>\n\n</think>\n\n' }}"
    "{% endif %}";

std::string chat_template(std::string_view model_type) {
  const ToyChat chat = toy_chat(model_type);
  if (!chat.has_tools) return std::string(kPlainTemplate);
  constexpr std::string_view kPlace = "$THINKING";
  std::string text(kToolsTemplate);
  return text.replace(text.find(kPlace), kPlace.size(), chat.has_thinking ? kThinking : "");
}

struct AddedToken {
  std::string_view content;
  bool is_special = true;
};

/// From id 256 on. With the tags of thinking as tokens, random weights end their thinking now and then.
std::vector<AddedToken> added_tokens(std::string_view model_type) {
  std::vector<AddedToken> tokens = {{"<|im_start|>"}, {"<|im_end|>"}, {"<|pad|>"}};
  if (toy_chat(model_type).has_thinking)
    tokens.insert(tokens.end(), {{"<think>", false}, {"</think>", false}});
  return tokens;
}

Json added_tokens_json(std::span<const AddedToken> tokens) {
  Json list = Json::array();
  for (const AddedToken& added : tokens) {
    Json token = Json::object();
    token.set("id", kToyStartId + std::ssize(list.as_array()));
    token.set("content", added.content);
    for (const char* field : {"single_word", "lstrip", "rstrip", "normalized"}) token.set(field, false);
    token.set("special", added.is_special);
    list.push_back(std::move(token));
  }
  return list;
}

/// " aa", " ab", ... : a word for every row of the vocabulary beyond bytes and special tokens, so that
/// whatever the model draws has a text. No merges lead to them: prompts are bytes.
std::string filler_word(int64_t index) {
  std::string letters;
  for (int64_t rest = index; letters.size() < 2 || rest > 0; rest /= 26)
    letters += static_cast<char>('a' + rest % 26);
  return "\u0120" + letters;
}

Json toy_vocab(int64_t first_word, int64_t vocab_size) {
  Json::Object vocab;
  for (int byte = 0; byte < 256; ++byte) {
    std::string name;
    append_byte_char(name, static_cast<uint8_t>(byte));
    vocab.emplace_back(name, Json(byte));
  }
  for (int64_t id = first_word; id < vocab_size; ++id)
    vocab.emplace_back(filler_word(id - kToyPadId - 1), Json(id));
  return Json(std::move(vocab));
}

Json byte_level(bool use_regex) {
  Json json = Json::object();
  json.set("type", "ByteLevel");
  json.set("add_prefix_space", false);
  json.set("trim_offsets", true);
  json.set("use_regex", use_regex);
  return json;
}

std::string tokenizer_json(std::string_view model_type, int64_t vocab_size) {
  const std::vector<AddedToken> added = added_tokens(model_type);
  Json model = Json::object();
  model.set("type", "BPE");
  for (const char* field : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"})
    model.set(field, Json());
  model.set("fuse_unk", false);
  model.set("byte_fallback", false);
  model.set("vocab", toy_vocab(kToyStartId + std::ssize(added), vocab_size));
  model.set("merges", Json::array());
  Json json = Json::object();
  json.set("version", "1.0");
  json.set("truncation", Json());
  json.set("padding", Json());
  json.set("added_tokens", added_tokens_json(added));
  json.set("normalizer", Json());
  json.set("pre_tokenizer", byte_level(true));
  json.set("post_processor", Json());
  json.set("decoder", byte_level(true));
  json.set("model", std::move(model));
  return dump_json(json) + "\n";
}

std::string tokenizer_config_json(std::string_view model_type) {
  Json json = Json::object();
  json.set("tokenizer_class", "PreTrainedTokenizerFast");
  json.set("bos_token", "<|im_start|>");
  json.set("eos_token", "<|im_end|>");
  json.set("pad_token", "<|pad|>");
  json.set("chat_template", chat_template(model_type));
  return dump_json(json, {.indent = 2}) + "\n";
}

}  // namespace

std::vector<std::pair<std::string, std::string>> toy_text_files(const ToyModel& model) {
  const std::string& model_type = model.config.find("model_type")->as_string();
  Json generation = Json::object();
  generation.set("eos_token_id", kToyEndId);
  return {{"config.json", dump_json(model.config, {.indent = 2}) + "\n"},
          {"generation_config.json", dump_json(generation, {.indent = 2}) + "\n"},
          {"tokenizer.json", tokenizer_json(model_type, model.config.find("vocab_size")->as_int())},
          {"tokenizer_config.json", tokenizer_config_json(model_type)}};
}

}  // namespace tensorfold
