// See model_flags.h.
#include "cli/model_flags.h"

#include <limits>
#include <utility>

#include "cli/environment.h"
#include "cli/progress.h"

namespace tensorfold {
namespace {

constexpr std::string_view kDemoModel = "SmolLM2-135M-Instruct";
constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

}  // namespace

void add_model_argument(Flags& flags, std::string& model) {
  flags.argument(
      "MODEL",
      "A folder of checkpoint files, a Hugging Face repo id (org/name) that is in the cache, the name of a "
      "folder in ~/.cache/tensorfold, or 'demo'.",
      model);
}

void add_model_flags(Flags& flags, ModelFlags& model) {
  flags.text("device", "NAME",
             "Where to compute: cpu, cuda, cuda:N, or auto, a CUDA device where there is one.", model.device);
  flags.bytes("gpu-memory", "Memory of the CUDA device to use, weights and all.", model.gpu_memory_bytes,
              "what is free, less 1 GB");
  flags.integer("threads", "Threads that compute; 0 is one per usable CPU. Replies do not depend on it.",
                model.threads, 0, 4096);
  flags.choice("isa", "Instruction set to hold the CPU backend to. Replies do not depend on it.", model.isa,
               {"best", "avx2", "avx512", "avx512-bf16", "neon"});
}

void add_engine_flags(Flags& flags, EngineFlags& engine) {
  flags.integer("context", "Longest sequence in tokens, prompt and reply; 0 is the model's own limit.",
                engine.context_tokens, 0, kMaxInt);
  flags.bytes("kv-memory", "Memory for the keys and values of running requests.", engine.kv_memory_bytes,
              "half of what is free after loading");
  flags.integer("max-sequences", "Requests that are computed at the same time; further ones wait.",
                engine.max_sequences, 1, 4096);
}

void add_draft_flags(Flags& flags, EngineFlags& engine) {
  engine.draft = "auto";
  flags.text(
      "draft", "auto|off|lookup|mtp|MODEL",
      "Who guesses tokens that a pass then verifies. lookup finds them in the prompt and the reply, mtp is "
      "the "
      "model's own head for it. auto takes both, as far as they are measured to pay; with a smaller MODEL of "
      "the same tokenizer, that one and lookup. Replies do not depend on it.",
      engine.draft);
  flags.integer("draft-max", "Most tokens of a request that are guessed at a time.", engine.draft_max, 1,
                kMaxDraftTokens);
}

void add_sampling_flags(Flags& flags, SamplingFlags& sampling) {
  flags.number("temperature", "0 takes the best token each time. Default: the model's own, else 1.",
               sampling.temperature, 0, 100);
  flags.number("top-p", "Draws among the best tokens that together reach this probability; 1 is off.",
               sampling.top_p, 1e-6, 1);
  flags.integer("top-k", "Draws among this many best tokens; 0 is off.", sampling.top_k, 0, kMaxInt);
  flags.number("min-p", "Leaves out tokens below this share of the best one's probability; 0 is off.",
               sampling.min_p, 0, 1);
  flags.integer(
      "seed",
      "Of the draws. Without it the seed is a hash of the prompt, so a repeated prompt has the same reply.",
      sampling.seed, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
}

Result<ModelPath> find_model(const std::string& model) {
  if (model != "demo") return resolve_model(model, model_search());
  Result<ModelPath> path = resolve_model(kDemoModel, model_search());
  if (path.ok() || path.status().code() != StatusCode::kNotFound) return path;
  return not_found("the demo model {} is not in {}; 'make demo' fetches it", kDemoModel,
                   tensorfold_cache_folder());
}

namespace {

bool is_draft_model(const std::string& draft) {
  return draft != "auto" && draft != "off" && draft != "lookup" && draft != "mtp";
}

}  // namespace

Result<std::shared_ptr<LoadedModel>> load_model_by_flags(const ModelFlags& flags, int64_t context_tokens) {
  TF_ASSIGN_OR_RETURN(const ModelPath path, find_model(flags.model));
  TF_ASSIGN_OR_RETURN(const CpuIsa isa, parse_cpu_isa(flags.isa));
  LoadOptions options;
  options.device = flags.device;
  options.cuda.memory_bytes = flags.gpu_memory_bytes;
  options.num_threads = static_cast<int>(flags.threads);
  options.isa = isa;
  options.compute_f32 = flags.compute_f32;
  options.need_tokenizer = flags.needs_tokenizer;
  options.context_tokens = context_tokens;
  options.with_draft_head = flags.draft == "auto" || flags.draft == "mtp";
  if (is_draft_model(flags.draft)) {
    Result<ModelPath> draft = find_model(flags.draft);
    if (!draft.ok()) return draft.status().with_context("--draft takes auto, off, lookup, mtp or a model");
    options.draft_folder = draft->folder;
  }
  if (!flags.quiet) options.progress = show_progress(path.name);
  TF_ASSIGN_OR_RETURN(std::shared_ptr<LoadedModel> model, load_model(path.folder, options));
  model->name = path.name;
  return model;
}

EngineOptions engine_options(const EngineFlags& flags) {
  EngineOptions options;
  options.context_tokens = flags.context_tokens;
  options.kv_memory_bytes = flags.kv_memory_bytes;
  options.max_sequences = flags.max_sequences;
  options.draft = flags.draft == "off"      ? DraftMode::kOff
                  : flags.draft == "lookup" ? DraftMode::kLookup
                  : flags.draft == "mtp"    ? DraftMode::kModel
                                            : DraftMode::kAuto;
  options.draft_max = flags.draft_max;
  options.session_tokens = flags.session_tokens;
  return options;
}

Result<std::unique_ptr<Engine>> load_engine(const ModelFlags& model, const EngineFlags& engine) {
  ModelFlags with_draft = model;
  with_draft.draft = engine.draft;
  TF_ASSIGN_OR_RETURN(std::shared_ptr<LoadedModel> loaded,
                      load_model_by_flags(with_draft, engine.context_tokens));
  return Engine::create(std::move(loaded), engine_options(engine));
}

SamplingParams sampling_params(const SamplingFlags& flags, const GenerationConfig& generation) {
  SamplingParams params;
  const bool is_greedy_model = generation.do_sample.has_value() && !*generation.do_sample;
  params.temperature = static_cast<float>(flags.temperature.value_or(
      is_greedy_model ? 0.0 : generation.temperature.value_or(params.temperature)));
  params.top_p = static_cast<float>(flags.top_p.value_or(generation.top_p.value_or(params.top_p)));
  params.min_p = static_cast<float>(flags.min_p.value_or(generation.min_p.value_or(params.min_p)));
  params.top_k = static_cast<int32_t>(flags.top_k.value_or(generation.top_k.value_or(params.top_k)));
  if (flags.seed) params.seed = static_cast<uint64_t>(*flags.seed);
  return params;
}

}  // namespace tensorfold
