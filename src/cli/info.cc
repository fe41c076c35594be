// `tensorfold info MODEL`: what a model is and needs, from its small files and headers; no tensor is read.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "cli/command.h"
#include "cli/model_flags.h"
#include "engine/families.h"
#include "formats/hf_config.h"
#include "formats/safetensors.h"

namespace tensorfold {
namespace {

/// What the command shows.
struct ModelInfo {
  ModelPath path;
  HfConfig config;
  GenerationConfig generation;
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t vocab_size = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t num_experts = 0;
  int64_t max_position_embeddings = 0;
  int64_t checkpoint_bytes = 0;
  int64_t num_tensors = 0;
  int num_files = 0;
  bool has_tokenizer = false;
  bool has_template = false;

  /// Of one token in all layers, keys and values in bf16.
  int64_t kv_bytes_per_token() const { return num_layers * num_kv_heads * head_dim * 2 * 2; }
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

Status read_sizes(ModelInfo& info) {
  ConfigReader reader = info.config.reader();
  info.num_layers = reader.positive_int("num_hidden_layers");
  info.hidden_size = reader.positive_int("hidden_size");
  info.vocab_size = reader.positive_int("vocab_size");
  info.num_heads = reader.positive_int("num_attention_heads", 1);
  info.num_kv_heads = reader.positive_int("num_key_value_heads", info.num_heads);
  info.head_dim = reader.positive_int("head_dim", std::max<int64_t>(1, info.hidden_size / info.num_heads));
  info.num_experts = reader.non_negative_int("num_experts", reader.non_negative_int("num_local_experts", 0));
  info.max_position_embeddings = reader.non_negative_int("max_position_embeddings", 0);
  return reader.status();
}

Result<ModelInfo> read_model_info(const std::string& model) {
  ModelInfo info;
  TF_ASSIGN_OR_RETURN(info.path, find_model(model));
  const std::string& folder = info.path.folder;
  TF_ASSIGN_OR_RETURN(info.config, read_hf_config(folder));
  TF_ASSIGN_OR_RETURN(info.generation, read_generation_config(folder, info.config));
  TF_RETURN_IF_ERROR(read_sizes(info));
  TF_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(folder));
  info.checkpoint_bytes = checkpoint.total_bytes();
  info.num_tensors = static_cast<int64_t>(checkpoint.tensors().size());
  info.num_files = checkpoint.num_files();
  const FileSystem& files = posix_file_system();
  info.has_tokenizer = files.is_file(join_path(folder, "tokenizer.json"));
  info.has_template = has_chat_template(files, folder);
  return info;
}

std::string quantization_text(const QuantizationConfig& quantization) {
  if (!quantization.is_present) return "none";
  return fmt::format("{} {}-bit, groups of {}", quant_mode_name(quantization.defaults.mode),
                     quantization.defaults.bits, quantization.defaults.group_size);
}

Json to_json(const ModelInfo& info) {
  Json json = Json::object();
  json.set("name", info.path.name);
  json.set("folder", info.path.folder);
  json.set("model_type", info.config.model_type);
  json.set("supported", is_supported_family(info.config.model_type));
  json.set("dtype", dtype_name(info.config.dtype));
  json.set("quantization", quantization_text(info.config.quantization));
  json.set("num_layers", info.num_layers);
  json.set("hidden_size", info.hidden_size);
  json.set("vocab_size", info.vocab_size);
  json.set("num_heads", info.num_heads);
  json.set("num_kv_heads", info.num_kv_heads);
  json.set("head_dim", info.head_dim);
  json.set("num_experts", info.num_experts);
  json.set("max_position_embeddings", info.max_position_embeddings);
  json.set("checkpoint_bytes", info.checkpoint_bytes);
  json.set("num_tensors", info.num_tensors);
  json.set("num_files", info.num_files);
  json.set("kv_bytes_per_token", info.kv_bytes_per_token());
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
  row("layers", fmt::format("{}, hidden size {}, {} heads and {} key-value heads of {}{}", info.num_layers,
                            info.hidden_size, info.num_heads, info.num_kv_heads, info.head_dim,
                            info.num_experts > 0 ? fmt::format(", {} experts", info.num_experts) : ""));
  row("vocabulary", fmt::format("{} tokens, replies end at {}", info.vocab_size,
                                fmt::join(info.generation.eos_token_ids, ", ")));
  row("context", fmt::format("{} tokens; keys and values take {} for each 1000", info.max_position_embeddings,
                             shown_bytes(info.kv_bytes_per_token() * 1000)));
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
