// `tensorfold eval MODEL`: how well a model predicts a text, and its logits.
#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "cli/command.h"
#include "cli/model_flags.h"
#include "engine/evaluate.h"
#include "formats/file.h"

namespace tensorfold {
namespace {

constexpr int64_t kMaxTextBytes = int64_t{1} << 30;

/// A file of the command line. A missing one is no missing model, so its code is another.
Result<std::string> read_input(const std::string& path) {
  Result<std::string> text = read_text_file(posix_file_system(), path, kMaxTextBytes);
  if (text.ok() || text.status().code() != StatusCode::kNotFound) return text;
  return make_error(StatusCode::kIo, "{}", text.status().message());
}

class EvalCommand : public Command {
 public:
  CommandInfo info() const override {
    return {.name = "eval",
            .summary = "Measure how well a model predicts a text (perplexity), or save its logits.",
            .details =
                "  tensorfold eval demo --text book.txt\n"
                "  tensorfold eval demo --ids ids.txt --logits logits.safetensors --compute f32"};
  }

  void add_flags(Flags& flags) override {
    add_model_argument(flags, model_.model);
    add_model_flags(flags, model_);
    flags.text("text", "FILE", "Text to predict.", text_path_);
    flags.text("ids", "FILE", "Token ids to predict, as integers between white space; needs no tokenizer.",
               ids_path_);
    flags.integer("window", "Tokens that see each other; 0 is the model's context, at most 2048.",
                  options_.window_tokens, 0, 1 << 30);
    flags.text("logits", "OUT", "Write the logits of every position to this safetensors file.",
               options_.logits_path);
    flags.choice("compute", "f32 rounds nothing to bf16, for comparison with other implementations.",
                 compute_, {"bf16", "f32"});
    flags.toggle("json", "Print one JSON object.", json_);
    flags.toggle("quiet", "No progress.", model_.quiet);
  }

  Status run() override {
    if (text_path_.empty() == ids_path_.empty())
      return invalid_argument("'tensorfold eval' needs one of --text FILE and --ids FILE");
    TF_RETURN_IF_ERROR(check_logits_path());
    TF_ASSIGN_OR_RETURN(const std::string input, read_input(text_path_.empty() ? ids_path_ : text_path_));
    std::vector<int32_t> ids;
    if (text_path_.empty()) {
      TF_ASSIGN_OR_RETURN(ids, parse_token_ids(input));
    }
    model_.needs_tokenizer = !text_path_.empty();
    model_.compute_f32 = compute_ == "f32";
    TF_ASSIGN_OR_RETURN(const std::shared_ptr<LoadedModel> model,
                        load_model_by_flags(model_, options_.window_tokens));
    if (!text_path_.empty()) ids = model->tokenizer->encode(input, true);
    TF_ASSIGN_OR_RETURN(const Evaluation result, evaluate(*model, ids, options_));
    json_ ? print_json(result) : print_result(result);
    return {};
  }

 private:
  /// The finished file is renamed into place, which would replace a device or a pipe.
  Status check_logits_path() const {
    std::error_code ignored;
    const std::filesystem::file_status there = std::filesystem::status(options_.logits_path, ignored);
    if (options_.logits_path.empty() || !std::filesystem::exists(there) ||
        std::filesystem::is_regular_file(there))
      return {};
    return invalid_argument("--logits {}: is there and is not a regular file", options_.logits_path);
  }

  void print_result(const Evaluation& result) const {
    fmt::print("{} tokens, {} predicted\nmean negative log-likelihood {:.6f}\nperplexity {:.4f}\n",
               result.num_tokens, result.num_scored, result.mean_nll, result.perplexity);
    if (!options_.logits_path.empty()) fmt::print("logits in {}\n", options_.logits_path);
  }

  static void print_json(const Evaluation& result) {
    Json json = Json::object();
    json.set("num_tokens", result.num_tokens);
    json.set("num_scored", result.num_scored);
    json.set("mean_nll", result.mean_nll);
    json.set("perplexity", result.perplexity);
    fmt::print("{}\n", dump_json(json));
  }

  ModelFlags model_;
  EvaluateOptions options_;
  std::string text_path_;
  std::string ids_path_;
  std::string compute_ = "bf16";
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_eval_command() { return std::make_unique<EvalCommand>(); }

}  // namespace tensorfold
