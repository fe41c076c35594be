// How each row of the exactness matrix is run (tests/matrix/variations.h).
#include "tests/matrix/variations.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/hash.h"
#include "drafters/block.h"
#include "drafters/tape.h"
#include "engine/kv_pages.h"
#include "engine/state_slots.h"
#include "tests/support/reply_collector.h"

namespace tensorfold {
namespace {

constexpr int kNumOthers = 15;

std::vector<int32_t> make_prompt(int64_t num_tokens, int64_t vocab_size, uint64_t seed) {
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < num_tokens; ++i) {
    const uint64_t word = mix64(seed * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(i));
    prompt.push_back(static_cast<int32_t>(word % static_cast<uint64_t>(vocab_size)));
  }
  return prompt;
}

/// What a variation is run on.
struct Setting {
  const std::shared_ptr<LoadedModel>& model;
  const std::vector<Request>& workload;
  const std::vector<Recording>& expected;
};

/// The reply that the baseline gave to a request; nothing for requests that are company.
const std::vector<int32_t>* known_reply(const Setting& setting, const Request& request) {
  for (size_t i = 0; i < setting.expected.size(); ++i) {
    const Request& known = setting.workload[i];
    if (known.prompt == request.prompt && known.max_tokens == request.max_tokens)
      return &setting.expected[i].tokens;
  }
  return nullptr;
}

bool knows_replies(Guesser guesser) {
  return guesser == Guesser::kTape || guesser == Guesser::kAdversary || guesser == Guesser::kTree ||
         guesser == Guesser::kTreeAdversary;
}

std::unique_ptr<Drafter> make_guesser(Guesser guesser, int64_t prompt_tokens,
                                      const std::vector<int32_t>& reply, int64_t vocab_size) {
  if (guesser == Guesser::kTape) return std::make_unique<TapeDrafter>(prompt_tokens, reply);
  if (guesser == Guesser::kAdversary)
    return std::make_unique<AdversaryDrafter>(prompt_tokens, reply, vocab_size, /*num_right=*/-1);
  const bool is_right = guesser == Guesser::kTree;
  const TreeTapeDrafter::Shape shape{
      .num_before = 1, .num_after = is_right ? 0 : 1, .num_right = is_right ? kMaxDraftTokens : -1};
  return std::make_unique<TreeTapeDrafter>(prompt_tokens, reply, vocab_size, shape);
}

/// A block drafter of trees, whose drafts that are no chain are counted.
class CountedTrees final : public PassDrafter {
 public:
  CountedTrees(const BlockModel& parts, std::atomic<int64_t>& num_trees)
      : drafter_(parts), num_trees_(num_trees) {}

  std::string_view name() const override { return drafter_.name(); }
  std::span<const KvShape> kv_layers() const override { return drafter_.kv_layers(); }
  std::span<const int32_t> target_layers() const override { return drafter_.target_layers(); }
  bool offers_trees() const override { return drafter_.offers_trees(); }
  int64_t max_positions() const override { return drafter_.max_positions(); }
  Status prepare(int64_t max_tasks, int64_t max_rows, int64_t max_guesses) override {
    return drafter_.prepare(max_tasks, max_rows, max_guesses);
  }
  int64_t scratch_bytes() const override { return drafter_.scratch_bytes(); }
  Status run(std::span<DraftTask> tasks, const ModelRows& model, const State& state,
             Arena& scratch) override {
    TF_RETURN_IF_ERROR(drafter_.run(tasks, model, state, scratch));
    for (const DraftTask& task : tasks) num_trees_ += task.draft->is_chain() ? 0 : 1;
    return {};
  }

