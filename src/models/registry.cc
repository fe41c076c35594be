// See registry.h.
#include "models/registry.h"

namespace tensorfold {
namespace {

constexpr ModelFamily kFamilies[] = {
    {"gemma3", make_gemma3},
    {"gemma3_text", make_gemma3},
    {"glm4_moe", make_glm4_moe},
    {"gpt_oss", make_gpt_oss},
    {"llama", make_llama},
    {"nemotron_h", make_nemotron_h},
    {"qwen2", make_qwen2},
    {"qwen3", make_qwen3},
    {"qwen3_5", make_qwen3_5},
    {"qwen3_5_moe", make_qwen3_5_moe},
    {"qwen3_5_moe_text", make_qwen3_5_moe},
    {"qwen3_5_text", make_qwen3_5},
    {"qwen3_moe", make_qwen3_moe},
    {"qwen3_next", make_qwen3_next},
};

}  // namespace

std::span<const ModelFamily> model_families() { return kFamilies; }

Result<std::unique_ptr<Model>> make_model(const ModelSource& source) {
  std::string known;
  for (const ModelFamily& family : kFamilies) {
    if (family.model_type == source.config.model_type) {
      TF_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, family.make(source));
      TF_RETURN_IF_ERROR(source.table.status());
      return model;
    }
    known += (known.empty() ? "" : ", ") + std::string(family.model_type);
  }
  return unsupported("config.json: model_type: expected one of {}, found \"{}\"", known,
                     source.config.model_type);
}

}  // namespace tensorfold
