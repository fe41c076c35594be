// What a session shows beside a prompt, against its definition by brute force, and its bounds.
#include "drafters/session_corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

#include "base/hash.h"

namespace tensorfold {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Tokens = std::vector<int32_t>;

constexpr int64_t kSessionCost = SessionCorpusOptions::kSessionCost,
                  kTextCost = SessionCorpusOptions::kTextCost;

/// Tokens that no other seed has.
Tokens text(int32_t seed, int64_t count) {
  Tokens tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(seed * 100'000 + i);
  return tokens;
}

Tokens joined(const std::vector<Tokens>& parts) {
  Tokens all;
  for (const Tokens& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Tokens part(const Tokens& tokens, int64_t from, int64_t to) {
  return {tokens.begin() + from, tokens.begin() + to};
}

TEST(SessionCorpus, ShowsWhatTheHistoryLeavesOut) {
  SessionCorpus corpus;
  const Tokens question = text(1, 50), reasoning = text(2, 40), answer = text(3, 30), more = text(4, 20);
  corpus.add_prompt(7, question);
  corpus.add(7, joined({reasoning, answer}));
  EXPECT_THAT(corpus.texts_beside(7, joined({question, answer, more})), ElementsAre(reasoning));
  // In the middle of a text: with 8 tokens that lead to it.
  corpus.add(8, joined({question, reasoning, answer}));
  EXPECT_THAT(corpus.texts_beside(8, joined({question, answer, more})),
              ElementsAre(joined({part(question, 42, 50), reasoning})));
  EXPECT_THAT(corpus.texts_beside(8, joined({question, reasoning, answer})), IsEmpty());
}

TEST(SessionCorpus, KeepsWhatLaterPromptsHaveLost) {
  SessionCorpus corpus;
  const Tokens first = text(1, 50), tool = text(2, 100), next = text(3, 30);
  corpus.add_prompt(7, first);
  corpus.add_prompt(7, joined({first, tool}));
  EXPECT_EQ(corpus.stats().tokens, 50 + 8 + 100) << "what the session has is not added again";
  EXPECT_THAT(corpus.texts_beside(7, joined({first, next})),
              ElementsAre(joined({part(first, 42, 50), tool})));
}

TEST(SessionCorpus, SessionsSeeNothingOfEachOther) {
  SessionCorpus corpus;
  corpus.add(7, text(1, 50));
  corpus.add_prompt(8, text(2, 50));
  EXPECT_THAT(corpus.texts_beside(9, text(3, 50)), IsEmpty());
  EXPECT_THAT(corpus.texts_beside(8, text(3, 50)), ElementsAre(text(2, 50)));
  EXPECT_EQ(corpus.stats().sessions, 2) << "asking makes none";
}

TEST(SessionCorpus, PiecesAreThoseInNoRunThatThePromptHas) {
  int64_t num_pieces = 0, num_shared = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    // Random tokens, with pieces of the text in the prompt.
    Tokens said, prompt;
    for (uint64_t i = 0; i < 300; ++i) said.push_back(static_cast<int32_t>(mix64(seed * 1000 + i) % 50));
    for (uint64_t i = 0; std::ssize(prompt) < 300; ++i) {
      const uint64_t word = mix64(seed ^ mix64(i));
      const auto from = static_cast<int64_t>(word % 270);
      const auto count = static_cast<int64_t>((word >> 20) % 30);
      prompt = joined({prompt, part(said, from, from + count), {static_cast<int32_t>(word >> 40 & 63)}});
    }
    std::set<Tokens> runs;
    for (int64_t i = 0; i + 16 <= std::ssize(prompt); ++i) runs.insert(part(prompt, i, i + 16));
    std::vector<bool> known(said.size(), false);
    for (int64_t i = 0; i + 16 <= std::ssize(said); ++i)
      if (runs.contains(part(said, i, i + 16))) std::fill_n(known.begin() + i, 16, true);
    std::vector<Tokens> expected;
    for (int64_t from = 0, to; from < std::ssize(said); from = to + 1) {
      to = std::find(known.begin() + from, known.end(), true) - known.begin();
      if (to - from >= 4) expected.push_back(part(said, std::max<int64_t>(0, from - 8), to));
    }
    SessionCorpus corpus;
    corpus.add(7, said);
    ASSERT_EQ(corpus.texts_beside(7, prompt), expected) << "seed " << seed;
    num_pieces += std::ssize(expected);
    num_shared += std::ranges::count(known, true);
  }
  EXPECT_GT(num_pieces, 100);
  EXPECT_GT(num_shared, 1000);
}

TEST(SessionCorpus, ASessionForgetsItsOldestTexts) {
  SessionCorpus corpus({.max_session_tokens = kSessionCost + 3 * (100 + kTextCost)});
  for (int32_t i = 1; i <= 4; ++i) corpus.add(7, text(i, 100));
  EXPECT_EQ(corpus.stats().tokens, 300);
  EXPECT_THAT(corpus.texts_beside(7, {}), ElementsAre(text(2, 100), text(3, 100), text(4, 100)));
  // A long text keeps its end, and leaves room for others.
  corpus.add(7, text(9, 1000));
  const std::vector<Tokens> texts = corpus.texts_beside(7, {});
  ASSERT_EQ(texts.size(), 2u);
  EXPECT_EQ(texts[0], text(4, 100));
  EXPECT_EQ(texts[1], part(text(9, 1000), 1000 - (kSessionCost + 3 * (100 + kTextCost)) / 2, 1000));
}

TEST(SessionCorpus, TheLeastRecentlyUsedSessionGoesFirst) {
  const int64_t cost = kSessionCost + 100 + kTextCost;
  SessionCorpus corpus({.max_tokens = 3 * cost});
  for (int32_t key = 1; key <= 3; ++key) corpus.add(static_cast<SessionKey>(key), text(key, 100));
  corpus.texts_beside(1, {});
  corpus.add(4, text(4, 100));
  EXPECT_EQ(corpus.stats().sessions, 3);
  EXPECT_EQ(corpus.stats().tokens, 300);
  EXPECT_THAT(corpus.texts_beside(2, {}), IsEmpty());
  for (const int32_t key : {1, 3, 4})
    EXPECT_THAT(corpus.texts_beside(static_cast<SessionKey>(key), {}), ElementsAre(text(key, 100)));
}

TEST(SessionCorpus, ManySmallSessionsAreBoundedToo) {
  SessionCorpus corpus({.max_tokens = 1000});
  for (SessionKey key = 0; key < 10'000; ++key) corpus.add(key, text(1, 1));
  EXPECT_EQ(corpus.stats().sessions, 1000 / (kSessionCost + kTextCost + 1));
  SessionCorpus nothing({.max_tokens = 10, .max_session_tokens = 10});
  nothing.add(1, text(1, 100));
  EXPECT_EQ(nothing.stats().sessions, 0);
  EXPECT_EQ(nothing.stats().tokens, 0);
  SessionCorpus empty;
  empty.add(1, {});
  empty.add_prompt(1, {});
  EXPECT_EQ(empty.stats().sessions, 0);
}

TEST(SessionCorpus, ManyThreadsMayUseIt) {
  SessionCorpus corpus({.max_tokens = 5000, .max_session_tokens = 1000});
  std::vector<std::thread> threads;
  for (int32_t t = 0; t < 4; ++t)
    threads.emplace_back([&corpus, t] {
      for (int32_t i = 0; i < 300; ++i) {
        const auto key = static_cast<SessionKey>((t + i) % 9);
        corpus.add(key, text(i % 7, 60));
        corpus.add_prompt(key, text(i % 11, 90));
        for (const Tokens& piece : corpus.texts_beside(key, text(i % 5, 80))) EXPECT_FALSE(piece.empty());
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(corpus.stats().tokens, 5000);
  EXPECT_GT(corpus.stats().sessions, 0);
}

}  // namespace
}  // namespace tensorfold