 private:
  BlockPassDrafter drafter_;
  std::atomic<int64_t>& num_trees_;
};

PassDrafterFactory block_trees(std::atomic<int64_t>& num_trees) {
  return [&num_trees](const LoadedModel& model) {
    const LoadedDraftModel& small = *model.draft_model;
    const BlockModel parts{.name = small.name,
                           .drafter = *small.block_drafter,
                           .ops = *model.ops,
                           .weights = *small.weights,
                           .target = {.model = *model.model, .weights = *model.weights},
                           .num_drawable_tokens = num_drawable_tokens(model),
                           .offers_trees = true};
    return std::make_unique<CountedTrees>(parts, num_trees);
  };
}

/// The guesser's options; the workload, the replies and the counter of trees must outlive the engine.
EngineOptions engine_options(const Variation& variation, const Setting& setting,
                             std::atomic<int64_t>& num_trees) {
  EngineOptions options = variation.engine;
  if (variation.guesser == Guesser::kNobody) return options;
  options.draft = variation.guesser == Guesser::kLookupMeasured ? DraftMode::kAuto : DraftMode::kLookup;
  if (variation.guesser == Guesser::kHead || variation.guesser == Guesser::kBlock ||
      variation.guesser == Guesser::kBlockTree || variation.guesser == Guesser::kItself) {
    if (variation.guesser == Guesser::kBlockTree) options.make_pass_drafter = block_trees(num_trees);
    options.draft = DraftMode::kModel;
    options.draft_confidence = 0;  // random models are sure of nothing
    return options;
  }
  if (!knows_replies(variation.guesser)) return options;
  options.make_drafter = [setting, guesser = variation.guesser](const Request& request) {
    const std::vector<int32_t>* reply = known_reply(setting, request);
    return reply == nullptr ? nullptr
                            : make_guesser(guesser, std::ssize(request.prompt), *reply,
                                           setting.model->model->spec().vocab_size);
  };
  return options;
}

/// What guesses came to, over the engines of a variation.
struct GuessCounts {
  int64_t rounds = 0, guessed = 0, right = 0;
  int64_t trees = 0;  ///< Of kBlockTree.
  void add(const EngineStats& stats, int64_t num_trees) {
    trees += num_trees;
    rounds += stats.draft_rounds;
    guessed += stats.draft_tokens;
    right += stats.draft_accepted_tokens;
  }
};

/// A row counts only if its guesser guessed, and as well as its name says.
Status check_guesses(const Variation& variation, const GuessCounts& counts) {
  const auto fails = [&](const char* expected) {
    return make_error(StatusCode::kInternal, "of {} guesses in {} passes {} were right, expected {}",
                      counts.guessed, counts.rounds, counts.right, expected);
  };
  // What a random model repeats is chance, and what pays depends on the machine.
  if (variation.guesser == Guesser::kNobody || variation.guesser == Guesser::kLookup ||
      variation.guesser == Guesser::kLookupMeasured)
    return {};
  if (counts.rounds == 0) return fails("some");
  if (variation.guesser == Guesser::kHead || variation.guesser == Guesser::kBlock) return {};
  if (variation.guesser == Guesser::kBlockTree)
    return counts.trees > 0 ? Status() : make_error(StatusCode::kInternal, "all drafts were chains");
  if (variation.guesser == Guesser::kTape || variation.guesser == Guesser::kItself)
    return counts.right == counts.guessed ? Status() : fails("all");
  const bool may_be_right = variation.engine.draft_max > 1;
  if (counts.right >= counts.guessed || (counts.right > 0) != may_be_right)
    return fails("some but not all, or with one a pass none");
  return {};
}

/// One engine, the recorder that watches it, and how a variation changes what is asked.
class EngineRun {
 public:
  static Result<std::unique_ptr<EngineRun>> create(const Setting& setting, const Variation& variation) {
    auto engine_run = std::unique_ptr<EngineRun>(new EngineRun(variation));
    EngineOptions options = engine_options(variation, setting, engine_run->num_trees_);
    options.observer = &engine_run->recorder_;
    TF_ASSIGN_OR_RETURN(engine_run->engine_, Engine::create(setting.model, options));
    return engine_run;
  }

  Result<RequestId> submit(Request request, ReplyCollector& collector) {
    if (variation_.toggle_logprobs) request.num_logprobs = request.num_logprobs < 0 ? 3 : -1;
    return engine_->submit(std::move(request), collector.sink());
  }

