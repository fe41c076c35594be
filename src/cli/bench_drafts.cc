// `tensorfold bench drafts MODEL`: what drafts gain on each workload, serial and drafted in turn. `tensorfold
// bench verify MODEL`: whether drafts of all kinds give the serial reply to the bit.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "base/json.h"
#include "cli/command.h"
#include "cli/model_flags.h"
#include "engine/chat_prompt.h"
#include "engine/draft_bench.h"
#include "formats/file.h"

namespace tensorfold {
namespace {

constexpr int64_t kMaxWorkloadBytes = 1 << 20;

/// {"name":...,"messages":[...],"max_tokens":...}
Result<DraftWorkload> read_workload(const std::string& path, const LoadedModel& model) {
  TF_ASSIGN_OR_RETURN(const std::string text, read_text_file(posix_file_system(), path, kMaxWorkloadBytes));
  const Result<Json> json = parse_json(text);
  if (!json.ok()) return json.status().with_context(path);
  const Json* name = json->find("name");
  const Json* messages = json->find("messages");
  const Json* max_tokens = json->find("max_tokens");
  if (name == nullptr || !name->is_string() || messages == nullptr || !messages->is_array() ||
      max_tokens == nullptr || !max_tokens->is_int())
    return corrupt(
        "{}: expected an object with a string 'name', a list 'messages' and an integer 'max_tokens'", path);
  TF_ASSIGN_OR_RETURN(ChatPrompt prompt, chat_prompt(model, {.messages = *messages, .date = "2026-11-29"}));
  return DraftWorkload{
      .name = name->as_string(), .prompt = std::move(prompt.tokens), .max_tokens = max_tokens->as_int()};
}

/// The .json files of a folder, by name.
Result<std::vector<DraftWorkload>> read_workloads(const std::string& folder, const LoadedModel& model) {
  Result<std::vector<std::string>> names = posix_file_system().list(folder);
  if (!names.ok()) return invalid_argument("--workloads: {}", names.status().message());
  std::sort(names->begin(), names->end());
  std::vector<DraftWorkload> workloads;
  for (const std::string& name : *names) {
    if (!name.ends_with(".json")) continue;
    TF_ASSIGN_OR_RETURN(DraftWorkload workload, read_workload(join_path(folder, name), model));
    workloads.push_back(std::move(workload));
  }
  if (workloads.empty()) return invalid_argument("--workloads: {} has no .json file", folder);
  return workloads;
}

std::string shown_equality(const std::string& difference) {
  return difference.empty() ? "equal" : "DIFFERS: " + difference;
}

class BenchDraftsCommand : public Command {
 public:
  CommandInfo info() const override {
    return {.name = "bench drafts",
            .summary = "What guessed tokens gain on each workload, serial and drafted replies in turn.",
            .details =
                "  tensorfold bench drafts demo --workloads bench/workloads\n\n"
                "A workload is a JSON file with a name, chat messages and max_tokens."};
  }

  void add_flags(Flags& flags) override {
    add_model_argument(flags, model_.model);
    add_model_flags(flags, model_);
    engine_.max_sequences = 1;
    add_draft_flags(flags, engine_);
    flags.text("workloads", "FOLDER", "Folder of the workloads.", folder_);
    flags.number("temperature", "0 takes the best token each time. Default: 0.", temperature_, 0, 100);
    flags.integer("samples", "Pairs of replies of each workload.", num_samples_, 1, 1000);
    flags.toggle(
        "tape",
        "Guesses are the serial reply, always right, whatever --draft says: the most that --draft-max of "
        "them can gain.",
        is_tape_);
    flags.toggle("json", "Print one JSON object.", json_);
    flags.toggle("quiet", "No progress while loading.", model_.quiet);
  }

