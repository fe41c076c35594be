// See toy_drafter.h.
#include "tests/support/toy_drafter.h"

#include <cmath>
#include <fstream>
#include <vector>

#include "base/bf16.h"
#include "base/hash.h"
#include "base/json.h"
#include "formats/safetensors_writer.h"
#include "models/block_drafter.h"

namespace tensorfold {
namespace {

Json int_list(const std::vector<int64_t>& values) {
  Json list = Json::array();
  for (const int64_t value : values) list.push_back(value);
  return list;
}

Json toy_config(const ToyDrafter& toy, const ModelSpec& target) {
  Json draft = Json::object();
  draft.set("block_size", toy.block_size);
  draft.set("mask_token_id", target.vocab_size - 1);
  draft.set("target_layer_ids", int_list(toy.target_layers));
  draft.set("conv_kernel_size", 2);
  draft.set("conv_group_size", 8);
  draft.set("selector_rank", 16);
  draft.set("selector_top_k", 16);

  Json config = Json::object();
  config.set("architectures", Json(Json::Array{toy.architecture}));
  config.set("model_type", "qwen3");
  config.set("hidden_size", target.hidden_size);
  config.set("intermediate_size", toy.intermediate_size);
  config.set("num_hidden_layers", toy.num_layers);
  config.set("num_target_layers", target.num_layers);
  config.set("num_attention_heads", toy.num_heads);
  config.set("num_key_value_heads", toy.num_kv_heads);
  config.set("head_dim", toy.head_dim);
  config.set("vocab_size", target.vocab_size);
  config.set("max_position_embeddings", target.max_position_embeddings);
  config.set("rms_norm_eps", 1e-6);
  config.set("rope_theta", 10000.0);
  config.set("is_causal", false);
  if (toy.window > 0) {
    config.set("use_sliding_window", true);
    config.set("sliding_window", toy.window);
    config.set("max_window_layers", 0);
  }
  config.set("dflash_config", std::move(draft));
  return config;
}

/// Name, shape and spread of a declared weight.
struct ToyTensor {
  TensorDeclaration declaration;
  float mean, deviation;
};

ToyTensor toy_tensor(const DeclaredWeight& weight) {
  const bool is_norm = weight.name.find("norm") != weight.name.npos;
  if (weight.kind == DeclaredWeight::Kind::kLinear)
    return {{weight.name + ".weight", DType::kBF16, {weight.out, weight.in}},
            0.0f,
            1.0f / std::sqrt(static_cast<float>(weight.in))};
  std::vector<int64_t> shape = weight.shape.empty() ? std::vector<int64_t>{weight.out} : weight.shape;
  return {{weight.name, DType::kBF16, std::move(shape)}, is_norm ? 1.0f : 0.5f, 0.2f};
}

std::vector<bf16> toy_values(const ToyTensor& tensor, uint64_t seed) {
  int64_t n = 1;
  for (const int64_t dim : tensor.declaration.shape) n *= dim;
  std::vector<bf16> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t word = mix64(mix64(seed) + static_cast<uint64_t>(i));
    const float uniform = static_cast<float>(static_cast<int64_t>(word >> 40) - (1 << 23)) / (1 << 23);
    values[i] = to_bf16(tensor.mean + tensor.deviation * 1.7320508f * uniform);
  }
  return values;
}

}  // namespace

Status write_toy_drafter(const ToyDrafter& toy, const ModelSpec& target, const std::string& folder) {
  const std::string text = dump_json(toy_config(toy, target), {.indent = 2});
  TF_ASSIGN_OR_RETURN(const HfConfig config, parse_hf_config(text));
  WeightTable table("dflash");
  TF_RETURN_IF_ERROR(make_block_drafter({config, table, target}).status());
  std::ofstream(folder + "/config.json") << text;

  std::vector<ToyTensor> tensors;
  std::vector<TensorDeclaration> declarations;
  for (const DeclaredWeight& weight : table.declared()) {
    tensors.push_back(toy_tensor(weight));
    declarations.push_back(tensors.back().declaration);
  }
  TF_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                      SafetensorsWriter::create(folder + "/model.safetensors", declarations, {}));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<bf16> values = toy_values(tensors[i], toy.seed * 1000 + i);
    TF_RETURN_IF_ERROR(writer.append(declarations[i].name, std::as_bytes(std::span(values))));
  }
  return writer.finish();
}

}  // namespace tensorfold
