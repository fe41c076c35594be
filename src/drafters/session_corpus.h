// What the earlier turns of a conversation said, for prompt lookup to search beside the prompt: reasoning and
// calls that clients leave out of the history they send back, and text that they have cut from it since.
// Which requests are turns of one conversation is for others to say; here a session is a key.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

namespace tensorfold {

/// Requests of one key see each other's texts, in their speed only.
using SessionKey = uint64_t;

/// Limits, in tokens of 4 bytes. A session counts kSessionCost more and each of its texts kTextCost, so that
/// many small ones are bounded too.
struct SessionCorpusOptions {
  static constexpr int64_t kSessionCost = 64, kTextCost = 16;
  int64_t max_tokens = int64_t{1} << 20;  ///< Of all sessions: then the least recently used goes.
  /// Of one session: then its oldest texts go. A text longer than half of it keeps its end. Bounds what
  /// each of its requests has to index.
  int64_t max_session_tokens = int64_t{1} << 16;
};

struct SessionCorpusStats {
  int64_t sessions = 0;
  int64_t tokens = 0;  ///< Of the texts alone.
};

/// Texts are told apart by their runs of 16 tokens: a run that both have is one that they share. Thread-safe;
/// the comparisons are made outside the lock.
class SessionCorpus {
 public:
  explicit SessionCorpus(const SessionCorpusOptions& options = {}) : options_(options) {}

  /// What the session's texts have and `prompt` has not, oldest first, each piece with a few tokens before it
  /// that lead there. A use of the session.
  std::vector<std::vector<int32_t>> texts_beside(SessionKey key, std::span<const int32_t> prompt);

  /// Adds what `prompt` has and the session's texts have not.
  void add_prompt(SessionKey key, std::span<const int32_t> prompt);

  /// Adds a text as it is, in time of its copy. An empty one is none.
  void add(SessionKey key, std::span<const int32_t> text);

  SessionCorpusStats stats() const;

 private:
  using Text = std::shared_ptr<const std::vector<int32_t>>;
  struct Session {
    SessionKey key = 0;
    std::list<Text> texts;  ///< Oldest first.
    int64_t cost = 0;       ///< As SessionCorpusOptions counts.
  };

  // With mutex_ held.
  Session& use(SessionKey key);
  void trim(Session& session);
  void drop_oldest_text(Session& session);
  std::vector<Text> texts_of(SessionKey key);

  const SessionCorpusOptions options_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::list<Session> sessions_;  ///< Most recently used first.
  std::unordered_map<SessionKey, std::list<Session>::iterator> by_key_;
  int64_t cost_ = 0;        ///< Of all sessions.
  int64_t num_tokens_ = 0;  ///< Of all texts.
};

}  // namespace tensorfold
