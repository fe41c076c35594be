// The engine's thread and what crosses to it: new requests, cancellations, statistics. Which rows run is
// decided in scheduler.cc, how they run in pass.cc; here their tokens become events.
#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "base/log.h"
#include "drafters/session_corpus.h"
#include "engine/draft_turns.h"
#include "engine/kv_pages.h"
#include "engine/make_drafters.h"
#include "engine/pass.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/state_slots.h"
#include "engine/verify.h"

namespace tensorfold {
namespace {

Status check_options(const EngineOptions& options, const ModelSpec& spec) {
  const auto check = [](const char* name, int64_t value, int64_t least) -> Status {
    if (value >= least) return {};
    return invalid_argument("{} is {}, expected {} or more", name, value, least);
  };
  TF_RETURN_IF_ERROR(check("context_tokens", options.context_tokens, 0));
  TF_RETURN_IF_ERROR(check("kv_memory_bytes", options.kv_memory_bytes, 0));
  TF_RETURN_IF_ERROR(check("max_sequences", options.max_sequences, 1));
  TF_RETURN_IF_ERROR(check("max_queued", options.max_queued, 0));
  TF_RETURN_IF_ERROR(check("pass_tokens", options.pass_tokens, 0));
  TF_RETURN_IF_ERROR(check("session_tokens", options.session_tokens, 0));
  if (options.draft_max < 1 || options.draft_max > kMaxDraftTokens)
    return invalid_argument("draft_max is {}, expected 1 to {}", options.draft_max, kMaxDraftTokens);
  if (options.context_tokens > spec.max_position_embeddings) {
    return invalid_argument("context_tokens is {}, the model was made for {} (max_position_embeddings)",
                            options.context_tokens, spec.max_position_embeddings);
  }
  return {};
}

/// The ids that end a reply: those of generation_config.json (or config.json), and the tokenizer's eos_token
/// (specs/tokenizers.md §1).
std::vector<int32_t> end_of_sequence_ids(const LoadedModel& model) {
  std::vector<int32_t> ids;
  for (const int64_t id : model.generation.eos_token_ids) {
    if (id >= 0 && id < model.model->spec().vocab_size) ids.push_back(static_cast<int32_t>(id));
  }
  if (model.tokenizer != nullptr && model.tokenizer->eos_token()) {
    if (const auto id = model.tokenizer->token_to_id(*model.tokenizer->eos_token())) ids.push_back(*id);
  }
  return ids;
}

void report_ignored_defaults(const LoadedModel& model) {
  if (model.generation.ignored.empty()) return;
  log_warning(
      "{}: generation_config.json asks for {}, which this sampler does not have; replies are drawn without "
      "it",
      model.name, fmt::join(model.generation.ignored, ", "));
}

/// Drafted rows of a pass: as many as one sequence may have, twice that for the rows that the branches of a
/// tree repeat, or some of each of several. Each takes a row of logits and of recurrent inputs.
int64_t max_drafted_rows(const EngineOptions& options) {
  constexpr int64_t kSeveral = 32;
  if (options.draft == DraftMode::kOff) return 0;
  return std::clamp(kSeveral, options.draft_max, 2 * options.draft_max * options.max_sequences);
}

/// What a sequence keeps, of the model and then of the drafter.
struct StateShapes {
  std::vector<KvShape> kv_layers;
  std::vector<RecurrentShape> recurrent_layers;
};
StateShapes state_shapes(const ModelSpec& spec, const PassDrafter* drafter) {
  StateShapes shapes{spec.kv_layers, spec.recurrent_layers};
  if (drafter != nullptr) {
    const auto kv = drafter->kv_layers();
    const auto recurrent = drafter->recurrent_layers();
    shapes.kv_layers.insert(shapes.kv_layers.end(), kv.begin(), kv.end());
    shapes.recurrent_layers.insert(shapes.recurrent_layers.end(), recurrent.begin(), recurrent.end());
  }
  return shapes;
}

/// What a session keeps of a reply: with the last tokens of its prompt, so that its beginning is found too.
std::span<const int32_t> session_text(const Sequence& sequence) {
  constexpr int64_t kLead = 8;
  const int64_t start = std::max<int64_t>(0, sequence.num_prompt_tokens - kLead);
  return std::span(sequence.tokens).subspan(static_cast<size_t>(start));
}

/// Joins pieces of text of one kind that follow each other.
void append_pieces(std::vector<OutputPiece>& out, std::vector<OutputPiece> pieces) {
  for (OutputPiece& piece : pieces) {
    if (piece.kind == OutputPiece::Kind::kToolCall)
      out.push_back(std::move(piece));
    else
      append_output(out, piece.kind, piece.text);
  }
}

/// Why no token could be drawn from these logits.
Status undrawable_error(std::span<const float> logits, int64_t pos) {
  const bool has_nan =
      std::any_of(logits.begin(), logits.end(), [](float logit) { return std::isnan(logit); });
  return make_error(StatusCode::kInternal, "the model produced {} at position {}",
                    has_nan ? "NaN logits" : "no finite logit", pos);
}

}  // namespace

struct Engine::Impl {
  /// What one request is told after a pass.
  struct Delivery {
    Sequence* sequence = nullptr;
    std::unique_ptr<Sequence> finished;  ///< The sequence, if this is its last event.
    Event event;
  };

