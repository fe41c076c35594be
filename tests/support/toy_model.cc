// The checkpoints behind tests/support/toy_model.h.
#include "tests/support/toy_model.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <span>
#include <utility>
#include <vector>

#include "base/bf16.h"
#include "base/hash.h"
#include "base/json.h"
#include "formats/safetensors_writer.h"

namespace tensorfold {
namespace {

/// A tensor and its bytes, in the order of the file.
struct ToyTensor {
  TensorDeclaration declaration;
  std::vector<std::byte> bytes;
};

/// Collects the tensors of one checkpoint; every value is a hash of the seed, the tensor's number and the
/// element.
class ToyWriter {
 public:
  explicit ToyWriter(const ToyModel& toy) : toy_(toy) {}

  /// A norm weight around 1, or a bias around 0.
  void vector(const std::string& name, int64_t size, float center) { add_floats(name, {size}, center, 0.2f); }

  /// A matrix whose product with a normalized input has unit size, times `gain`. `num_stacked` > 0 adds a
  /// leading axis.
  void matrix(const std::string& module, int64_t out, int64_t in, float gain = 1.0f,
              int64_t num_stacked = 0) {
    const float deviation = gain / std::sqrt(static_cast<float>(in));
    std::vector<int64_t> shape = {out, in};
    if (num_stacked > 0) shape.insert(shape.begin(), num_stacked);
    if (toy_.bits == 0) return add_floats(module + ".weight", shape, 0.0f, deviation);
    add_affine(module, shape, deviation);
  }

  const std::vector<ToyTensor>& tensors() const { return tensors_; }

 private:
  /// Uniform in [-1, 1) with a deviation of 1/sqrt(3).
  float uniform(int64_t i) const {
    const uint64_t word = mix64(toy_.seed * 0x9e3779b97f4a7c15ull + tensors_.size() * 0x100000001ull) +
                          static_cast<uint64_t>(i);
    return static_cast<float>(static_cast<int64_t>(mix64(word) >> 40) - (1 << 23)) /
           static_cast<float>(1 << 23);
  }

  static int64_t num_elements(const std::vector<int64_t>& shape) {
    int64_t n = 1;
    for (const int64_t dim : shape) n *= dim;
    return n;
  }

  void add(std::string name, DType dtype, std::vector<int64_t> shape, std::vector<std::byte> bytes) {
    tensors_.push_back(
        {{.name = std::move(name), .dtype = dtype, .shape = std::move(shape)}, std::move(bytes)});
  }

  void add_floats(const std::string& name, const std::vector<int64_t>& shape, float center, float deviation) {
    std::vector<std::byte> bytes(static_cast<size_t>(num_elements(shape)) * sizeof(bf16));
    for (int64_t i = 0; i < num_elements(shape); ++i) {
      const bf16 value = to_bf16(center + deviation * 1.7320508f * uniform(i));
      std::memcpy(bytes.data() + i * 2, &value, sizeof value);
    }
    add(name, DType::kBF16, shape, std::move(bytes));
  }

  /// Random codes; scales of either sign, biases that put the middle code near zero.
  void add_affine(const std::string& module, std::vector<int64_t> shape, float deviation) {
    const auto largest = static_cast<float>((1 << toy_.bits) - 1);
    std::vector<int64_t> packed = shape, groups = shape;
    packed.back() = shape.back() * toy_.bits / 32;
    groups.back() = shape.back() / toy_.group_size;
    std::vector<std::byte> codes(static_cast<size_t>(num_elements(packed)) * 4);
    for (size_t i = 0; i < codes.size(); ++i) {
      codes[i] = static_cast<std::byte>(mix64(toy_.seed + tensors_.size() * 7919 + (i << 20)) >> 56);
    }
    add(module + ".weight", DType::kU32, packed, std::move(codes));
    std::vector<std::byte> scales(static_cast<size_t>(num_elements(groups)) * 2), biases(scales.size());
    for (int64_t i = 0; i < num_elements(groups); ++i) {
      const float sign = uniform(i) < 0 ? -1.0f : 1.0f;
      const bf16 scale = to_bf16(sign * deviation * 3.4641016f / largest * (1.0f + 0.3f * uniform(i)));
      const bf16 bias = to_bf16(-to_float(scale) * largest * 0.5f * (1.0f + 0.1f * uniform(i + 1)));
      std::memcpy(scales.data() + i * 2, &scale, sizeof scale);
      std::memcpy(biases.data() + i * 2, &bias, sizeof bias);
    }
    add(module + ".scales", DType::kBF16, groups, std::move(scales));
    add(module + ".biases", DType::kBF16, groups, std::move(biases));
  }

