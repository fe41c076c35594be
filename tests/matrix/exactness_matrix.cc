// The exactness matrix (testing.md): every variation that must not change a byte, for every model, in one
// table.
//
//   exactness_matrix                     the fixtures of tests/golden/models and some toys, as in CTest
//   exactness_matrix --model FOLDER ...  checkpoints of any size, by hand
//     --tokens N         longest reply (72)
//     --slow             also what is slow on a large model (the reference ops)
//     --only TEXT        variations whose name contains TEXT
//     --part K/N         every N-th model, from the K-th on
//     --fixtures FOLDER  instead of tests/golden/models where the program was built
//     --device NAME      cpu (default), cuda or cuda:N; models that the device does not take are left out
//
// Exit code 0: no byte differs; 1: one does, or a variation could not be run that should; 2: usage.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "tests/matrix/variations.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_paths.h"
#include "tests/support/toy_drafter.h"
#include "tests/support/toy_model.h"

namespace tensorfold {
namespace {

namespace fs = std::filesystem;

struct Arguments {
  std::vector<std::string> folders;
  int64_t max_tokens = 72;  // with 62 prompt tokens: three pages
  bool slow = false;
  std::string only;
  std::string device = "cpu";
  std::string fixtures = std::string(kSourceDir) + "/tests/golden/models";
  size_t part = 1, num_parts = 1;
};

/// A column of the table.
struct MatrixModel {
  std::string name;
  std::string folder;
};

enum class Outcome { kSame, kDifferent, kFailed, kNotRun };

std::string_view outcome_word(Outcome outcome) {
  switch (outcome) {
    case Outcome::kSame:
      return "ok";
    case Outcome::kDifferent:
      return "DIFF";
    case Outcome::kFailed:
      return "FAIL";
    case Outcome::kNotRun:
      return "-";
  }
  return "?";
}

Result<Arguments> parse_arguments(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--slow") {
      arguments.slow = true;
      continue;
    }
    if (i + 1 == argc) return invalid_argument("{}: unknown flag, or its value is missing", flag);
    const std::string value = argv[++i];
    if (flag == "--model") {
      arguments.folders.push_back(value);
    } else if (flag == "--only") {
      arguments.only = value;
    } else if (flag == "--device") {
      arguments.device = value;
    } else if (flag == "--fixtures") {
      if (!fs::is_directory(value)) return invalid_argument("--fixtures {}: no such folder", value);
      arguments.fixtures = value;
    } else if (flag == "--part") {
      if (std::sscanf(value.c_str(), "%zu/%zu", &arguments.part, &arguments.num_parts) != 2 ||
          arguments.part < 1 || arguments.part > arguments.num_parts)
        return invalid_argument("--part {}: expected K/N with 1 <= K <= N", value);
    } else if (flag == "--tokens") {
      arguments.max_tokens = std::atoll(value.c_str());
      if (arguments.max_tokens < 4) return invalid_argument("--tokens {}: expected 4 or more", value);
    } else {
      return invalid_argument("{}: unknown flag", flag);
    }
  }
  return arguments;
}

/// Folders with a config.json below `root`, sorted by path.
std::vector<MatrixModel> find_fixtures(const std::string& root) {
  std::vector<MatrixModel> models;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    if (!fs::exists(entry.path() / "config.json")) continue;
    models.push_back({fs::relative(entry.path(), root).string(), entry.path().string()});
  }
  std::sort(models.begin(), models.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return models;
}

/// What the fixtures lack: text (a tokenizer), and weights in MLX's formats.
std::vector<std::pair<std::string, ToyModel>> toy_models() {
  ToyModel llama{.model_type = "llama", .bits = 4, .is_tied = true, .seed = 1};
  ToyModel qwen2{.model_type = "qwen2", .bits = 8, .group_size = 32, .seed = 2};
  ToyModel qwen3{.model_type = "qwen3", .num_layers = 3, .head_dim = 64, .seed = 3};
  ToyModel moe{.model_type = "qwen3_moe", .bits = 4, .seed = 4};
  return {{"toy/llama_mlx4", llama},
          {"toy/qwen2_mlx8", qwen2},
          {"toy/qwen3_bf16", qwen3},
          {"toy/qwen3_moe_mlx4", moe}};
}

Result<std::vector<MatrixModel>> write_toy_models(const std::string& folder) {
  std::vector<MatrixModel> models;
  for (const auto& [name, toy] : toy_models()) {
    const std::string path = folder + "/" + fs::path(name).filename().string();
    fs::create_directory(path);
    TF_RETURN_IF_ERROR(write_toy_model(toy, path));
    models.push_back({name, path});
  }
  return models;
}

/// What the backend that was made is not of what was asked for; empty if it is all of it. A row counts only
/// if it ran on what its name says.
std::string backend_difference(const LoadOptions& wish, const BackendInfo& info) {
  const std::string_view device = std::string_view(wish.device).substr(0, wish.device.find(':'));
  const std::string_view name = wish.use_reference_ops ? "reference" : device;
  if (info.name != name) return fmt::format("ran on backend {}", info.name);
  if (name == "cuda") return {};
  if (!wish.use_reference_ops && info.num_threads != wish.num_threads) {
    return fmt::format("ran on {} threads", info.num_threads);
  }
  if (wish.isa != CpuIsa::kBest && info.isa != cpu_isa_name(wish.isa))
    return fmt::format("ran on {}", info.isa);
  return {};
}

