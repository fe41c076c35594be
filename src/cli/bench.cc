// `tensorfold bench decode|prefill|batch MODEL`: speeds of a loaded model, beside the limit that this machine
// sets.
#include "engine/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/json.h"
#include "cli/command.h"
#include "cli/model_flags.h"

namespace tensorfold {
namespace {

constexpr int64_t kMaxTokens = 1 << 24;

/// What the three have in common: a model, an engine, a table or JSON.
class BenchCommand : public Command {
 public:
  void add_flags(Flags& flags) override {
    add_model_argument(flags, model_.model);
    add_model_flags(flags, model_);
    add_engine_flags(flags, engine_);
    add_bench_flags(flags);
    flags.toggle("json", "Print one JSON object.", json_);
    flags.toggle("quiet", "No progress while loading.", model_.quiet);
  }

  Status run() override {
    model_.needs_tokenizer = false;
    TF_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, load_engine(model_, engine_));
    const BackendInfo& backend = engine->model().ops->info();
    report_.set("model", engine->model().name);
    report_.set("backend", backend.name);
    report_.set("isa", backend.isa);
    report_.set("arithmetic_id", backend.arithmetic_id);
    report_.set("num_threads", backend.num_threads);
    if (!json_)
      fmt::print("{} on {} ({}), {} threads\n", engine->model().name, backend.name, backend.isa,
                 backend.num_threads);
    TF_RETURN_IF_ERROR(measure(*engine));
    if (json_) {
      report_.set("results", std::move(results_));
      fmt::print("{}\n", dump_json(report_, {.indent = 2}));
    }
    return {};
  }

 protected:
  virtual void add_bench_flags(Flags& flags) = 0;
  virtual Status measure(Engine& engine) = 0;

  bool prints_table() const { return !json_; }
  void add_result(Json result) { results_.push_back(std::move(result)); }
  void set_report(std::string_view key, Json value) { report_.set(key, std::move(value)); }
  int num_threads() const { return static_cast<int>(model_.threads); }

 private:
  ModelFlags model_;
  EngineFlags engine_;
  bool json_ = false;
  Json report_ = Json::object();
  Json results_ = Json::array();
};

Json rate_json(std::string_view key, int64_t value, const BenchRate& rate) {
  Json json = Json::object();
  json.set(key, value);
  json.set("tokens_per_s", rate.median);
  json.set("lowest", rate.lowest);
  json.set("highest", rate.highest);
  json.set("num_samples", rate.num_samples);
  return json;
}

std::string rate_text(const BenchRate& rate) {
  return fmt::format("{:>10.1f}  ({:.1f} to {:.1f}, n = {})", rate.median, rate.lowest, rate.highest,
                     rate.num_samples);
}

class BenchDecodeCommand : public BenchCommand {
 public:
  CommandInfo info() const override {
    return {.name = "bench decode",
            .summary = "Tokens per second of one reply, and the share of memory bandwidth that is.",
            .details = "  tensorfold bench decode demo --prompt-tokens 128,4096"};
  }

 protected:
  void add_bench_flags(Flags& flags) override {
    flags.integers("prompt-tokens", "Lengths of the context at which decoding is measured.", bench_.contexts,
                   1, kMaxTokens);
    flags.integer("tokens", "Tokens of a sample.", bench_.tokens_per_sample, 1, kMaxTokens);
    flags.integer("samples", "Samples for each context.", bench_.num_samples, 1, 10000);
  }