  // Set by start(), then read by every thread.
  std::shared_ptr<LoadedModel> model;
  EngineOptions options;
  SequenceLimits limits;
  std::vector<int32_t> eos_ids;
  std::string pass_drafter_name;            ///< Empty: none was made.
  std::unique_ptr<SessionCorpus> sessions;  ///< Thread-safe. Null where nothing is kept.

  // Engine thread only, once it runs. (Submitting threads make page tables of `pool` and state slots of
  // `slots`, but take none.)
  std::unique_ptr<KvPagePool> pool;
  std::unique_ptr<StateSlotPool> slots;
  std::unique_ptr<PassRunner> runner;
  std::unique_ptr<Scheduler> scheduler;
  std::unique_ptr<Verifier> verifier;
  std::vector<AcceptedRows> accepted;  ///< Of each planned entry; none where its sequence has ended.
  std::vector<Delivery> deliveries;
  EngineStats counters;

  /// What other threads leave for the engine's, and what they read of it.
  struct Shared {
    std::vector<std::unique_ptr<Sequence>> submitted;
    std::vector<RequestId> cancelled;
    bool stop = false;
    RequestId next_id = 1;
    EngineStats stats;
  };
  std::mutex mutex;
  std::condition_variable wake;
  Shared shared;  ///< Guarded by `mutex`.
  /// Requests whose last event was not delivered yet. Raised under `mutex`, lowered without.
  std::atomic<int64_t> num_outstanding{0};

  std::thread thread;