/// Empty where the variation is run.
std::string why_not_run(const Variation& variation, const Arguments& arguments) {
  if (!variation.not_run.empty()) return variation.not_run;
  const bool is_large = !arguments.folders.empty();
  return variation.is_slow && is_large && !arguments.slow ? "slow, needs --slow" : "";
}

/// One column: loads the model as each variation asks (once for equal wishes) and compares with the baseline.
class Column {
 public:
  Column(MatrixModel model, const Arguments& arguments) : model_(std::move(model)), arguments_(arguments) {}

  /// Records the baseline. Replies that are all one token prove little, so they are refused.
  Status start() {
    Variation alone = baseline();
    alone.load.device = arguments_.device;
    TF_ASSIGN_OR_RETURN(const std::shared_ptr<LoadedModel> loaded, load(alone));
    const ModelSpec& spec = loaded->model->spec();
    workload_ = make_workload(spec, arguments_.max_tokens);
    std::vector<int64_t> read_layers = {0};
    if (spec.num_layers > 1) read_layers.push_back(spec.num_layers - 1);
    TF_RETURN_IF_ERROR(write_toy_drafter({.target_layers = read_layers}, spec, drafter_folder_.path()));
    TF_ASSIGN_OR_RETURN(expected_, run_variation(alone, loaded, workload_, {}));
    for (const Recording& recording : expected_) {
      if (!recording.error.empty()) return make_error(StatusCode::kInternal, "{}", recording.error);
    }
    const std::vector<int32_t>& sampled = expected_[2].tokens;
    if (std::count(sampled.begin(), sampled.end(), sampled[0]) == std::ssize(sampled)) {
      return make_error(StatusCode::kInternal, "degenerate: a sampled reply is one token over and over");
    }
    return {};
  }

  Outcome run(const Variation& variation) {
    if (!why_not_run(variation, arguments_).empty()) return Outcome::kNotRun;
    const Result<std::shared_ptr<LoadedModel>> loaded = load(variation);
    if (!loaded.ok()) return note(Outcome::kFailed, variation.name, loaded.status().message());
    if (const std::string other = backend_difference(variation.load, (*loaded)->ops->info());
        !other.empty()) {
      return note(Outcome::kFailed, variation.name, other);
    }
    if (variation.guesser == Guesser::kNobody) return compare(variation, variation.name, *loaded);
    if (variation.guesser == Guesser::kHead && (*loaded)->model->draft_head() == nullptr)
      return Outcome::kNotRun;
    Outcome outcome = Outcome::kSame;
    for (const int64_t width : variation.widths) {
      Variation of_width = variation;
      of_width.engine.draft_max = width;
      outcome = compare(of_width, fmt::format("{}, {} guesses", variation.name, width), *loaded);
      if (outcome != Outcome::kSame) break;
    }
    return outcome;
  }

  const std::string& name() const { return model_.name; }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  Outcome compare(const Variation& variation, const std::string& name,
                  const std::shared_ptr<LoadedModel>& loaded) {
    const auto found = run_variation(variation, loaded, workload_, expected_);
    if (!found.ok()) return note(Outcome::kFailed, name, found.status().message());
    for (size_t i = 0; i < expected_.size(); ++i) {
      if (const auto difference = first_difference(expected_[i], (*found)[i])) {
        return note(Outcome::kDifferent, name, fmt::format("request {}: {}", i, *difference));
      }
    }
    return Outcome::kSame;
  }

  Result<std::shared_ptr<LoadedModel>> load(const Variation& variation) {
    LoadOptions wish = variation.load;
    wish.with_draft_head = variation.guesser == Guesser::kHead;
    if (variation.guesser == Guesser::kItself) wish.draft_folder = model_.folder;
    if (variation.guesser == Guesser::kBlock || variation.guesser == Guesser::kBlockTree)
      wish.draft_folder = drafter_folder_.path();
    const std::string key = fmt::format("{} {} {} {} {} {} {}", wish.num_threads, cpu_isa_name(wish.isa),
                                        wish.use_reference_ops, static_cast<int>(wish.cuda.kernels),
                                        wish.cuda.use_graphs, wish.with_draft_head, wish.draft_folder);
    if (loaded_ != nullptr && key == loaded_key_ && !variation.is_restarted) return loaded_;
    loaded_.reset();  // two large models at once may not fit
    LoadOptions options = wish;
    options.need_tokenizer = false;
    TF_ASSIGN_OR_RETURN(loaded_, load_model(model_.folder, options));
    loaded_key_ = key;
    return loaded_;
  }

  Outcome note(Outcome outcome, std::string_view variation, std::string_view what) {
    notes_.push_back(fmt::format("{}, {}: {}", name(), variation, what));
    return outcome;
  }

