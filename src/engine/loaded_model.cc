// See loaded_model.h.
#include "engine/loaded_model.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>

#include "device/cuda_device.h"
#include "engine/self_check.h"
#include "formats/file.h"
#include "formats/safetensors.h"
#include "memory/weight_table.h"
#include "models/registry.h"

namespace tensorfold {
namespace {

/// The last component of a path, whatever slashes, dots and links it is written with.
std::string folder_name(const std::string& folder) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::weakly_canonical(folder, error);
  const std::string name = (error ? std::filesystem::path(folder) : path).filename().string();
  return name.empty() ? folder : name;
}

/// The number of a "cuda" or "cuda:N"; nothing for "cpu" (or for "auto" without a device).
Result<std::optional<int>> cuda_device_of(std::string_view name) {
  if (name == "cpu" || (name == "auto" && num_cuda_devices() == 0)) return std::optional<int>();
  if (name == "auto" || name == "cuda") return std::optional<int>(0);
  int ordinal = -1;
  if (name.starts_with("cuda:")) {
    const std::string_view digits = name.substr(5);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), ordinal);
    if (error != std::errc() || end != digits.data() + digits.size()) ordinal = -1;
  }
  if (ordinal < 0) return invalid_argument("device '{}': expected auto, cpu, cuda or cuda:N", name);
  return std::optional<int>(ordinal);
}

Result<std::unique_ptr<Ops>> make_ops(const LoadOptions& options) {
  if (options.use_reference_ops) return make_reference_ops();
  TF_ASSIGN_OR_RETURN(const std::optional<int> device, cuda_device_of(options.device));
  if (!device) return make_cpu_ops(options.num_threads, options.isa);
  if (options.compute_f32) return unsupported("computing in f32 is there on the CPU only: --device cpu");
  CudaOptions cuda = options.cuda;
  cuda.device = *device;
  TF_ASSIGN_OR_RETURN(std::unique_ptr<Ops> ops, make_cuda_ops(cuda));
  TF_ASSIGN_OR_RETURN(const RowCheck check, check_rows(*ops));
  if (check.num_different > 0) {
    return make_error(
        StatusCode::kInternal,
        "{}: results depend on the number of rows of a pass ({}), so replies would not be exact; use "
        "--device cpu",
        ops->device().name(), check.differing);
  }
  return ops;
}

/// Tokenizer and templates, where the folder has them.
Status load_text(const LoadOptions& options, LoadedModel& loaded) {
  const bool has_tokenizer = posix_file_system().is_file(join_path(loaded.folder, "tokenizer.json"));
  if (!has_tokenizer && !options.need_tokenizer) return {};
  TF_ASSIGN_OR_RETURN(loaded.tokenizer, Tokenizer::load(loaded.folder));
  Result<ModelChat> chat = load_model_chat(loaded.folder);
  if (chat.ok()) {
    loaded.chat = std::make_shared<const ModelChat>(*std::move(chat));
  } else if (chat.status().code() != StatusCode::kNotFound) {
    return chat.status();
  }
  return {};
}

/// A tokenizer may know fewer ids than the embedding has rows (padding), never more.
Status check_vocabulary(const Tokenizer* tokenizer, const ModelSpec& spec) {
  if (tokenizer == nullptr || tokenizer->vocab_size() <= spec.vocab_size) return {};
  return corrupt("tokenizer.json: token id {} is beyond the model's vocabulary (vocab_size {})",
                 tokenizer->vocab_size() - 1, spec.vocab_size);
}

/// Architecture and weights of a folder, on ops that are made.
struct FamilyModel {
  std::unique_ptr<Model> model;
  std::unique_ptr<Weights> weights;
};
Result<FamilyModel> load_family_model(const std::string& folder, const HfConfig& config,
                                      const Tokenizer* tokenizer, Ops& ops, const LoadOptions& options) {
  FamilyModel loaded;
  TF_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(folder));
  if (options.with_draft_head) TF_RETURN_IF_ERROR(checkpoint.add_draft_head(folder));
  WeightTable table(config.model_type, checkpoint, config.quantization);
  TF_ASSIGN_OR_RETURN(loaded.model, make_model({config,
                                                table,
                                                {.compute_f32 = options.compute_f32,
                                                 .with_draft_head = options.with_draft_head,
                                                 .context_tokens = options.context_tokens}}));
  const ModelSpec& spec = loaded.model->spec();
  TF_RETURN_IF_ERROR(check_vocabulary(tokenizer, spec));
  TF_RETURN_IF_ERROR(ops.check_layers(spec.kv_layers, spec.recurrent_layers));
  if (const DraftHead* head = loaded.model->draft_head())
    TF_RETURN_IF_ERROR(ops.check_layers(head->kv_layers(), {}));
  TF_ASSIGN_OR_RETURN(loaded.weights,
                      Weights::load(checkpoint, table.manifest(), ops, ops.device(),
                                    {.num_threads = options.num_threads, .progress = options.progress}));
  return loaded;
}