  const ToyModel& toy_;
  std::vector<ToyTensor> tensors_;
};

void add_attention(const ToyModel& toy, const std::string& attention, ToyWriter& writer) {
  const int64_t q_size = toy.num_heads * toy.head_dim, kv_size = toy.num_kv_heads * toy.head_dim;
  writer.matrix(attention + "q_proj", q_size, toy.hidden_size, 2.0f);
  writer.matrix(attention + "k_proj", kv_size, toy.hidden_size, 2.0f);
  writer.matrix(attention + "v_proj", kv_size, toy.hidden_size);
  writer.matrix(attention + "o_proj", toy.hidden_size, q_size);
  if (toy.model_type == "qwen2") {
    writer.vector(attention + "q_proj.bias", q_size, 0.0f);
    writer.vector(attention + "k_proj.bias", kv_size, 0.0f);
    writer.vector(attention + "v_proj.bias", kv_size, 0.0f);
  }
  if (toy.model_type == "qwen3" || toy.model_type == "qwen3_moe") {
    writer.vector(attention + "q_norm.weight", toy.head_dim, 1.0f);
    writer.vector(attention + "k_norm.weight", toy.head_dim, 1.0f);
  }
}

void add_mlp(const ToyModel& toy, const std::string& mlp, ToyWriter& writer) {
  const int64_t E = toy.hidden_size, I = toy.intermediate_size;
  if (toy.model_type != "qwen3_moe") {
    writer.matrix(mlp + "gate_proj", I, E);
    writer.matrix(mlp + "up_proj", I, E);
    writer.matrix(mlp + "down_proj", E, I);
    return;
  }
  writer.matrix(mlp + "gate", toy.num_experts, E);
  writer.matrix(mlp + "switch_mlp.gate_proj", I, E, 1.0f, toy.num_experts);
  writer.matrix(mlp + "switch_mlp.up_proj", I, E, 1.0f, toy.num_experts);
  writer.matrix(mlp + "switch_mlp.down_proj", E, I, 1.0f, toy.num_experts);
}

std::vector<ToyTensor> make_tensors(const ToyModel& toy) {
  ToyWriter writer(toy);
  // Unit-sized embeddings and a strong head: logits spread over some units, so that sampling has something to
  // cut.
  writer.matrix("model.embed_tokens", toy.vocab_size, toy.hidden_size, 3.0f);
  for (int64_t i = 0; i < toy.num_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    writer.vector(layer + "input_layernorm.weight", toy.hidden_size, 1.0f);
    add_attention(toy, layer + "self_attn.", writer);
    writer.vector(layer + "post_attention_layernorm.weight", toy.hidden_size, 1.0f);
    add_mlp(toy, layer + "mlp.", writer);
  }
  writer.vector("model.norm.weight", toy.hidden_size, 1.0f);
  if (!toy.is_tied) writer.matrix("lm_head", toy.vocab_size, toy.hidden_size, 3.0f);
  return writer.tensors();
}

Json make_config(const ToyModel& toy) {
  Json config = Json::object();
  config.set("model_type", toy.model_type);
  config.set("hidden_size", toy.hidden_size);
  config.set("intermediate_size", toy.intermediate_size);
  config.set("num_hidden_layers", toy.num_layers);
  config.set("num_attention_heads", toy.num_heads);
  config.set("num_key_value_heads", toy.num_kv_heads);
  config.set("head_dim", toy.head_dim);
  config.set("vocab_size", toy.vocab_size);
  config.set("max_position_embeddings", toy.max_position_embeddings);
  config.set("rms_norm_eps", 1e-5);
  config.set("rope_theta", 10000.0);
  config.set("tie_word_embeddings", toy.is_tied);
  config.set("torch_dtype", "bfloat16");
  config.set("eos_token_id", static_cast<int64_t>(kToyEndToken));
  if (toy.model_type == "qwen3_moe") {
    config.set("num_experts", toy.num_experts);
    config.set("num_experts_per_tok", toy.num_experts_per_tok);
    config.set("moe_intermediate_size", toy.intermediate_size);
    config.set("norm_topk_prob", true);
  }
  if (toy.bits > 0) {
    Json quantization = Json::object();
    quantization.set("group_size", toy.group_size);
    quantization.set("bits", toy.bits);
    config.set("quantization", std::move(quantization));
  }
  return config;
}

/// The character that stands for a byte in byte-level vocabularies: itself where it is printable, else one
/// from U+0100 on (specs/tokenizers.md, "ByteLevel").
std::string byte_character(int byte) {
  const auto is_plain = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; };
  int code = byte;
  if (!is_plain(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += !is_plain(b);
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

Status write_file(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  file << content;
  file.close();
  if (!file) return make_error(StatusCode::kIo, "{}: cannot write", path);
  return {};
}

}  // namespace

std::string toy_tokenizer_json() {
  Json vocab = Json::object(), merges = Json::array();
  for (int byte = 0; byte < 256; ++byte) vocab.set(byte_character(byte), byte);
  const std::string space = byte_character(' ');
  const std::pair<std::string, std::string> pairs[] = {{"t", "h"}, {"th", "e"}, {space, "the"}, {"i", "n"},
                                                       {"a", "n"}, {"an", "d"}, {"o", "n"}};
  for (const auto& [left, right] : pairs) {
    vocab.set(left + right, static_cast<int64_t>(vocab.as_object().size()));
    merges.push_back(left + " " + right);
  }
  Json model = Json::object();
  model.set("type", "BPE");
  model.set("vocab", std::move(vocab));
  model.set("merges", std::move(merges));
  Json byte_level = Json::object();
  byte_level.set("type", "ByteLevel");
  byte_level.set("add_prefix_space", false);
  byte_level.set("trim_offsets", true);
  byte_level.set("use_regex", true);
  Json end = Json::object();
  end.set("id", static_cast<int64_t>(kToyEndToken));
  end.set("content", "<|end|>");
  for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) end.set(flag, false);
  end.set("special", true);
  Json added = Json::array();
  added.push_back(std::move(end));

  Json tokenizer = Json::object();
  tokenizer.set("version", "1.0");
  tokenizer.set("added_tokens", std::move(added));
  tokenizer.set("normalizer", nullptr);
  tokenizer.set("pre_tokenizer", byte_level);
  tokenizer.set("post_processor", nullptr);
  tokenizer.set("decoder", byte_level);
  tokenizer.set("model", std::move(model));
  return dump_json(tokenizer);
}

Status write_toy_model(const ToyModel& toy, const std::string& folder) {
  TF_RETURN_IF_ERROR(write_file(folder + "/config.json", dump_json(make_config(toy), {.indent = 2})));
  TF_RETURN_IF_ERROR(write_file(folder + "/generation_config.json", "{\"eos_token_id\": 263}\n"));
  TF_RETURN_IF_ERROR(write_file(folder + "/tokenizer.json", toy_tokenizer_json()));
  TF_RETURN_IF_ERROR(write_file(folder + "/tokenizer_config.json", "{\"eos_token\": \"<|end|>\"}\n"));

  const std::vector<ToyTensor> tensors = make_tensors(toy);
  std::vector<TensorDeclaration> declarations;
  for (const ToyTensor& tensor : tensors) declarations.push_back(tensor.declaration);
  TF_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::create(folder + "/model.safetensors",
                                                                          declarations, {{"format", "mlx"}}));
  for (const ToyTensor& tensor : tensors) {
    TF_RETURN_IF_ERROR(writer.append(tensor.declaration.name, tensor.bytes));
  }
  return writer.finish();
}

}  // namespace tensorfold