  MatrixModel model_;
  const Arguments& arguments_;
  TemporaryFolder drafter_folder_;
  std::vector<Request> workload_;
  std::vector<Recording> expected_;
  std::shared_ptr<LoadedModel> loaded_;
  std::string loaded_key_;
  std::vector<std::string> notes_;
};

using Table = std::vector<std::vector<Outcome>>;  // [variations][models]

void print_table(const std::vector<Variation>& variations, const std::vector<MatrixModel>& models,
                 const Table& table, const Arguments& arguments) {
  for (size_t m = 0; m < models.size(); ++m) fmt::print("[{:2}] {}\n", m + 1, models[m].name);
  fmt::print("\n{:<42}", "must not change a byte");
  for (size_t m = 0; m < models.size(); ++m) fmt::print(" [{:2}]", m + 1);
  fmt::print("\n");
  for (size_t v = 0; v < variations.size(); ++v) {
    fmt::print("{:<42}", variations[v].name);
    for (const Outcome outcome : table[v]) fmt::print(" {:>4}", outcome_word(outcome));
    const std::string reason = why_not_run(variations[v], arguments);
    fmt::print("{}\n", reason.empty() ? "" : "   not run: " + reason);
  }
}

/// The same rows on a CUDA device: those of CPU threads and instruction sets make way for those of its
/// kernels.
std::vector<Variation> cuda_variations(const std::string& device) {
  std::vector<Variation> variations = all_variations();
  std::erase_if(variations, [](const Variation& v) {
    return v.load.use_reference_ops || v.load.isa != CpuIsa::kBest ||
           v.load.num_threads != baseline().load.num_threads;
  });
  const auto add = [&](std::string name, Company company) -> CudaOptions& {
    variations.push_back(baseline());
    variations.back().name = std::move(name);
    variations.back().company = company;
    return variations.back().load.cuda;
  };
  add("no graphs", Company::kAlone).use_graphs = false;
  add("kernels for few rows", Company::kTogether).kernels = CudaOptions::Kernels::kFewRows;
  add("kernels for many rows", Company::kAlone).kernels = CudaOptions::Kernels::kManyRows;
  add("kernels for many rows, together", Company::kTogether).kernels = CudaOptions::Kernels::kManyRows;
  for (Variation& v : variations) v.load.device = device;
  return variations;
}

std::vector<Variation> chosen_variations(const Arguments& arguments) {
  std::vector<Variation> variations =
      arguments.device == "cpu" ? all_variations() : cuda_variations(arguments.device);
  std::erase_if(variations,
                [&](const Variation& v) { return v.name.find(arguments.only) == std::string::npos; });
  return variations;
}

/// Fills the column `m` of the table and returns its notes.
std::vector<std::string> run_column(const MatrixModel& model, const Arguments& arguments,
                                    const std::vector<Variation>& variations, Table& table, size_t m) {
  Column column(model, arguments);
  if (const Status status = column.start(); !status.ok()) {
    const bool is_left_out = arguments.device != "cpu" && status.code() == StatusCode::kUnsupported;
    for (auto& row : table) row[m] = is_left_out ? Outcome::kNotRun : Outcome::kFailed;
    if (is_left_out) {
      fmt::print("{} is left out: {}\n", model.name, status.message());
      return {};
    }
    return {fmt::format("{}, baseline: {}", model.name, status.message())};
  }
  for (size_t v = 0; v < variations.size(); ++v) table[v][m] = column.run(variations[v]);
  return column.notes();
}

int run(const Arguments& arguments) {
  const TemporaryFolder temporary;
  std::vector<MatrixModel> models;
  for (const std::string& folder : arguments.folders)
    models.push_back({fs::path(folder).filename().string(), folder});
  if (models.empty()) {
    models = find_fixtures(arguments.fixtures);
    const Result<std::vector<MatrixModel>> toys = write_toy_models(temporary.path());
    if (!toys.ok()) {
      fmt::print(stderr, "{}\n", toys.status().message());
      return 1;
    }
    models.insert(models.end(), toys->begin(), toys->end());
  }
  std::vector<MatrixModel> part;
  for (size_t m = arguments.part - 1; m < models.size(); m += arguments.num_parts) part.push_back(models[m]);
  models = std::move(part);
  const std::vector<Variation> variations = chosen_variations(arguments);
  Table table(variations.size(), std::vector<Outcome>(models.size()));
  std::vector<std::string> notes;
  for (size_t m = 0; m < models.size(); ++m) {
    for (std::string& note : run_column(models[m], arguments, variations, table, m))
      notes.push_back(std::move(note));
  }
  print_table(variations, models, table, arguments);
  for (const std::string& note : notes) fmt::print("{}\n", note);
  return notes.empty() ? 0 : 1;
}

}  // namespace
}  // namespace tensorfold

int main(int argc, char** argv) {
  tensorfold::set_log_level(tensorfold::LogLevel::kWarning);
  const auto arguments = tensorfold::parse_arguments(argc, argv);
  if (!arguments.ok()) {
    fmt::print(stderr, "{}\n", arguments.status().message());
    return 2;
  }
  return tensorfold::run(*arguments);
}