  Status run() override {
    if (engine_.draft == "off")
      return invalid_argument("--draft off: bench drafts compares drafting with it");
    model_.draft = is_tape_ ? "lookup" : engine_.draft;
    TF_ASSIGN_OR_RETURN(const std::shared_ptr<LoadedModel> model,
                        load_model_by_flags(model_, engine_.context_tokens));
    TF_ASSIGN_OR_RETURN(const std::vector<DraftWorkload> workloads, read_workloads(folder_, *model));
    std::unique_ptr<Engine> engine;
    if (!is_tape_) {
      TF_ASSIGN_OR_RETURN(engine, Engine::create(model, engine_options(engine_)));
    }
    const BackendInfo& backend = model->ops->info();
    if (!json_)
      fmt::print(
          "{} on {} ({}), {} threads, draft {} up to {}\n{:<20} {:>6} {:>9} {:>9} {:>8} {:>9} {:>8} {:>8}\n",
          model->name, backend.name, backend.isa, backend.num_threads, drafter_name(), engine_.draft_max,
          "workload", "tokens", "serial/s", "drafted/s", "speed-up", "accepted", "a pass", "bytes");
    Json results = Json::array();
    for (const DraftWorkload& workload : workloads) {
      SamplingParams sampling;
      sampling.temperature = static_cast<float>(temperature_.value_or(0));
      const Result<DraftRate> measured =
          is_tape_ ? bench_tape(model, engine_options(engine_), workload, sampling, num_samples_)
                   : bench_drafts(*engine, workload, sampling, num_samples_);
      TF_ASSIGN_OR_RETURN(const DraftRate rate, measured);
      json_ ? results.push_back(json_of(workload, rate)) : print(workload, rate);
      is_equal_ &= rate.difference.empty();
    }
    if (json_) print_json(*model, std::move(results));
    if (!is_equal_) return make_error(StatusCode::kInternal, "a drafted reply is not the serial one");
    return {};
  }

 private:
  static void print(const DraftWorkload& workload, const DraftRate& rate) {
    fmt::print("{:<20} {:>6} {:>9.1f} {:>9.1f} {:>8.2f} {:>8.0f}% {:>8.2f} {:>8}\n", workload.name,
               rate.num_tokens, rate.serial.median, rate.drafted.median, rate.speed_up,
               100 * rate.usage.acceptance_rate(), rate.usage.accepted_per_pass(),
               shown_equality(rate.difference));
  }

  static Json json_of(const DraftWorkload& workload, const DraftRate& rate) {
    Json json = Json::object();
    json.set("workload", workload.name);
    json.set("prompt_tokens", std::ssize(workload.prompt));
    json.set("tokens", rate.num_tokens);
    json.set("serial_tokens_per_s", rate.serial.median);
    json.set("drafted_tokens_per_s", rate.drafted.median);
    json.set("speed_up", rate.speed_up);
    json.set("num_samples", rate.serial.num_samples);
    json.set("equal", rate.difference.empty());
    json.set("speculative", speculative_json(rate.usage));
    return json;
  }

  void print_json(const LoadedModel& model, Json results) const {
    const BackendInfo& backend = model.ops->info();
    Json report = Json::object();
    report.set("model", model.name);
    report.set("backend", backend.name);
    report.set("isa", backend.isa);
    report.set("arithmetic_id", backend.arithmetic_id);
    report.set("num_threads", backend.num_threads);
    report.set("draft", drafter_name());
    report.set("draft_max", engine_.draft_max);
    report.set("results", std::move(results));
    fmt::print("{}\n", dump_json(report, {.indent = 2}));
  }

  std::string drafter_name() const { return is_tape_ ? "tape" : engine_.draft; }

