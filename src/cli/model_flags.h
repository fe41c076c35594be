// The flags that commands with a model share, and loading by them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "cli/flags.h"
#include "engine/engine.h"
#include "hub/model_path.h"

namespace tensorfold {

/// MODEL and how to load it.
struct ModelFlags {
  std::string model;
  std::string device = "auto";
  int64_t gpu_memory_bytes = 0;
  int64_t threads = 0;
  std::string isa = "best";
  bool quiet = false;  ///< No progress.
  bool needs_tokenizer = true;
  bool compute_f32 = false;
  std::string draft = "off";  ///< As EngineFlags: what is loaded to draft.
};

/// How much of the machine an engine may use.
struct EngineFlags {
  int64_t context_tokens = 0;
  int64_t kv_memory_bytes = 0;
  int64_t max_sequences = 64;
  std::string draft = "off";  ///< "auto", "off", "lookup", "mtp", or a MODEL that drafts.
  int64_t draft_max = 8;
  int64_t session_tokens = int64_t{1} << 20;
};

/// Flags that win over the model's generation_config.json.
struct SamplingFlags {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<int64_t> top_k;
  std::optional<int64_t> seed;
};

/// The argument MODEL, which every command with a model has first.
void add_model_argument(Flags& flags, std::string& model);
void add_model_flags(Flags& flags, ModelFlags& model);
void add_engine_flags(Flags& flags, EngineFlags& engine);
/// --draft, whose default is "auto", and --draft-max.
void add_draft_flags(Flags& flags, EngineFlags& engine);
void add_sampling_flags(Flags& flags, SamplingFlags& sampling);

/// The folder of a MODEL argument; `demo` is the demo model in the TensorFold cache.
Result<ModelPath> find_model(const std::string& model);

/// Finds and loads the model, showing progress. LoadedModel::name is what the endpoint calls it.
/// `context_tokens` as LoadOptions::context_tokens.
Result<std::shared_ptr<LoadedModel>> load_model_by_flags(const ModelFlags& flags, int64_t context_tokens);

/// The options of an engine by its flags; `draft` is one of its names.
EngineOptions engine_options(const EngineFlags& flags);

/// The model, and an engine that runs it.
Result<std::unique_ptr<Engine>> load_engine(const ModelFlags& model, const EngineFlags& engine);

/// Flags over generation_config.json over the built-in values (temperature 1, no cuts).
SamplingParams sampling_params(const SamplingFlags& flags, const GenerationConfig& generation);

}  // namespace tensorfold