  Status start();
  Result<StateMemory> divide_memory(const StateShapes& shapes) const;
  Status check_context(int64_t kv_tokens) const;
  void run_thread();
  bool take_commands();
  void run_pass();
  Result<std::span<const PlannedRows>> plan();
  Status run_planned(std::span<const PlannedRows> planned);
  void accept_rows(std::span<const PlannedRows> planned);
  AcceptedRows accept_tokens(Sequence& sequence, int64_t num_drafted, int64_t first_logit_row);
  Status accept_token(Sequence& sequence, int64_t logit_row, Event& event);
  void append_token(Sequence& sequence, int32_t token, std::span<const float> logits, Event& event) const;
  void count_drafts(Sequence& sequence, int64_t num_drafted, int64_t num_tokens);
  void end(Sequence& sequence, FinishReason reason, Status status = {});
  void finish(Sequence& sequence, Event event);
  void fail(Sequence& sequence, const Status& status);
  void deliver();
  void publish_stats();
};

Result<StateMemory> Engine::Impl::divide_memory(const StateShapes& shapes) const {
  const ModelSpec& spec = model->model->spec();
  return divide_state_memory(
      {.page_bytes = kv_page_set_bytes(*model->ops, shapes.kv_layers),
       .slot_bytes = state_slot_bytes(shapes.recurrent_layers),
       .memory_bytes = options.kv_memory_bytes,
       .free_bytes = model->ops->device().free_bytes(),
       .context_tokens = options.context_tokens > 0 ? options.context_tokens : spec.max_position_embeddings,
       .max_sequences = options.max_sequences});
}

/// What KV memory means for the longest request, before one finds out. The newest token is not kept: N tokens
/// take N - 1 positions.
Status Engine::Impl::check_context(int64_t kv_tokens) const {
  const int64_t model_tokens = model->model->spec().max_position_embeddings;
  if (options.context_tokens - 1 > kv_tokens)
    return make_error(
        StatusCode::kOutOfMemory,
        "a context of {} tokens does not fit: KV memory holds {} tokens; give it more, or ask for a "
        "context of {}",
        options.context_tokens, kv_tokens, kv_tokens);
  // Without a limit of the user's the context is what there is, and the line about it is enough.
  if (options.context_tokens == 0 && options.kv_memory_bytes > 0 && kv_tokens < model_tokens)
    log_warning("{}: KV memory holds {} tokens, so no request can be longer; the model was made for {}",
                model->name, kv_tokens, model_tokens);
  return {};
}

Status Engine::Impl::start() {
  const ModelSpec& spec = model->model->spec();
  TF_RETURN_IF_ERROR(check_options(options, spec));
  TF_ASSIGN_OR_RETURN(std::unique_ptr<PassDrafter> drafter, make_pass_drafter(options, *model));
  const StateShapes shapes = state_shapes(spec, drafter.get());
  TF_ASSIGN_OR_RETURN(const StateMemory memory, divide_memory(shapes));
  options.max_sequences = memory.max_sequences;
  if (options.pass_tokens == 0) options.pass_tokens = model->ops->device().is_host_memory() ? 512 : 2048;
  const int64_t kv_tokens = memory.num_pages * kPageTokens;
  TF_RETURN_IF_ERROR(check_context(kv_tokens));
  limits = {.vocab_size = spec.vocab_size,
            .context_tokens = options.context_tokens > 0 ? options.context_tokens
                                                         : std::min(spec.max_position_embeddings, kv_tokens)};
  const int64_t max_drafted = max_drafted_rows(options);
  const Scheduler::Options policy{.max_sequences = options.max_sequences,
                                  .pass_tokens = options.pass_tokens,
                                  .max_drafted_rows = max_drafted};
  const int64_t max_rows = Scheduler::max_pass_rows(policy);
  if (drafter != nullptr) TF_RETURN_IF_ERROR(drafter->prepare(options.max_sequences, max_rows, max_drafted));
  TF_ASSIGN_OR_RETURN(pool, KvPagePool::create(*model->ops, shapes.kv_layers, memory.num_pages));
  TF_ASSIGN_OR_RETURN(slots, StateSlotPool::create(model->ops->device(), shapes.recurrent_layers,
                                                   memory.max_sequences, max_drafted));
  TF_ASSIGN_OR_RETURN(
      runner, PassRunner::create(
                  *model, *pool, *slots,
                  {.max_rows = max_rows,
                   .max_logit_rows = options.max_sequences + max_drafted,
                   .keeps_hidden = drafter != nullptr && drafter->wants_hidden(),
                   .tap_layers = drafter != nullptr ? drafter->target_layers() : std::span<const int32_t>(),
                   .scratch_bytes = drafter != nullptr ? drafter->scratch_bytes() : 0}));
  scheduler = std::make_unique<Scheduler>(policy, *pool);
  if (drafter != nullptr) {
    pass_drafter_name = drafter->name();
    log_info("{}: drafts by {}", model->name, pass_drafter_name);
  }
  const bool searches = options.draft == DraftMode::kLookup || options.draft == DraftMode::kAuto;
  if (searches && options.session_tokens > 0)
    sessions = std::make_unique<SessionCorpus>(SessionCorpusOptions{.max_tokens = options.session_tokens});
  eos_ids = end_of_sequence_ids(*model);
  verifier = std::make_unique<Verifier>(
      Verifier::Options{.max_tokens = options.draft_max,
                        .max_turn_rows = std::max(max_rows, max_drafted),
                        .is_measured = options.draft == DraftMode::kAuto,
                        .end_tokens = eos_ids},
      *scheduler,
      drafter != nullptr ? std::make_unique<DraftTurns>(std::move(drafter), *pool, *slots) : nullptr);
  publish_stats();
  report_ignored_defaults(*model);
  log_info("{}: context {} tokens, {} sequences at a time, KV memory up to {} MB", model->name,
           limits.context_tokens, options.max_sequences,
           (memory.num_pages * pool->page_bytes() + memory.max_sequences * slots->slot_bytes()) >> 20);
  thread = std::thread([this] { run_thread(); });
  return {};
}

void Engine::Impl::run_thread() {
  while (take_commands()) run_pass();
  while (Sequence* sequence = scheduler->oldest()) end(*sequence, FinishReason::kCancelled);
  deliver();
}

/// Waits while there is nothing to do. False: the engine stops.
bool Engine::Impl::take_commands() {
  std::vector<std::unique_ptr<Sequence>> submitted;
  std::vector<RequestId> cancelled;
  std::unique_lock lock(mutex);
  wake.wait(lock, [&] {
    return shared.stop || !shared.submitted.empty() || !shared.cancelled.empty() ||
           scheduler->oldest() != nullptr;
  });
  std::swap(submitted, shared.submitted);
  std::swap(cancelled, shared.cancelled);
  const bool stop = shared.stop;
  lock.unlock();

  for (std::unique_ptr<Sequence>& sequence : submitted) {
    Sequence& added = *sequence;
    name_drafters(added.drafts, verifier->computing());
    added.drafts.computed.chance = verifier->typical_chance();
    scheduler->add(std::move(sequence));
    if (added.num_tokens() >= added.max_total_tokens) end(added, FinishReason::kLength);
  }
  for (const RequestId id : cancelled) {
    if (Sequence* sequence = scheduler->find(id)) end(*sequence, FinishReason::kCancelled);
  }
  if (!submitted.empty() || !cancelled.empty()) deliver();
  return !stop;
}

void Engine::Impl::run_pass() {
  const Result<std::span<const PlannedRows>> planned = plan();
  if (!planned.ok()) {  // the device failed to clear a page: nobody's state can be trusted to grow
    while (Sequence* sequence = scheduler->oldest()) fail(*sequence, planned.status());
  } else if (!planned->empty()) {
    const Status status = run_planned(*planned);
    if (!status.ok()) {
      for (const PlannedRows& rows : *planned) fail(*rows.sequence, status);
    }
  }
  deliver();
}

Result<std::span<const PlannedRows>> Engine::Impl::plan() {
  TF_ASSIGN_OR_RETURN(const std::span<const PlannedRows> planned, scheduler->plan());
  TF_RETURN_IF_ERROR(verifier->propose(planned, runner->model_rows(), runner->scratch()));
  TF_RETURN_IF_ERROR(scheduler->add_drafts());
  return planned;
}

/// A pass, its tokens and the states of what was accepted. An error means that none of it counts.
Status Engine::Impl::run_planned(std::span<const PlannedRows> planned) {
  const auto start = std::chrono::steady_clock::now();
  const Status status = runner->run(planned);
  ++counters.passes;
  if (!status.ok()) return status;
  accept_rows(planned);
  const Status committed = runner->commit(planned, accepted);
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
  scheduler->return_draft_pages();
  verifier->finish_pass(planned, accepted, elapsed.count());
  for (size_t i = 0; i < planned.size() && !committed.ok(); ++i)
    if (accepted[i].num_rows > 0) fail(*planned[i].sequence, committed);
  return {};
}

void Engine::Impl::accept_rows(std::span<const PlannedRows> planned) {
  int64_t num_logit_rows = 0;
  accepted.clear();
  for (const PlannedRows& rows : planned) {
    const bool wants_logits = rows.wants_logits();
    rows.sequence->commit(rows.num_rows);
    accepted.push_back(wants_logits ? accept_tokens(*rows.sequence, rows.num_drafted, num_logit_rows)
                                    : AcceptedRows());
    if (wants_logits) num_logit_rows += 1 + rows.num_drafted;
  }
}

/// The token of the last known row, then those of the guesses as long as one follows that is what was drawn:
/// the tokens of as many serial passes. Returns which drafted rows count for the sequence, none if it has
/// ended.
AcceptedRows Engine::Impl::accept_tokens(Sequence& sequence, int64_t num_drafted, int64_t first_logit_row) {
  const int64_t num_tokens_before = sequence.num_tokens();
  const Draft& draft = sequence.drafts.draft;
  Event event;
  Status status;
  TF_DCHECK(draft.size() == num_drafted);  // a guess is a logit row
  int64_t num_right = 0, last = -1;
  for (;;) {
    status = accept_token(sequence, first_logit_row + 1 + last, event);
    if (!status.ok()) break;
    const int64_t next = draft.find_child(last, sequence.tokens.back());
    if (next < 0) break;
    ++num_right;
    last = next;
    if (event.finish) break;
    sequence.commit(1);
  }
  sequence.drafts.num_accepted = num_right;
  sequence.drafts.last_accepted = last;
  count_drafts(sequence, num_drafted, sequence.num_tokens() - num_tokens_before);
  if (event.finish) return finish(sequence, std::move(event)), AcceptedRows();
  if (!event.tokens.empty())
    deliveries.push_back({.sequence = &sequence, .finished = nullptr, .event = std::move(event)});
  if (!status.ok()) return fail(sequence, status), AcceptedRows();
  DraftBranches& branches = sequence.drafts.branches;
  if (branches.is_empty()) return {.num_rows = num_right};
  return {.first_row = branches.accept(last, sequence.pages), .num_rows = 1 + num_right};
}

/// Takes the token of a logit row into the sequence and the event.
Status Engine::Impl::accept_token(Sequence& sequence, int64_t logit_row, Event& event) {
  const int32_t token = runner->token(logit_row);
  const int64_t pos = sequence.num_tokens();
  std::span<const float> logits;
  if (token < 0 || sequence.num_logprobs >= 0 || options.observer != nullptr) {
    TF_ASSIGN_OR_RETURN(logits, runner->logits(logit_row));
  }
  if (token < 0) return undrawable_error(logits, pos - 1);
  if (options.observer != nullptr) options.observer->on_token(sequence.id, pos, token, logits);

  if (pos == sequence.num_prompt_tokens) {
    counters.prompt_tokens += pos;
    sequence.first_token_at = std::chrono::steady_clock::now();
  }
  ++counters.generated_tokens;
  append_token(sequence, token, logits, event);
  return {};
}

/// Appends the token to its sequence; the event says what it added to the reply and whether it ended it.
void Engine::Impl::append_token(Sequence& sequence, int32_t token, std::span<const float> logits,
                                Event& event) const {
  GeneratedToken& generated = event.tokens.emplace_back();
  generated.token = token;
  if (sequence.num_logprobs >= 0) {
    TokenLogprobs logprobs = token_logprobs(logits, token, sequence.num_logprobs);
    generated.logprob = logprobs.chosen;
    generated.top_logprobs = std::move(logprobs.top);
  }
  sequence.tokens.push_back(token);

  const bool is_end = std::find(eos_ids.begin(), eos_ids.end(), token) != eos_ids.end();
  const bool is_eos = !sequence.ignore_eos && (is_end || sequence.text.ends_reply(token));
  generated.is_end = is_eos;
  if (!is_eos) generated.text = sequence.text.push(token);
  const bool is_full = sequence.num_tokens() >= sequence.max_total_tokens;
  if (is_eos || is_full) event.tail = sequence.text.finish(/*is_complete=*/is_eos);
  append_pieces(event.output, sequence.text.take_output());
  if (is_eos || sequence.text.stopped()) {
    event.finish = FinishReason::kStop;
  } else if (is_full) {
    event.finish = FinishReason::kLength;
  }
}

void Engine::Impl::count_drafts(Sequence& sequence, int64_t num_drafted, int64_t num_tokens) {
  if (num_drafted == 0) return;
  SequenceDrafts& drafts = sequence.drafts;
  drafts.num_passes_avoided = std::max<int64_t>(num_tokens - 1, 0);
  const int64_t is_zero = drafts.num_accepted == 0 ? 1 : 0;
  drafts.usage.rounds += 1;
  drafts.usage.drafted += num_drafted;
  drafts.usage.accepted += drafts.num_accepted;
  drafts.usage.zero_accept_rounds += is_zero;
  drafts.usage.passes_avoided += drafts.num_passes_avoided;
  const bool is_computed = drafts.source == DraftSource::kPassDrafter;
  DrafterUsage& usage = drafts.usage.entry_of(is_computed ? pass_drafter_name : drafts.drafter->name());
  usage.rounds += 1;
  usage.drafted += num_drafted;
  usage.accepted += drafts.num_accepted;
  counters.draft_rounds += 1;
  counters.draft_tokens += num_drafted;
  counters.draft_accepted_tokens += drafts.num_accepted;
  counters.draft_zero_accept_rounds += is_zero;
  counters.draft_passes_avoided += drafts.num_passes_avoided;
}

/// Ends a request without a token.
void Engine::Impl::end(Sequence& sequence, FinishReason reason, Status status) {
  Event event;
  event.finish = reason;
  event.status = std::move(status);
  finish(sequence, std::move(event));
}

/// Takes the sequence out of the scheduler, which frees its pages; `event` is its last.
void Engine::Impl::finish(Sequence& sequence, Event event) {
  event.usage = sequence.usage();
  if (sessions != nullptr && sequence.session) sessions->add(*sequence.session, session_text(sequence));
  if (log_level() <= LogLevel::kInfo) log_info("{}", finished_line(sequence, *event.finish));
  deliveries.push_back(
      {.sequence = &sequence, .finished = scheduler->remove(sequence), .event = std::move(event)});
}

void Engine::Impl::fail(Sequence& sequence, const Status& status) {
  const Status named = status.with_context(fmt::format("request {}", sequence.id));
  log_error("{}", named.message());
  end(sequence, FinishReason::kError, named);
}

/// Sends what the last pass or command gave. The statistics come first: whoever has the event sees its
/// numbers.
void Engine::Impl::deliver() {
  publish_stats();
  for (Delivery& delivery : deliveries) {
    if (delivery.finished != nullptr) num_outstanding.fetch_sub(1);
    delivery.sequence->sink(std::move(delivery.event));
  }
  deliveries.clear();
}

void Engine::Impl::publish_stats() {
  counters.running = scheduler->num_running();
  counters.queued = scheduler->num_waiting();
  counters.preemptions = scheduler->num_preemptions();
  counters.kv_pages_used = pool->num_used();
  counters.kv_pages_total = pool->num_pages();
  counters.kv_bytes = pool->num_used() * pool->page_bytes() + slots->num_used() * slots->slot_bytes();
  const std::lock_guard lock(mutex);
  shared.stats = counters;
}

Engine::Engine() : impl_(std::make_unique<Impl>()) {}

Engine::~Engine() {
  if (!impl_->thread.joinable()) return;
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->shared.stop = true;
  }
  impl_->wake.notify_one();
  impl_->thread.join();
}

