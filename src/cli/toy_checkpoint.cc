// Shapes and text files of toy checkpoints; their random bytes are made in toy_weights.cc.
#include "cli/toy_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/tokenizer_byte_alphabet.h"

namespace tensorfold {
namespace {

constexpr int64_t kGroupSize = 64;
constexpr int64_t kStartId = 256, kEndId = 257, kPadId = 258;

bool is_moe(const ToyOptions& options) { return options.family == "qwen3_moe"; }

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

Status check_range(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return {};
  return invalid_argument("--{} is {}, expected {} to {}", name, value, least, most);
}

Status check_toy_options(const ToyOptions& o) {
  TF_RETURN_IF_ERROR(check_range("layers", o.num_layers, 1, 4096));
  TF_RETURN_IF_ERROR(check_range("hidden", o.hidden_size, 64, 1 << 20));
  TF_RETURN_IF_ERROR(check_range("intermediate", o.intermediate_size, 64, 1 << 22));
  TF_RETURN_IF_ERROR(check_range("heads", o.num_heads, 1, 4096));
  TF_RETURN_IF_ERROR(check_range("kv-heads", o.num_kv_heads, 1, o.num_heads));
  TF_RETURN_IF_ERROR(check_range("head-dim", o.head_dim, 2, 1024));
  TF_RETURN_IF_ERROR(check_range("vocab", o.vocab_size, kMinToyVocab, 1 << 22));
  TF_RETURN_IF_ERROR(check_range("context", o.max_position_embeddings, 1, 1 << 30));
  if (is_moe(o)) {
    TF_RETURN_IF_ERROR(check_range("experts", o.num_experts, 1, 65536));
    TF_RETURN_IF_ERROR(check_range("experts-per-token", o.num_experts_per_tok, 1, o.num_experts));
  }
  if (o.num_heads % o.num_kv_heads != 0)
    return invalid_argument("--kv-heads {} does not divide --heads {}", o.num_kv_heads, o.num_heads);
  if (o.head_dim % 2 != 0) return invalid_argument("--head-dim {} is odd", o.head_dim);
  if (!o.is_quantized) return {};
  for (const auto& [name, size] : {std::pair("hidden", o.hidden_size),
                                   {"intermediate", o.intermediate_size},
                                   {"heads times --head-dim", o.num_heads * o.head_dim}})
    if (size % kGroupSize != 0)
      return invalid_argument("--{} is {}, which 4-bit groups of {} do not divide", name, size, kGroupSize);
  return {};
}

/// Adds matrices and norms by their names in the checkpoint.
class TensorList {
 public:
  /// Values such that an input of unit size has an output of about `gain`.
  void matrix(const std::string& name, int64_t out, int64_t in, double gain = 1) {
    tensors_.push_back({name, {out, in}, gain / std::sqrt(static_cast<double>(in))});
  }
  void experts(const std::string& name, int64_t count, int64_t out, int64_t in) {
    tensors_.push_back({name, {count, out, in}, 1 / std::sqrt(static_cast<double>(in))});
  }
  void router(const std::string& name, int64_t out, int64_t in) {
    tensors_.push_back({name, {out, in}, 1 / std::sqrt(static_cast<double>(in)), false});
  }
  void norm(const std::string& name, int64_t size) { tensors_.push_back({name, {size}, 0, false}); }
  void bias(const std::string& name, int64_t size) { tensors_.push_back({name, {size}, 0.1, false, true}); }

  std::vector<ToyTensor> take() { return std::move(tensors_); }