  Recording record(RequestId id, ReplyCollector& collector) {
    CollectedReply reply = collector.wait();
    return {.tokens = std::move(reply.tokens),
            .text = std::move(reply.text),
            .finish = *reply.finish,
            .error = reply.status.ok() ? "" : reply.status.message(),
            .logits = recorder_.take(id),
            .generated = std::move(reply.generated)};
  }

  Result<Recording> ask(const Request& request) {
    ReplyCollector collector;
    TF_ASSIGN_OR_RETURN(const RequestId id, submit(request, collector));
    return record(id, collector);
  }

  Engine& engine() { return *engine_; }
  LogitsRecorder& recorder() { return recorder_; }
  int64_t num_trees() const { return num_trees_; }

 private:
  explicit EngineRun(const Variation& variation) : variation_(variation) {}
  const Variation& variation_;
  LogitsRecorder recorder_;  // outlives the engine, as the next does
  std::atomic<int64_t> num_trees_ = 0;
  std::unique_ptr<Engine> engine_;
};

using Recordings = std::vector<Recording>;

Result<Recordings> run_alone(const Setting& setting, const Variation& variation) {
  Recordings recordings;
  GuessCounts guesses;
  for (const Request& request : setting.workload) {
    TF_ASSIGN_OR_RETURN(const std::unique_ptr<EngineRun> engine_run, EngineRun::create(setting, variation));
    TF_ASSIGN_OR_RETURN(Recording recording, engine_run->ask(request));
    recordings.push_back(std::move(recording));
    guesses.add(engine_run->engine().stats(), engine_run->num_trees());
  }
  TF_RETURN_IF_ERROR(check_guesses(variation, guesses));
  return recordings;
}

Result<Recordings> run_one_engine(EngineRun& engine_run, const std::vector<Request>& workload) {
  Recordings recordings;
  for (const Request& request : workload) {
    TF_ASSIGN_OR_RETURN(Recording recording, engine_run.ask(request));
    recordings.push_back(std::move(recording));
  }
  return recordings;
}

Result<Recordings> run_together(EngineRun& engine_run, const std::vector<Request>& workload) {
  std::vector<ReplyCollector> collectors(workload.size());
  std::vector<RequestId> ids(workload.size());
  engine_run.recorder().close();
  Status refusal;
  for (size_t i = workload.size(); i-- > 0 && refusal.ok();) {
    const Result<RequestId> id = engine_run.submit(workload[i], collectors[i]);
    if (id.ok()) {
      ids[i] = *id;
    } else {
      refusal = id.status();
    }
  }
  engine_run.recorder().open();
  TF_RETURN_IF_ERROR(refusal);
  Recordings recordings;
  for (size_t i = 0; i < workload.size(); ++i) recordings.push_back(engine_run.record(ids[i], collectors[i]));
  return recordings;
}

/// Half of the others are there first, the rest join after two tokens, when some of the first are cancelled;
/// their replies are of 1 to 29 tokens, so most leave before the request ends.
Result<Recording> ask_in_crowd(EngineRun& engine_run, const Request& request, uint64_t crowd_seed) {
  const ModelSpec& spec = engine_run.engine().model().model->spec();
  std::vector<ReplyCollector> others(kNumOthers);
  std::vector<RequestId> other_ids(kNumOthers);
  const auto join = [&](uint64_t i) -> Status {
    Request other;
    const auto longest = static_cast<uint64_t>(std::min<int64_t>(spec.max_position_embeddings / 2, 90));
    other.prompt = make_prompt(static_cast<int64_t>(1 + (i * 37 + crowd_seed) % longest), spec.vocab_size,
                               crowd_seed * 100 + i);
    other.max_tokens = static_cast<int64_t>(1 + i * 11 % 29);
    other.sampling.temperature = i % 2 == 0 ? 1.0f : 0.0f;
    TF_ASSIGN_OR_RETURN(other_ids[i], engine_run.submit(std::move(other), others[i]));
    return {};
  };
  for (uint64_t i = 0; i < kNumOthers / 2; ++i) TF_RETURN_IF_ERROR(join(i));
  ReplyCollector collector;
  TF_ASSIGN_OR_RETURN(const RequestId id, engine_run.submit(request, collector));
  collector.wait_for_tokens(2);
  for (uint64_t i = kNumOthers / 2; i < kNumOthers; ++i) TF_RETURN_IF_ERROR(join(i));
  for (const size_t i : {2, 3, 9}) engine_run.engine().cancel(other_ids[i]);
  Recording recording = engine_run.record(id, collector);
  for (ReplyCollector& other : others) other.wait();
  return recording;
}

Result<Recording> ask_twice(EngineRun& engine_run, const Request& request) {
  ReplyCollector collector;
  TF_ASSIGN_OR_RETURN(const RequestId id, engine_run.submit(request, collector));
  collector.wait_for_tokens(3);
  engine_run.engine().cancel(id);
  collector.wait();
  return engine_run.ask(request);
}

Result<Recordings> run_in_one_engine(EngineRun& engine_run, Company company,
                                     const std::vector<Request>& workload) {
  if (company == Company::kOneEngine) return run_one_engine(engine_run, workload);
  if (company == Company::kTogether) return run_together(engine_run, workload);
  Recordings recordings;
  for (size_t i = 0; i < workload.size(); ++i) {
    TF_ASSIGN_OR_RETURN(Recording recording, company == Company::kCrowd
                                                 ? ask_in_crowd(engine_run, workload[i], i + 1)
                                                 : ask_twice(engine_run, workload[i]));
    recordings.push_back(std::move(recording));
  }
  return recordings;
}

/// KV memory that just holds the longest sequence of the workload, but at least three pages: of two, the
/// second request would wait instead of being preempted.
int64_t smallest_kv_bytes(const LoadedModel& model, const std::vector<Request>& workload,
                          int64_t max_sequences) {
  int64_t num_pages = 3;
  for (const Request& request : workload) {
    const int64_t total = std::min(std::ssize(request.prompt) + request.max_tokens,
                                   model.model->spec().max_position_embeddings);
    num_pages = std::max(num_pages, pages_for_tokens(total - 1));
  }
  std::vector<KvShape> layers = model.model->spec().kv_layers;
  if (model.draft_model != nullptr && model.draft_model->block_drafter != nullptr) {
    const std::vector<KvShape>& more = model.draft_model->block_drafter->spec().kv_layers;
    layers.insert(layers.end(), more.begin(), more.end());
  }
  StateLimit limit{.page_bytes = kv_page_set_bytes(*model.ops, layers),
                   .slot_bytes = state_slot_bytes(model.model->spec().recurrent_layers),
                   .context_tokens = model.model->spec().max_position_embeddings,
                   .max_sequences = max_sequences};
  // States take at most half of the memory: where those of all sequences are more than the pages, fewer run.
  for (int64_t slots = max_sequences; slots >= 2; --slots) {
    limit.memory_bytes = num_pages * limit.page_bytes + slots * limit.slot_bytes;
    const Result<StateMemory> memory = divide_state_memory(limit);
    if (memory.ok() && memory->num_pages == num_pages && memory->max_sequences >= 2) break;
  }
  return limit.memory_bytes;
}

}  // namespace

