// `tensorfold info MODEL`: what a model is and needs, from its small files and headers; no tensor is read.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/model_flags.h"
#include "engine/families.h"
#include "engine/kv_pages.h"
#include "engine/state_slots.h"
#include "engine/weight_traffic.h"
#include "formats/hf_config.h"
#include "formats/safetensors.h"
#include "memory/weight_table.h"
#include "memory/weights.h"
#include "models/registry.h"

namespace tensorfold {
namespace {

/// What the command shows.
struct ModelInfo {
  ModelPath path;
  HfConfig config;
  GenerationConfig generation;
  ModelSpec spec;                  ///< Empty where the model cannot be run:
  Status why_not_loaded;           ///< then the reason.
  int64_t num_weights = 0;         ///< Of all matrices and vectors.
  DecodeTraffic traffic;           ///< Of one token of one stream.
  int64_t kv_bytes_per_token = 0;  ///< In all attention layers.
  int64_t state_bytes = 0;         ///< Of all recurrent layers, for each stream.
  int64_t num_draft_weights = 0;   ///< Of the draft head; 0: there is none.
  int64_t num_unused_tensors = 0;  ///< That nothing reads: vision.
  int64_t checkpoint_bytes = 0;
  int64_t num_tensors = 0;
  int num_files = 0;
  bool has_tokenizer = false;
  bool has_template = false;
};

/// A template of its own file, or a member of tokenizer_config.json.
bool has_chat_template(const FileSystem& files, const std::string& folder) {
  if (files.is_file(join_path(folder, "chat_template.jinja"))) return true;
  constexpr int64_t kMaxBytes = 64 << 20;
  const Result<std::string> text =
      read_text_file(files, join_path(folder, "tokenizer_config.json"), kMaxBytes);
  if (!text.ok()) return false;
  const Result<Json> json = parse_json(*text);
  return json.ok() && json->find("chat_template") != nullptr;
}

int64_t count_weights(const Manifest& manifest) {
  int64_t count = 0;
  for (const LinearBinding& linear : manifest.linears) count += linear.spec.out * linear.spec.in;
  for (const VectorBinding& vector : manifest.vectors) count += vector.size;
  return count;
}

int64_t count_unused(const Checkpoint& checkpoint, const Manifest& manifest) {
  std::unordered_set<const TensorInfo*> used;
  for (const LinearBinding& linear : manifest.linears) {
    for (const TensorSlice* slice : {&linear.weight, &linear.scales, &linear.biases, &linear.bias})
      used.insert(slice->tensor);
  }
  for (const VectorBinding& vector : manifest.vectors) used.insert(vector.values.tensor);
  used.erase(nullptr);
  return std::ssize(checkpoint.tensors()) - std::ssize(used);
}

/// Binds the model's weights without reading them, and counts.
Status read_model(const Checkpoint& checkpoint, ModelInfo& info) {
  WeightTable table(info.config.model_type, checkpoint, info.config.quantization);
  TF_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                      make_model({info.config, table, {.with_draft_head = false}}));
  TF_ASSIGN_OR_RETURN(const std::unique_ptr<Ops> ops, make_cpu_ops(1));
  const std::unique_ptr<Weights> weights = Weights::without_bytes(table.manifest());
  info.spec = model->spec();
  info.num_weights = count_weights(table.manifest());
  info.traffic = decode_traffic(*model, *weights, *ops);
  info.kv_bytes_per_token = kv_page_set_bytes(*ops, info.spec.kv_layers) / kPageTokens;
  info.state_bytes = state_slot_bytes(info.spec.recurrent_layers);
  // The same with the draft head, which is loaded only to draft.
  WeightTable with_head(info.config.model_type, checkpoint, info.config.quantization);
  TF_RETURN_IF_ERROR(make_model({info.config, with_head, {}}).status());
  info.num_draft_weights = count_weights(with_head.manifest()) - info.num_weights;
  info.num_unused_tensors = count_unused(checkpoint, with_head.manifest());
  return {};
}

std::string_view name_of(MixerKind kind) {
  switch (kind) {
    case MixerKind::kNone:
      return "no mixer";
    case MixerKind::kAttention:
      return "attention";
    case MixerKind::kWindowAttention:
      return "window attention";
    case MixerKind::kGatedDelta:
      return "gated delta";
    case MixerKind::kMamba2:
      return "Mamba-2";
  }
  return "";
}

std::string_view name_of(MlpKind kind) {
  switch (kind) {
    case MlpKind::kNone:
      return "no MLP";
    case MlpKind::kDense:
      return "dense MLP";
    case MlpKind::kExperts:
      return "experts";
  }
  return "";
}

/// "48 gated delta with experts" and so on, in order of appearance.
std::vector<std::pair<std::string, int64_t>> layers_by_kind(const ModelSpec& spec) {
  std::vector<std::pair<std::string, int64_t>> counts;
  for (const LayerKind& kind : spec.layers) {
    std::string name(name_of(kind.mixer));
    if (kind.mixer == MixerKind::kNone) {
      name = name_of(kind.mlp);
    } else if (kind.mlp != MlpKind::kNone) {
      name = fmt::format("{} with {}", name, name_of(kind.mlp));
    }
    const auto found = std::ranges::find(counts, name, &std::pair<std::string, int64_t>::first);
    if (found == counts.end()) {
      counts.emplace_back(name, 1);
    } else {
      ++found->second;
    }
  }
  return counts;
}

/// "27.4 B", "134.5 M".
std::string shown_count(int64_t count) {
  const auto value = static_cast<double>(count);
  if (count >= 1'000'000'000) return fmt::format("{:.1f} B", value / 1e9);
  return fmt::format("{:.1f} M", value / 1e6);
}

Result<ModelInfo> read_model_info(const std::string& model) {
  ModelInfo info;
  TF_ASSIGN_OR_RETURN(info.path, find_model(model));
  const std::string& folder = info.path.folder;
  TF_ASSIGN_OR_RETURN(info.config, read_hf_config(folder));
  TF_ASSIGN_OR_RETURN(info.generation, read_generation_config(folder, info.config));
  TF_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(folder));
  TF_RETURN_IF_ERROR(checkpoint.add_draft_head(folder));
  info.checkpoint_bytes = checkpoint.total_bytes();
  info.num_tensors = static_cast<int64_t>(checkpoint.tensors().size());
  info.num_files = checkpoint.num_files();
  info.why_not_loaded = read_model(checkpoint, info);
  const FileSystem& files = posix_file_system();
  info.has_tokenizer = files.is_file(join_path(folder, "tokenizer.json"));
  info.has_template = has_chat_template(files, folder);
  return info;
}

/// The defaults, then what other modules have, each once.
std::string quantization_text(const QuantizationConfig& quantization) {
  if (!quantization.is_present) return "none";
  std::vector<ModuleQuantization> packings = {quantization.defaults};
  for (const auto& [module, packing] : quantization.modules)
    if (packing && std::ranges::find(packings, *packing) == packings.end()) packings.push_back(*packing);
  std::string text;
  for (const ModuleQuantization& packing : packings) {
    text += fmt::format("{}{} {}-bit, groups of {}", text.empty() ? "" : "; ", quant_mode_name(packing.mode),
                        packing.bits, packing.group_size);
  }
  return text;
}

Json to_json(const ModelInfo& info) {
  Json json = Json::object();
  json.set("name", info.path.name);
  json.set("folder", info.path.folder);
  json.set("model_type", info.config.model_type);
  json.set("supported", is_supported_family(info.config.model_type));
  json.set("dtype", dtype_name(info.config.dtype));
  json.set("quantization", quantization_text(info.config.quantization));
  if (info.why_not_loaded.ok()) {
    json.set("num_layers", info.spec.num_layers);
    Json kinds = Json::object();
    for (const auto& [name, count] : layers_by_kind(info.spec)) kinds.set(name, count);
    json.set("layers_by_kind", std::move(kinds));
    json.set("hidden_size", info.spec.hidden_size);
    json.set("vocab_size", info.spec.vocab_size);
    json.set("max_position_embeddings", info.spec.max_position_embeddings);
    json.set("num_weights", info.num_weights);
    json.set("num_active_weights", info.traffic.num_weights);
    json.set("weight_bytes_per_token", info.traffic.weight_bytes);
    json.set("kv_bytes_per_token", info.kv_bytes_per_token);
    json.set("state_bytes_per_stream", info.state_bytes);
    json.set("num_draft_weights", info.num_draft_weights);
    json.set("num_unused_tensors", info.num_unused_tensors);
  } else {
    json.set("error", info.why_not_loaded.message());
  }
  json.set("checkpoint_bytes", info.checkpoint_bytes);
  json.set("num_tensors", info.num_tensors);
  json.set("num_files", info.num_files);
  json.set("has_tokenizer", info.has_tokenizer);
  json.set("has_chat_template", info.has_template);
  Json ends = Json::array();
  for (const int64_t id : info.generation.eos_token_ids) ends.push_back(id);
  json.set("eos_token_ids", std::move(ends));
  return json;
}

void print_info(const ModelInfo& info) {
  const auto row = [](const char* label, const std::string& value) {
    fmt::print("{:<14}{}\n", label, value);
  };
  row("name", info.path.name);
  row("folder", info.path.folder);
  row("family", fmt::format("{}{}", info.config.model_type,
                            is_supported_family(info.config.model_type)
                                ? ""
                                : fmt::format(" (not supported; supported are {})",
                                              fmt::join(supported_families(), ", "))));
  row("size", fmt::format("{} in {} tensors, {} file{}", shown_bytes(info.checkpoint_bytes), info.num_tensors,
                          info.num_files, info.num_files == 1 ? "" : "s"));
  row("quantization", quantization_text(info.config.quantization));
  if (info.why_not_loaded.ok()) {
    std::vector<std::string> kinds;
    for (const auto& [name, count] : layers_by_kind(info.spec))
      kinds.push_back(fmt::format("{} {}", count, name));
    row("layers", fmt::format("{} ({}), hidden size {}", info.spec.num_layers, fmt::join(kinds, ", "),
                              info.spec.hidden_size));
    row("weights",
        fmt::format("{}, of which a token uses {}: {} to read", shown_count(info.num_weights),
                    shown_count(info.traffic.num_weights), shown_bytes(info.traffic.weight_bytes)));
    if (info.num_draft_weights > 0)
      row("draft head",
          fmt::format("{} weights, which --draft auto and mtp load", shown_count(info.num_draft_weights)));
    if (info.num_unused_tensors > 0)
      row("", fmt::format("{} tensors of the checkpoint are not read (vision)", info.num_unused_tensors));
    row("context",
        fmt::format(
            "{} tokens; keys and values take {} for each 1000{}", info.spec.max_position_embeddings,
            shown_bytes(info.kv_bytes_per_token * 1000),
            info.state_bytes > 0 ? fmt::format(", states {} a stream", shown_bytes(info.state_bytes)) : ""));
    row("vocabulary", fmt::format("{} tokens, replies end at {}", info.spec.vocab_size,
                                  fmt::join(info.generation.eos_token_ids, ", ")));
  } else {
    row("cannot run", info.why_not_loaded.message());
  }
  row("text", fmt::format("{}, {}", info.has_tokenizer ? "tokenizer" : "no tokenizer",
                          info.has_template ? "chat template" : "no chat template"));
}

class InfoCommand : public Command {
 public:
  CommandInfo info() const override {
    return {.name = "info",
            .summary = "Show a model's family, limits and memory, without loading it.",
            .details = "  tensorfold info demo"};
  }
  void add_flags(Flags& flags) override {
    add_model_argument(flags, model_);
    flags.toggle("json", "Print one JSON object.", json_);
  }
  Status run() override {
    TF_ASSIGN_OR_RETURN(const ModelInfo info, read_model_info(model_));
    json_ ? fmt::print("{}\n", dump_json(to_json(info), {.indent = 2})) : print_info(info);
    return {};
  }

 private:
  std::string model_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_info_command() { return std::make_unique<InfoCommand>(); }

}  // namespace tensorfold
