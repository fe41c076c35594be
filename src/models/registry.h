// The families this program knows, by Hugging Face's `model_type`. A new family is one file and one line
// here.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "formats/hf_config.h"
#include "memory/weight_table.h"
#include "models/model.h"

namespace tensorfold {

struct ModelOptions {
  bool compute_f32 = false;     ///< Nothing is rounded to bf16, as in checkpoints whose dtype is float32.
  bool with_draft_head = true;  ///< Whether to bind the checkpoint's draft head, which takes memory.
  int64_t context_tokens = 0;   ///< Length that dynamic and longrope angles take. 0: max_position_embeddings.
};

/// What a family makes a model of. It declares its weights in `table`, whose status the caller checks.
struct ModelSource {
  const HfConfig& config;
  WeightTable& table;
  ModelOptions options;
};

struct ModelFamily {
  std::string_view model_type;
  Result<std::unique_ptr<Model>> (*make)(const ModelSource& source);
};

/// All of them, in alphabetical order.
std::span<const ModelFamily> model_families();

/// The model that config.json describes, its weights declared in source.table and checked. kUnsupported names
/// an unknown `model_type` and those that are known.
Result<std::unique_ptr<Model>> make_model(const ModelSource& source);

// One per family file.
Result<std::unique_ptr<Model>> make_gemma3(const ModelSource& source);
Result<std::unique_ptr<Model>> make_glm4_moe(const ModelSource& source);
Result<std::unique_ptr<Model>> make_gpt_oss(const ModelSource& source);
Result<std::unique_ptr<Model>> make_llama(const ModelSource& source);
Result<std::unique_ptr<Model>> make_nemotron_h(const ModelSource& source);
Result<std::unique_ptr<Model>> make_qwen2(const ModelSource& source);
Result<std::unique_ptr<Model>> make_qwen3(const ModelSource& source);
Result<std::unique_ptr<Model>> make_qwen3_5(const ModelSource& source);
Result<std::unique_ptr<Model>> make_qwen3_5_moe(const ModelSource& source);
Result<std::unique_ptr<Model>> make_qwen3_moe(const ModelSource& source);
Result<std::unique_ptr<Model>> make_qwen3_next(const ModelSource& source);

}  // namespace tensorfold
