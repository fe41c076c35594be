// `tensorfold demo create OUT`: a toy checkpoint.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <utility>

#include "cli/command.h"
#include "cli/progress.h"
#include "cli/terminal.h"
#include "cli/toy_checkpoint.h"

namespace tensorfold {
namespace {

class DemoCreateCommand : public Command {
 public:
  CommandInfo info() const override {
    return {
        .name = "demo create",
        .summary = "Write a toy checkpoint with random weights, of any family and size.",
        .details =
            "  tensorfold demo create /tmp/toy\n"
            "  tensorfold demo create /tmp/big --family qwen3 --params 8B --quant 4bit\n"
            "  tensorfold demo create /tmp/cut --like Qwen3.6-35B-A3B --layers 8 --quant 4bit\n\n"
            "The folder is complete (config, tokenizer, chat template, weights); what such a model says is\n"
            "nonsense."};
  }

  void add_flags(Flags& flags) override {
    flags.argument("OUT", "Folder to write; must not exist yet.", folder_);
    flags.text("family", "NAME",
               fmt::format("Architecture: {}. Default llama.", fmt::join(toy_families(), ", ")),
               options_.family);
    flags.text("like", "NAME",
               "A published model whose shapes to take; sizes that are given here go before its own.",
               options_.like);
    flags.count("params", "About this many weights in all: chooses hidden, layers and head-dim.",
                num_params_);
    const auto size = [&flags](const char* name, const char* help, int64_t& target, const char* standard,
                               int64_t most = 1 << 30) {
      flags.integer(name, help, target, 0, most, fmt::format("{}, or that of --like", standard));
    };
    size("layers", "num_hidden_layers; of --like the first ones.", options_.num_layers, "4", 4096);
    size("hidden", "hidden_size.", options_.hidden_size, "256");
    size("intermediate", "intermediate_size, of an expert where there are some.", options_.intermediate_size,
         "3 times hidden (an expert: half)");
    size("heads", "num_attention_heads.", options_.num_heads, "hidden / head-dim");
    size("kv-heads", "num_key_value_heads.", options_.num_kv_heads, "a quarter of heads");
    size("head-dim", "head_dim.", options_.head_dim, "64");
    size("vocab", "vocab_size.", options_.vocab_size, "512");
    size("experts", "num_experts, of families that have them.", options_.num_experts, "8");
    size("experts-per-token", "num_experts_per_tok.", options_.num_experts_per_tok, "2");
    size("context", "max_position_embeddings.", options_.max_position_embeddings, "4096");
    flags.toggle("tie", "The embedding serves as lm_head too (tie_word_embeddings).",
                 options_.tie_word_embeddings);
    flags.choice("quant", "bf16, or MLX affine 4-bit in groups of 64.", quant_, {"bf16", "4bit"});
    flags.integer("seed", "Of the random weights.", seed_, 0, INT64_MAX);
    flags.toggle("quiet", "No progress.", quiet_);
  }

  Status run() override {
    options_.is_quantized = quant_ == "4bit";
    options_.seed = static_cast<uint64_t>(seed_);
    if (num_params_ > 0) {
      TF_RETURN_IF_ERROR(check_params());
      options_ = toy_options_of_size(options_, num_params_);
    }
    TF_ASSIGN_OR_RETURN(options_, complete_toy_options(options_));
    TF_ASSIGN_OR_RETURN(const ToyModel model, make_toy_model(options_));
    const auto start = std::chrono::steady_clock::now();
    TF_ASSIGN_OR_RETURN(const int64_t bytes, write(model));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const auto config_int = [&](const char* key) { return model.config.find(key)->as_int(); };
    fmt::print("{}: {}, {} layers, hidden {}, {:.4g} M weights, {} in {:.1f} s\n", folder_,
               model.config.find("model_type")->as_string(), config_int("num_hidden_layers"),
               config_int("hidden_size"), static_cast<double>(model.num_params) / 1e6, shown_bytes(bytes),
               seconds);
    return {};
  }

 private:
  /// --params chooses sizes: they cannot be given too.
  Status check_params() const {
    const auto refuse = [&](std::string_view flag, const auto& value) {
      return invalid_argument("--params {} does not go with --{} {}; one of them sets the size", num_params_,
                              flag, value);
    };
    if (!options_.like.empty()) return refuse("like", options_.like);
    for (const auto& [flag, value] : {std::pair("layers", options_.num_layers),
                                      {"hidden", options_.hidden_size},
                                      {"head-dim", options_.head_dim}})
      if (value != 0) return refuse(flag, value);
    return {};
  }

  /// The bytes of the weights. A signal stops it, and leaves nothing.
  Result<int64_t> write(const ToyModel& model) const {
    const LoadProgress bar = quiet_ ? LoadProgress() : show_progress(folder_, "writing");
    const StopGuard stop;
    int64_t bytes = 0;
    const Status status =
        write_toy_checkpoint(folder_, model, options_.seed, [&](int64_t done, int64_t total) {
          bytes = total;
          if (bar) bar(done, total);
          return stop.status();
        });
    if (!status.ok()) return status.with_context(folder_ + " was not written");
    return bytes;
  }

  std::string folder_;
  ToyOptions options_;
  std::string quant_ = "bf16";
  int64_t num_params_ = 0;
  int64_t seed_ = 0;
  bool quiet_ = false;
};

}  // namespace

std::unique_ptr<Command> make_demo_create_command() { return std::make_unique<DemoCreateCommand>(); }

}  // namespace tensorfold