 private:
  std::vector<ToyTensor> tensors_;
};

void add_attention(TensorList& list, const ToyOptions& o, const std::string& at) {
  const int64_t E = o.hidden_size, q_size = o.num_heads * o.head_dim, kv_size = o.num_kv_heads * o.head_dim;
  list.matrix(at + "q_proj", q_size, E);
  list.matrix(at + "k_proj", kv_size, E);
  list.matrix(at + "v_proj", kv_size, E);
  list.matrix(at + "o_proj", E, q_size);
  if (o.family == "qwen2")
    for (const auto& [name, size] : {std::pair("q_proj", q_size), {"k_proj", kv_size}, {"v_proj", kv_size}})
      list.bias(at + name, size);
  if (o.family.starts_with("qwen3"))
    for (const char* name : {"q_norm", "k_norm"}) list.norm(at + name, o.head_dim);
}

/// bf16 files spell experts as Hugging Face does, one by one; 4-bit ones as MLX does, stacked.
void add_experts(TensorList& list, const ToyOptions& o, const std::string& at) {
  const int64_t E = o.hidden_size, I = o.intermediate_size;
  list.router(at + "gate", o.num_experts, E);
  if (o.is_quantized) {
    list.experts(at + "switch_mlp.gate_proj", o.num_experts, I, E);
    list.experts(at + "switch_mlp.up_proj", o.num_experts, I, E);
    list.experts(at + "switch_mlp.down_proj", o.num_experts, E, I);
    return;
  }
  for (int64_t i = 0; i < o.num_experts; ++i) {
    const std::string expert = fmt::format("{}experts.{}.", at, i);
    list.matrix(expert + "gate_proj", I, E);
    list.matrix(expert + "up_proj", I, E);
    list.matrix(expert + "down_proj", E, I);
  }
}

void add_mlp(TensorList& list, const ToyOptions& o, const std::string& at) {
  list.matrix(at + "gate_proj", o.intermediate_size, o.hidden_size);
  list.matrix(at + "up_proj", o.intermediate_size, o.hidden_size);
  list.matrix(at + "down_proj", o.hidden_size, o.intermediate_size);
}

std::string config_json(const ToyOptions& o) {
  static constexpr std::pair<const char*, const char*> kArchitectures[] = {
      {"llama", "LlamaForCausalLM"},
      {"qwen2", "Qwen2ForCausalLM"},
      {"qwen3", "Qwen3ForCausalLM"},
      {"qwen3_moe", "Qwen3MoeForCausalLM"}};
  Json json = Json::object();
  for (const auto& [family, architecture] : kArchitectures)
    if (o.family == family) json.set("architectures", Json(Json::Array{architecture}));
  json.set("model_type", o.family);
  json.set("torch_dtype", "bfloat16");
  json.set("hidden_size", o.hidden_size);
  json.set("intermediate_size", o.intermediate_size);
  json.set("num_hidden_layers", o.num_layers);
  json.set("num_attention_heads", o.num_heads);
  json.set("num_key_value_heads", o.num_kv_heads);
  json.set("head_dim", o.head_dim);
  json.set("vocab_size", o.vocab_size);
  json.set("max_position_embeddings", o.max_position_embeddings);
  json.set("rms_norm_eps", 1e-6);
  json.set("rope_theta", 10000.0);
  json.set("hidden_act", "silu");
  json.set("tie_word_embeddings", o.tie_word_embeddings);
  json.set("bos_token_id", kStartId);
  json.set("eos_token_id", kEndId);
  if (is_moe(o)) {
    json.set("num_experts", o.num_experts);
    json.set("num_experts_per_tok", o.num_experts_per_tok);
    json.set("moe_intermediate_size", o.intermediate_size);
    json.set("norm_topk_prob", true);
    json.set("decoder_sparse_step", 1);
    json.set("mlp_only_layers", Json::array());
  }
  if (o.is_quantized) {
    Json quantization = Json::object();
    quantization.set("group_size", kGroupSize);
    quantization.set("bits", 4);
    json.set("quantization", std::move(quantization));
  }
  return dump_json(json, {.indent = 2}) + "\n";
}

Json special_token(int64_t id, const char* content) {
  Json token = Json::object();
  token.set("id", id);
  token.set("content", content);
  for (const char* field : {"single_word", "lstrip", "rstrip", "normalized"}) token.set(field, false);
  token.set("special", true);
  return token;
}

/// " aa", " ab", ... : a word for every row of the vocabulary beyond bytes and special tokens, so that
/// whatever the model draws has a text. No merges lead to them: prompts are bytes.
std::string filler_word(int64_t index) {
  std::string letters;
  for (int64_t rest = index; letters.size() < 2 || rest > 0; rest /= 26)
    letters += static_cast<char>('a' + rest % 26);
  return "\u0120" + letters;
}

Json toy_vocab(int64_t vocab_size) {
  Json::Object vocab;
  for (int byte = 0; byte < 256; ++byte) {
    std::string name;
    append_byte_char(name, static_cast<uint8_t>(byte));
    vocab.emplace_back(name, Json(byte));
  }
  for (int64_t id = kPadId + 1; id < vocab_size; ++id)
    vocab.emplace_back(filler_word(id - kPadId - 1), Json(id));
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

std::string tokenizer_json(const ToyOptions& o) {
  Json model = Json::object();
  model.set("type", "BPE");
  for (const char* field : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"})
    model.set(field, Json());
  model.set("fuse_unk", false);
  model.set("byte_fallback", false);
  model.set("vocab", toy_vocab(o.vocab_size));
  model.set("merges", Json::array());
  Json json = Json::object();
  json.set("version", "1.0");
  json.set("truncation", Json());
  json.set("padding", Json());
  json.set("added_tokens",
           Json(Json::Array{special_token(kStartId, "<|im_start|>"), special_token(kEndId, "<|im_end|>"),
                            special_token(kPadId, "<|pad|>")}));
  json.set("normalizer", Json());
  json.set("pre_tokenizer", byte_level(true));
  json.set("post_processor", Json());
  json.set("decoder", byte_level(true));
  json.set("model", std::move(model));
  return dump_json(json) + "\n";
}

std::string tokenizer_config_json() {
  Json json = Json::object();
  json.set("tokenizer_class", "PreTrainedTokenizerFast");
  json.set("bos_token", "<|im_start|>");
  json.set("eos_token", "<|im_end|>");
  json.set("pad_token", "<|pad|>");
  json.set("chat_template",
           "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% "
           "endfor %}"
           "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  return dump_json(json, {.indent = 2}) + "\n";
}

}  // namespace

Result<ToyOptions> complete_toy_options(ToyOptions o) {
  if (o.num_heads == 0) o.num_heads = std::max<int64_t>(1, o.hidden_size / std::max<int64_t>(1, o.head_dim));
  if (o.num_kv_heads == 0) {
    o.num_kv_heads = std::max<int64_t>(1, o.num_heads / 4);
    while (o.num_heads % o.num_kv_heads != 0) --o.num_kv_heads;
  }
  if (o.intermediate_size == 0)
    o.intermediate_size = round_up(is_moe(o) ? o.hidden_size / 2 : 3 * o.hidden_size, 64);
  TF_RETURN_IF_ERROR(check_toy_options(o));
  return o;
}

ToyOptions toy_options_of_size(ToyOptions o, int64_t num_params) {
  // Published models have about one layer for each 64 of their width; heads are 128 wide from 2048 on.
  for (int64_t width = 128;; width += 128) {
    o.hidden_size = width;
    o.num_layers = std::clamp<int64_t>(width / 64, 2, 80);
    if (width >= 2048) o.head_dim = 128;
    const Result<ToyOptions> complete = complete_toy_options(o);
    if (!complete.ok() || width >= 32768 || toy_num_params(*complete) >= num_params) return o;
  }
}

std::vector<ToyTensor> toy_tensors(const ToyOptions& o) {
  TensorList list;
  list.matrix("model.embed_tokens", o.vocab_size, o.hidden_size, 3);
  for (int64_t i = 0; i < o.num_layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    list.norm(layer + "input_layernorm", o.hidden_size);
    add_attention(list, o, layer + "self_attn.");
    list.norm(layer + "post_attention_layernorm", o.hidden_size);
    is_moe(o) ? add_experts(list, o, layer + "mlp.") : add_mlp(list, o, layer + "mlp.");
  }
  list.norm("model.norm", o.hidden_size);
  // Logits of a few units: neither flat nor all on one token.
  if (!o.tie_word_embeddings) list.matrix("lm_head", o.vocab_size, o.hidden_size, 3);
  return list.take();
}

int64_t toy_num_params(const ToyOptions& options) {
  int64_t total = 0;
  for (const ToyTensor& tensor : toy_tensors(options)) {
    int64_t size = 1;
    for (const int64_t dim : tensor.shape) size *= dim;
    total += size;
  }
  return total;
}

std::vector<std::pair<std::string, std::string>> toy_text_files(const ToyOptions& options) {
  Json generation = Json::object();
  generation.set("eos_token_id", kEndId);
  return {{"config.json", config_json(options)},
          {"generation_config.json", dump_json(generation, {.indent = 2}) + "\n"},
          {"tokenizer.json", tokenizer_json(options)},
          {"tokenizer_config.json", tokenizer_config_json()}};
}

}  // namespace tensorfold