Variation baseline() {
  Variation v;
  v.name = "baseline";
  v.load.num_threads = 1;
  return v;
}

std::vector<Variation> all_variations() {
  std::vector<Variation> rows;
  const auto add = [&](std::string name, Company company = Company::kAlone) -> Variation& {
    rows.push_back(baseline());
    rows.back().name = std::move(name);
    rows.back().company = company;
    return rows.back();
  };
  // Together, because a pass of many threads costs much on a busy machine and one of several sequences costs
  // no more.
  add("threads 2, together", Company::kTogether).load.num_threads = 2;
  add("threads 8, together", Company::kTogether).load.num_threads = 8;
  const std::vector<CpuIsa> supported = supported_cpu_isas();
  for (const CpuIsa isa : {CpuIsa::kAvx512Bf16, CpuIsa::kAvx512, CpuIsa::kAvx2, CpuIsa::kNeon}) {
    Variation& v = add("isa " + std::string(cpu_isa_name(isa)));
    v.load.isa = isa;
    if (std::find(supported.begin(), supported.end(), isa) == supported.end())
      v.not_run = "this CPU lacks it";
  }
  Variation& reference = add("reference ops");
  reference.load.use_reference_ops = true;
  reference.is_slow = true;
  for (const int64_t pass_tokens : {1, 7, 64, 4096}) {
    add("prompt chunks of " + std::to_string(pass_tokens)).engine.pass_tokens = pass_tokens;
  }
  add("one engine, in turn", Company::kOneEngine);
  add("together, reversed", Company::kTogether);
  add("among 15 others", Company::kCrowd);
  add("among 15 others, chunks of 7", Company::kCrowd).engine.pass_tokens = 7;
  add("preempted", Company::kTogether).must_preempt = true;
  add("cancelled and asked again", Company::kCancelled);
  add("restarted").is_restarted = true;
  add("logprobs toggled").toggle_logprobs = true;
  const auto add_drafts = [&](std::string name, Guesser guesser, std::vector<int64_t> widths,
                              Company company = Company::kAlone) -> Variation& {
    Variation& v = add(std::move(name), company);
    v.guesser = guesser;
    v.widths = std::move(widths);
    return v;
  };
  const std::vector<int64_t> all_widths = {1, 2, 3, 4, 5, 6, 7, 8};
  add_drafts("drafts: lookup", Guesser::kLookup, all_widths);
  add_drafts("drafts: lookup, as measured", Guesser::kLookupMeasured, {8});
  add_drafts("drafts: always right", Guesser::kTape, all_widths);
  add_drafts("drafts: wrong at each place", Guesser::kAdversary, all_widths);
  Variation& defined = add_drafts("drafts: wrong, reference ops", Guesser::kAdversary, {3});
  defined.load.use_reference_ops = true;
  defined.is_slow = true;
  add_drafts("drafts: right, together", Guesser::kTape, {2, 8}, Company::kTogether);
  add_drafts("drafts: wrong, together, chunks of 7", Guesser::kAdversary, {3, 8}, Company::kTogether)
      .engine.pass_tokens = 7;
  add_drafts("drafts: lookup, among 15 others", Guesser::kLookup, {5}, Company::kCrowd);
  add_drafts("drafts: wrong, among 15 others", Guesser::kAdversary, {5}, Company::kCrowd);
  add_drafts("drafts: draft head", Guesser::kHead, {1, 4, 8});
  add_drafts("drafts: draft head, together, chunks of 7", Guesser::kHead, {5}, Company::kTogether)
      .engine.pass_tokens = 7;
  add_drafts("drafts: block drafter", Guesser::kBlock, {3, 7});
  add_drafts("drafts: block drafter, together, of 7", Guesser::kBlock, {5}, Company::kTogether)
      .engine.pass_tokens = 7;
  add_drafts("drafts: block trees", Guesser::kBlockTree, {3, 8, 15});
  add_drafts("drafts: block trees, together, of 7", Guesser::kBlockTree, {8}, Company::kTogether)
      .engine.pass_tokens = 7;
  add_drafts("drafts: block trees, among 15 others", Guesser::kBlockTree, {8}, Company::kCrowd);
  add_drafts("drafts: block trees, preempted", Guesser::kBlockTree, {6}, Company::kTogether).must_preempt =
      true;
  add_drafts("drafts: the model itself", Guesser::kItself, {1, 8});
  add_drafts("drafts: the model itself, among 15 others", Guesser::kItself, {8}, Company::kCrowd);
  add_drafts("drafts: the model itself, together, of 7", Guesser::kItself, {5}, Company::kTogether)
      .engine.pass_tokens = 7;
  add_drafts("drafts: wrong, preempted", Guesser::kAdversary, {4}, Company::kTogether).must_preempt = true;
  add_drafts("drafts: wrong, cancelled, asked again", Guesser::kAdversary, {6}, Company::kCancelled);
  add_drafts("drafts: trees, right in the last branch", Guesser::kTree, {3, 13});
  add_drafts("drafts: trees, wrong", Guesser::kTreeAdversary, {8});
  Variation& defined_trees = add_drafts("drafts: trees, reference ops", Guesser::kTree, {5});
  defined_trees.load.use_reference_ops = true;
  defined_trees.is_slow = true;
  add_drafts("drafts: trees, right, together", Guesser::kTree, {8}, Company::kTogether);
  add_drafts("drafts: trees, wrong, chunks of 7", Guesser::kTreeAdversary, {8}, Company::kTogether)
      .engine.pass_tokens = 7;
  add_drafts("drafts: trees, among 15 others", Guesser::kTree, {8}, Company::kCrowd);
  add_drafts("drafts: trees, preempted", Guesser::kTree, {6}, Company::kTogether).must_preempt = true;
  Variation& threads =
      add_drafts("drafts: trees, threads 2, together", Guesser::kTree, {8}, Company::kTogether);
  threads.load.num_threads = 2;
  return rows;
}

