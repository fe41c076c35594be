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
    return make_error(StatusCode::kInternal,
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
Status check_vocabulary(const LoadedModel& loaded) {
  const int64_t vocab_size = loaded.model->spec().vocab_size;
  if (loaded.tokenizer == nullptr || loaded.tokenizer->vocab_size() <= vocab_size) return {};
  return corrupt("tokenizer.json: token id {} is beyond the model's vocabulary (vocab_size {})",
                 loaded.tokenizer->vocab_size() - 1, vocab_size);
}

Status load_weights(const HfConfig& config, const LoadOptions& options, LoadedModel& loaded) {
  TF_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(loaded.folder));
  WeightTable table(config.model_type, checkpoint, config.quantization);
  TF_ASSIGN_OR_RETURN(loaded.model, make_model({config,
                                                table,
                                                {.compute_f32 = options.compute_f32,
                                                 .with_draft_head = false,  // no drafter asks for it yet
                                                 .context_tokens = options.context_tokens}}));
  TF_RETURN_IF_ERROR(check_vocabulary(loaded));
  const ModelSpec& spec = loaded.model->spec();
  TF_RETURN_IF_ERROR(loaded.ops->check_layers(spec.kv_layers, spec.recurrent_layers));
  TF_ASSIGN_OR_RETURN(loaded.weights,
                      Weights::load(checkpoint, table.manifest(), *loaded.ops, loaded.ops->device(),
                                    {.num_threads = options.num_threads, .progress = options.progress}));
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
  TF_RETURN_IF_ERROR(load_weights(config, options, *loaded));
  return loaded;
}

}  // namespace tensorfold