  ModelFlags model_;
  EngineFlags engine_;
  std::string folder_ = "bench/workloads";
  std::optional<double> temperature_;
  int64_t num_samples_ = 3;
  bool is_tape_ = false;
  bool json_ = false;
  bool is_equal_ = true;
};

/// Prompts for a model of which nothing but the vocabulary is known: random, one token, and one that repeats
/// itself, which lookup can work with.
std::vector<DraftWorkload> pseudo_random_workloads(int64_t vocab_size, int64_t max_tokens) {
  const auto tokens = [vocab_size](int64_t count, uint64_t seed) {
    std::vector<int32_t> result;
    for (int64_t i = 0; i < count; ++i)
      result.push_back(static_cast<int32_t>(mix64(seed << 32 | static_cast<uint64_t>(i)) %
                                            static_cast<uint64_t>(vocab_size)));
    return result;
  };
  std::vector<int32_t> repeated;
  for (int i = 0; i < 5; ++i)
    for (const int32_t token : tokens(20, 3)) repeated.push_back(token);
  return {{.name = "random", .prompt = tokens(100, 1), .max_tokens = max_tokens},
          {.name = "one token", .prompt = tokens(1, 2), .max_tokens = max_tokens},
          {.name = "repeated", .prompt = repeated, .max_tokens = max_tokens}};
}

class BenchVerifyCommand : public Command {
 public:
  CommandInfo info() const override {
    return {
        .name = "bench verify",
        .summary = "Whether replies with guessed tokens, right and wrong, are the serial ones to the bit.",
        .details =
            "  tensorfold bench verify demo\n\n"
            "Guesses that are always wrong, wrong here and there, and always right, and those of each "
            "drafter\n"
            "there is: of a model's own head with --draft auto, of a draft model with --draft MODEL."};
  }

  void add_flags(Flags& flags) override {
    add_model_argument(flags, model_.model);
    add_model_flags(flags, model_);
    add_draft_flags(flags, engine_);
    flags.integer("tokens", "Tokens of each reply.", num_tokens_, 2, 1 << 20);
    flags.toggle("json", "Print one JSON object.", json_);
    flags.toggle("quiet", "No progress while loading.", model_.quiet);
  }

  Status run() override {
    model_.needs_tokenizer = false;
    model_.draft = engine_.draft;
    engine_.max_sequences = 1;
    TF_ASSIGN_OR_RETURN(const std::shared_ptr<LoadedModel> model, load_model_by_flags(model_, 0));
    VerifyBench bench;
    bench.workloads = pseudo_random_workloads(num_drawable_tokens(*model), num_tokens_);
    bench.engine = engine_options(engine_);
    TF_ASSIGN_OR_RETURN(const std::vector<VerifyResult> results, verify_drafts(model, bench));
    Json array = Json::array();
    bool is_equal = true;
    for (const VerifyResult& result : results) {
      is_equal &= result.difference.empty();
      json_ ? array.push_back(json_of(result)) : print(result);
    }
    if (json_) {
      Json report = Json::object();
      report.set("model", model->name);
      report.set("arithmetic_id", model->ops->info().arithmetic_id);
      report.set("results", std::move(array));
      fmt::print("{}\n", dump_json(report, {.indent = 2}));
    }
    if (!is_equal) return make_error(StatusCode::kInternal, "a drafted reply is not the serial one");
    return {};
  }

 private:
  static void print(const VerifyResult& result) {
    fmt::print("{:<22} temperature {:.0f}  {:>5} tokens, {:>5} of {:>5} guesses right  {}\n", result.drafter,
               result.temperature, result.num_tokens, result.usage.accepted, result.usage.drafted,
               shown_equality(result.difference));
  }

  static Json json_of(const VerifyResult& result) {
    Json json = Json::object();
    json.set("drafter", result.drafter);
    json.set("temperature", static_cast<double>(result.temperature));
    json.set("tokens", result.num_tokens);
    json.set("equal", result.difference.empty());
    if (!result.difference.empty()) json.set("difference", result.difference);
    json.set("speculative", speculative_json(result.usage));
    return json;
  }

  ModelFlags model_;
  EngineFlags engine_;
  int64_t num_tokens_ = 64;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_bench_drafts_command() { return std::make_unique<BenchDraftsCommand>(); }
std::unique_ptr<Command> make_bench_verify_command() { return std::make_unique<BenchVerifyCommand>(); }

}  // namespace tensorfold
