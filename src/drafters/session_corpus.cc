// See session_corpus.h.
#include "drafters/session_corpus.h"

#include <algorithm>
#include <bit>

#include "base/hash.h"

namespace tensorfold {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int64_t kWindow = 16;
/// Tokens before a piece: what a search of the longer order compares, and some more.
constexpr int64_t kLead = 8;
/// Shorter pieces are what templates write between turns; they would save no pass.
constexpr int64_t kMinPiece = 4;

/// Calls visit(end, hash) for the position after each run of kWindow tokens. The hash is a polynomial over
/// the tokens, kept up to date from one run to the next.
template <class Visit>
void for_each_window(std::span<const int32_t> tokens, Visit visit) {
  constexpr uint64_t kBase = 0x9e3779b97f4a7c15ull;
  uint64_t leaving = 1;  // the weight of the token that leaves: kBase^kWindow
  for (int64_t i = 0; i < kWindow; ++i) leaving *= kBase;
  const auto value = [&](int64_t i) { return static_cast<uint64_t>(tokens[static_cast<size_t>(i)]) + 1; };
  uint64_t sum = 0;
  for (int64_t i = 0; i < std::ssize(tokens); ++i) {
    sum = sum * kBase + value(i);
    if (i >= kWindow) sum -= leaving * value(i - kWindow);
    if (i >= kWindow - 1) visit(i + 1, mix64(sum) | 1);
  }
}

/// Hashes of the runs of a text, none of them 0.
class WindowSet {
 public:
  explicit WindowSet(int64_t num_tokens)
      : slots_(std::bit_ceil(static_cast<size_t>(2 * num_tokens + 2)), 0) {}

  void add(std::span<const int32_t> tokens) {
    for_each_window(tokens, [this](int64_t, uint64_t hash) { slots_[slot_of(hash)] = hash; });
  }
  bool has(uint64_t hash) const { return slots_[slot_of(hash)] == hash; }

 private:
  /// Where the hash is or would be. Half of the slots stay empty.
  size_t slot_of(uint64_t hash) const {
    size_t slot = (hash >> 1) & (slots_.size() - 1);
    while (slots_[slot] != 0 && slots_[slot] != hash) slot = (slot + 1) & (slots_.size() - 1);
    return slot;
  }

  std::vector<uint64_t> slots_;
};

/// Appends the pieces of `text` that lie in no run of `known`.
void append_unknown(std::span<const int32_t> text, const WindowSet& known, std::vector<Tokens>& pieces) {
  int64_t unknown_from = 0;  // the end of the last known run
  const auto close = [&](int64_t end) {
    if (end - unknown_from < kMinPiece) return;
    const int64_t start = std::max<int64_t>(0, unknown_from - kLead);
    pieces.emplace_back(text.begin() + start, text.begin() + end);
  };
  for_each_window(text, [&](int64_t end, uint64_t hash) {
    if (!known.has(hash)) return;
    close(end - kWindow);
    unknown_from = end;
  });
  close(std::ssize(text));
}

}  // namespace

std::vector<Tokens> SessionCorpus::texts_beside(SessionKey key, std::span<const int32_t> prompt) {
  const std::vector<Text> texts = texts_of(key);
  std::vector<Tokens> pieces;
  if (texts.empty()) return pieces;
  WindowSet known(std::ssize(prompt));
  known.add(prompt);
  for (const Text& text : texts) append_unknown(*text, known, pieces);
  return pieces;
}

void SessionCorpus::add_prompt(SessionKey key, std::span<const int32_t> prompt) {
  const std::vector<Text> texts = texts_of(key);
  int64_t num_tokens = 0;
  for (const Text& text : texts) num_tokens += std::ssize(*text);
  WindowSet known(num_tokens);
  for (const Text& text : texts) known.add(*text);
  std::vector<Tokens> pieces;
  append_unknown(prompt, known, pieces);
  for (const Tokens& piece : pieces) add(key, piece);
}

void SessionCorpus::add(SessionKey key, std::span<const int32_t> text) {
  const int64_t longest = options_.max_session_tokens / 2;
  const auto kept = static_cast<size_t>(std::min(std::ssize(text), longest));
  if (kept == 0) return;
  const auto copy =
      std::make_shared<const Tokens>(text.end() - static_cast<std::ptrdiff_t>(kept), text.end());
  const std::lock_guard lock(mutex_);
  Session& session = use(key);
  const int64_t cost = std::ssize(*copy) + SessionCorpusOptions::kTextCost;
  session.texts.push_back(copy);
  session.cost += cost;
  cost_ += cost;
  num_tokens_ += std::ssize(*copy);
  trim(session);
}

SessionCorpusStats SessionCorpus::stats() const {
  const std::lock_guard lock(mutex_);
  return {.sessions = std::ssize(sessions_), .tokens = num_tokens_};
}

/// The session, made where there is none, is now the most recently used one.
SessionCorpus::Session& SessionCorpus::use(SessionKey key) {
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    sessions_.splice(sessions_.begin(), sessions_, found->second);
  } else {
    sessions_.push_front({.key = key, .texts = {}, .cost = SessionCorpusOptions::kSessionCost});
    by_key_[key] = sessions_.begin();
    cost_ += SessionCorpusOptions::kSessionCost;
  }
  return sessions_.front();
}

/// Brings the most recently used session, and all of them together, within the limits.
void SessionCorpus::trim(Session& session) {
  while (session.cost > options_.max_session_tokens && !session.texts.empty()) drop_oldest_text(session);
  while (cost_ > options_.max_tokens && !sessions_.empty()) {
    Session& last = sessions_.back();
    while (!last.texts.empty()) drop_oldest_text(last);
    cost_ -= last.cost;
    by_key_.erase(last.key);
    sessions_.pop_back();
  }
}

void SessionCorpus::drop_oldest_text(Session& session) {
  const int64_t num_tokens = std::ssize(*session.texts.front());
  session.texts.pop_front();
  session.cost -= num_tokens + SessionCorpusOptions::kTextCost;
  cost_ -= num_tokens + SessionCorpusOptions::kTextCost;
  num_tokens_ -= num_tokens;
}

std::vector<SessionCorpus::Text> SessionCorpus::texts_of(SessionKey key) {
  const std::lock_guard lock(mutex_);
  if (!by_key_.contains(key)) return {};
  const Session& session = use(key);
  return {session.texts.begin(), session.texts.end()};
}

}  // namespace tensorfold
