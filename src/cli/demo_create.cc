// `tensorfold demo create OUT`: a toy checkpoint.
#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "cli/command.h"
#include "cli/progress.h"
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
    flags.choice("family", "Architecture.", options_.family,
                 std::vector<std::string>(toy_families().begin(), toy_families().end()));
    flags.text("like", "NAME",
               "A published model whose shapes to take; of the other sizes only --layers counts then.",
               options_.like);
    flags.count("params", "About this many weights in all: chooses hidden, layers and head-dim.",
                num_params_);
    flags.integer("layers", "num_hidden_layers; 0 is 4, or all of --like.", options_.num_layers, 0, 4096);
    flags.integer("hidden", "hidden_size.", options_.hidden_size, 64, 1 << 20);
    flags.integer(
        "intermediate",
        "intermediate_size; of an expert where there are some. 0 is 3 times hidden (an expert: half).",
        options_.intermediate_size, 0, 1 << 22);
    flags.integer("heads", "num_attention_heads; 0 is hidden / head-dim.", options_.num_heads, 0, 4096);
    flags.integer("kv-heads", "num_key_value_heads; 0 is a quarter of heads.", options_.num_kv_heads, 0,
                  4096);
    flags.integer("head-dim", "head_dim.", options_.head_dim, 2, 1024);
    flags.integer("vocab", "vocab_size.", options_.vocab_size, kMinToyVocab, 1 << 22);
    flags.integer("experts", "num_experts, of families that have them.", options_.num_experts, 1, 65536);
    flags.integer("experts-per-token", "num_experts_per_tok.", options_.num_experts_per_tok, 1, 65536);
    flags.integer("context", "max_position_embeddings.", options_.max_position_embeddings, 1, 1 << 30);
    flags.toggle("tie", "The embedding serves as lm_head too (tie_word_embeddings).",
                 options_.tie_word_embeddings);
    flags.choice("quant", "bf16, or MLX affine 4-bit in groups of 64.", quant_, {"bf16", "4bit"});
    flags.integer("seed", "Of the random weights.", seed_, 0, INT64_MAX);
    flags.toggle("quiet", "No progress.", quiet_);
  }

  Status run() override {
    options_.is_quantized = quant_ == "4bit";
    options_.seed = static_cast<uint64_t>(seed_);
    if (num_params_ > 0 && !options_.like.empty())
      return invalid_argument("--params {} does not go with --like {}, which has its own sizes", num_params_,
                              options_.like);
    if (num_params_ > 0) options_ = toy_options_of_size(options_, num_params_);
    if (options_.like.empty()) {
      TF_ASSIGN_OR_RETURN(options_, complete_toy_options(options_));
    }
    TF_ASSIGN_OR_RETURN(const ToyModel model, make_toy_model(options_));
    const auto start = std::chrono::steady_clock::now();
    int64_t bytes = 0;
    const LoadProgress bar = quiet_ ? LoadProgress() : show_progress(folder_, "writing");
    TF_RETURN_IF_ERROR(write_toy_checkpoint(folder_, model, options_.seed, [&](int64_t done, int64_t total) {
      bytes = total;
      if (bar) bar(done, total);
    }));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const auto config_int = [&](const char* key) { return model.config.find(key)->as_int(); };
    fmt::print("{}: {}, {} layers, hidden {}, {:.4g} M weights, {} in {:.1f} s\n", folder_,
               model.config.find("model_type")->as_string(), config_int("num_hidden_layers"),
               config_int("hidden_size"), static_cast<double>(model.num_params) / 1e6, shown_bytes(bytes),
               seconds);
    return {};
  }

 private:
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