Result<std::unique_ptr<Engine>> Engine::create(std::shared_ptr<LoadedModel> model,
                                               const EngineOptions& options) {
  std::unique_ptr<Engine> engine(new Engine);
  engine->impl_->model = std::move(model);
  engine->impl_->options = options;
  TF_RETURN_IF_ERROR(engine->impl_->start());
  return engine;
}

Result<RequestId> Engine::submit(Request request, EventSink sink) {
  TF_CHECK(sink != nullptr, "a request needs a sink");
  Impl& impl = *impl_;
  TF_RETURN_IF_ERROR(check_request(request, impl.limits, impl.model->tokenizer != nullptr));
  {
    const std::lock_guard lock(impl.mutex);
    const int64_t most = impl.options.max_sequences + impl.options.max_queued;
    if (impl.num_outstanding.load() >= most) {
      return make_error(StatusCode::kBusy, "{} requests are running or waiting, which is the limit", most);
    }
    impl.num_outstanding.fetch_add(1);
  }
  // The sequence's own memory and the drafter's take time with the length of the prompt, so they are made
  // outside the lock.
  std::unique_ptr<Drafter> drafter = make_drafter(impl.options, impl.sessions.get(), request);
  const bool wants_computed = request.draft;
  std::unique_ptr<Sequence> sequence = make_sequence(std::move(request), std::move(sink), impl.limits,
                                                     impl.model->tokenizer, *impl.pool, *impl.slots);
  sequence->drafts.num_shown = sequence->num_prompt_tokens;
  sequence->drafts.drafter = std::move(drafter);
  sequence->drafts.computed.is_wanted = wants_computed;
  if (impl.sessions != nullptr && sequence->session)
    impl.sessions->add_prompt(*sequence->session, sequence->tokens);
  RequestId id;
  {
    const std::lock_guard lock(impl.mutex);
    id = sequence->id = impl.shared.next_id++;
    impl.shared.submitted.push_back(std::move(sequence));
  }
  impl.wake.notify_one();
  return id;
}

void Engine::cancel(RequestId id) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->shared.cancelled.push_back(id);
  }
  impl_->wake.notify_one();
}

EngineStats Engine::stats() const {
  SessionCorpusStats sessions;
  if (impl_->sessions != nullptr) sessions = impl_->sessions->stats();
  const std::lock_guard lock(impl_->mutex);
  EngineStats stats = impl_->shared.stats;
  stats.sessions = sessions.sessions;
  stats.session_tokens = sessions.tokens;
  return stats;
}

int64_t Engine::context_tokens() const { return impl_->limits.context_tokens; }

const LoadedModel& Engine::model() const { return *impl_->model; }

}  // namespace tensorfold