std::vector<Request> make_workload(const ModelSpec& spec, int64_t max_tokens) {
  const int64_t room = std::max<int64_t>(spec.max_position_embeddings - max_tokens - 1, 1);
  std::vector<Request> workload(4);
  // 62 and 61 tokens start side by side in one page each and grow into a third: where KV memory is small, one
  // of the two is preempted. 150 tokens fill spans of 128 keys and chunks unevenly.
  const int64_t prompt_tokens[] = {150, 1, 62, 61};
  for (size_t i = 0; i < workload.size(); ++i) {
    workload[i].prompt = make_prompt(std::min(prompt_tokens[i], room), spec.vocab_size, i + 1);
    workload[i].max_tokens = max_tokens;
    workload[i].ignore_eos = true;
  }
  workload[0].sampling = {.temperature = 0.8f, .top_k = 0, .top_p = 0.95f, .min_p = 0.0f, .seed = {}};
  workload[0].ignore_eos = false;
  workload[1].sampling = {.temperature = 1.0f, .top_k = 0, .top_p = 1.0f, .min_p = 0.0f, .seed = 11};
  workload[2].sampling = {.temperature = 1.0f, .top_k = 40, .top_p = 0.9f, .min_p = 0.05f, .seed = 7};
  workload[2].num_logprobs = 3;
  workload[3].sampling.temperature = 0.0f;
  return workload;
}

Result<std::vector<Recording>> run_variation(const Variation& variation,
                                             const std::shared_ptr<LoadedModel>& model,
                                             const std::vector<Request>& workload,
                                             const std::vector<Recording>& expected) {
  const Setting setting{model, workload, expected};
  if (variation.company == Company::kAlone) return run_alone(setting, variation);
  Variation changed = variation;
  if (variation.must_preempt)
    changed.engine.kv_memory_bytes = smallest_kv_bytes(*model, workload, changed.engine.max_sequences);
  TF_ASSIGN_OR_RETURN(const std::unique_ptr<EngineRun> engine_run, EngineRun::create(setting, changed));
  TF_ASSIGN_OR_RETURN(Recordings recordings, run_in_one_engine(*engine_run, variation.company, workload));
  if (variation.must_preempt && engine_run->engine().stats().preemptions == 0) {
    return make_error(StatusCode::kInternal, "nothing was preempted");
  }
  GuessCounts guesses;
  guesses.add(engine_run->engine().stats(), engine_run->num_trees());
  TF_RETURN_IF_ERROR(check_guesses(variation, guesses));
  return recordings;
}

}  // namespace tensorfold