/// A guess must mean the same text to both models.
Status check_same_tokens(const LoadedModel& target, const Tokenizer& small) {
  const Tokenizer& tokenizer = *target.tokenizer;
  if (small.vocab_size() != tokenizer.vocab_size()) {
    return invalid_argument(
        "its tokenizer has {} tokens, that of {} has {}: a draft model needs the same tokenizer",
        small.vocab_size(), target.name, tokenizer.vocab_size());
  }
  for (int32_t id = 0; id < small.vocab_size(); ++id) {
    if (small.id_to_token(id) == tokenizer.id_to_token(id)) continue;
    return invalid_argument(
        "its token {} is '{}', that of {} is '{}': a draft model needs the same tokenizer", id,
        small.id_to_token(id), target.name, tokenizer.id_to_token(id));
  }
  return {};
}

Status load_block_drafter(const HfConfig& config, const LoadOptions& options, LoadedModel& loaded) {
  if (loaded.model->token_ends() == nullptr)
    return unsupported("{} is a {}, for which no drafter of blocks is there", loaded.name,
                       loaded.model->spec().model_type);
  TF_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(options.draft_folder));
  WeightTable table(config.model_type, checkpoint, config.quantization);
  auto small = std::make_unique<LoadedDraftModel>();
  small->name = folder_name(options.draft_folder);
  TF_ASSIGN_OR_RETURN(small->block_drafter, make_block_drafter({.config = config,
                                                                .table = table,
                                                                .target = loaded.model->spec(),
                                                                .context_tokens = options.context_tokens}));
  TF_RETURN_IF_ERROR(loaded.ops->check_layers(small->block_drafter->spec().kv_layers, {}));
  TF_ASSIGN_OR_RETURN(small->weights,
                      Weights::load(checkpoint, table.manifest(), *loaded.ops, loaded.ops->device(),
                                    {.num_threads = options.num_threads, .progress = options.progress}));
  loaded.draft_model = std::move(small);
  return {};
}

/// The model that drafts for `loaded`. The whole message but for the folder.
Status load_draft_model(const LoadOptions& options, LoadedModel& loaded) {
  const std::string& folder = options.draft_folder;
  TF_ASSIGN_OR_RETURN(const HfConfig config, read_hf_config(folder));
  if (is_block_drafter(config)) return load_block_drafter(config, options, loaded);
  std::shared_ptr<const Tokenizer> tokenizer;
  if (loaded.tokenizer != nullptr) {
    TF_ASSIGN_OR_RETURN(tokenizer, Tokenizer::load(folder));
    TF_RETURN_IF_ERROR(check_same_tokens(loaded, *tokenizer));
  }
  LoadOptions small_options = options;
  small_options.with_draft_head = false;
  small_options.context_tokens = 0;
  TF_ASSIGN_OR_RETURN(FamilyModel small,
                      load_family_model(folder, config, tokenizer.get(), *loaded.ops, small_options));
  const int64_t vocab_size = small.model->spec().vocab_size;
  if (vocab_size < num_drawable_tokens(loaded)) {
    return invalid_argument(
        "its vocabulary has {} tokens, that of {} has {}: a draft model needs the same tokenizer", vocab_size,
        loaded.name, num_drawable_tokens(loaded));
  }
  auto draft_model = std::make_unique<LoadedDraftModel>();
  draft_model->name = folder_name(folder);
  draft_model->model = std::move(small.model);
  draft_model->weights = std::move(small.weights);
  loaded.draft_model = std::move(draft_model);
  return {};
}

}  // namespace

int64_t num_drawable_tokens(const LoadedModel& model) {
  const int64_t vocab_size = model.model->spec().vocab_size;
  return model.tokenizer == nullptr ? vocab_size
                                    : std::min<int64_t>(vocab_size, model.tokenizer->vocab_size());
}

Result<std::shared_ptr<LoadedModel>> load_model(const std::string& folder, const LoadOptions& options) {
  if (!posix_file_system().is_folder(folder)) return not_found("{}: no such folder", folder);
  auto loaded = std::make_shared<LoadedModel>();
  loaded->folder = folder;
  loaded->name = folder_name(folder);
  TF_ASSIGN_OR_RETURN(const HfConfig config, read_hf_config(folder));
  TF_ASSIGN_OR_RETURN(loaded->generation, read_generation_config(folder, config));
  TF_RETURN_IF_ERROR(load_text(options, *loaded));
  TF_ASSIGN_OR_RETURN(loaded->ops, make_ops(options));
  TF_ASSIGN_OR_RETURN(FamilyModel family,
                      load_family_model(folder, config, loaded->tokenizer.get(), *loaded->ops, options));
  loaded->model = std::move(family.model);
  loaded->weights = std::move(family.weights);
  if (!options.draft_folder.empty()) {
    if (!posix_file_system().is_folder(options.draft_folder))
      return not_found("{}: no such folder (the draft model)", options.draft_folder);
    TF_RETURN_IF_ERROR(
        load_draft_model(options, *loaded).with_context(fmt::format("draft model {}", options.draft_folder)));
  }
  return loaded;
}

}  // namespace tensorfold