  Status measure(Engine& engine) override {
    const bool is_host = engine.model().ops->info().name != "cuda";
    TF_ASSIGN_OR_RETURN(const double limit, is_host ? measure_read_bandwidth(num_threads())
                                                    : measure_copy_bandwidth(engine.model()));
    TF_ASSIGN_OR_RETURN(const std::vector<DecodeRate> rates, bench_decode(engine, bench_));
    set_report(is_host ? "read_gb_per_s" : "copy_gb_per_s", limit / 1e9);
    if (prints_table())
      fmt::print("memory is {} at {:.1f} GB/s\n{:>8}  {:>10}\n", is_host ? "read" : "copied", limit / 1e9, "context",
                 "tokens/s");
    for (const DecodeRate& rate : rates) {
      const double bytes_per_s = rate.rate.median * static_cast<double>(rate.bytes_per_token);
      Json json = rate_json("context_tokens", rate.context_tokens, rate.rate);
      json.set("bytes_per_token", rate.bytes_per_token);
      json.set(is_host ? "share_of_read_bandwidth" : "share_of_copy_bandwidth", bytes_per_s / limit);
      add_result(std::move(json));
      if (prints_table())
        fmt::print("{:>8}  {}, {} a token, {:.1f} GB/s, {:.0f} % of memory\n", rate.context_tokens,
                   rate_text(rate.rate), shown_bytes(rate.bytes_per_token), bytes_per_s / 1e9,
                   100 * bytes_per_s / limit);
    }
    return {};
  }

 private:
  DecodeBench bench_;
};

class BenchPrefillCommand : public BenchCommand {
 public:
  CommandInfo info() const override {
    return {.name = "bench prefill",
            .summary = "Prompt tokens per second.",
            .details = "  tensorfold bench prefill demo --prompt-tokens 512,4096"};
  }

 protected:
  void add_bench_flags(Flags& flags) override {
    flags.integers("prompt-tokens", "Lengths of the prompts.", bench_.prompt_tokens, 1, kMaxTokens);
    flags.integer("samples", "Prompts of each length.", bench_.num_samples, 1, 10000);
  }

  Status measure(Engine& engine) override {
    TF_ASSIGN_OR_RETURN(const std::vector<PrefillRate> rates, bench_prefill(engine, bench_));
    if (prints_table()) fmt::print("{:>8}  {:>10}\n", "prompt", "tokens/s");
    for (const PrefillRate& rate : rates) {
      add_result(rate_json("prompt_tokens", rate.prompt_tokens, rate.rate));
      if (prints_table()) fmt::print("{:>8}  {}\n", rate.prompt_tokens, rate_text(rate.rate));
    }
    return {};
  }

 private:
  PrefillBench bench_;
};

class BenchBatchCommand : public BenchCommand {
 public:
  CommandInfo info() const override {
    return {.name = "bench batch",
            .summary = "Tokens per second of several replies at once.",
            .details = "  tensorfold bench batch demo --streams 1,4,16"};
  }

 protected:
  void add_bench_flags(Flags& flags) override {
    flags.integers("streams", "Numbers of replies at once.", bench_.streams, 1, 4096);
    flags.integer("prompt-tokens", "Length of each prompt.", bench_.prompt_tokens, 1, kMaxTokens);
    flags.integer("tokens", "Tokens of each reply.", bench_.tokens_per_stream, 2, kMaxTokens);
    flags.integer("samples", "Samples for each number.", bench_.num_samples, 1, 10000);
  }

  Status measure(Engine& engine) override {
    TF_ASSIGN_OR_RETURN(const std::vector<BatchRate> rates, bench_batch(engine, bench_));
    if (prints_table()) fmt::print("{:>8}  {:>10}\n", "streams", "tokens/s");
    for (const BatchRate& rate : rates) {
      add_result(rate_json("streams", rate.streams, rate.rate));
      if (prints_table())
        fmt::print("{:>8}  {}, {:.1f} each\n", rate.streams, rate_text(rate.rate),
                   rate.rate.median / static_cast<double>(std::max<int64_t>(1, rate.streams)));
    }
    return {};
  }

 private:
  BatchBench bench_;
};

}  // namespace

std::unique_ptr<Command> make_bench_decode_command() { return std::make_unique<BenchDecodeCommand>(); }
std::unique_ptr<Command> make_bench_prefill_command() { return std::make_unique<BenchPrefillCommand>(); }
std::unique_ptr<Command> make_bench_batch_command() { return std::make_unique<BenchBatchCommand>(); }

}  // namespace tensorfold
