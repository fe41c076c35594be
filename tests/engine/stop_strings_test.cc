// Stop strings: what is visible is a function of the text, not of how it was cut into pieces.
#include "engine/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

namespace tensorfold {
namespace {

struct Reply {
  std::string text;
  bool matched = false;
  bool operator==(const Reply&) const = default;
};

/// The definition: the stop string whose last byte comes first, of those that end there the longest.
Reply definition(const std::string& text, const std::vector<std::string>& stop) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& s : stop) {
      if (end >= s.size() && text.compare(end - s.size(), s.size(), s) == 0)
        longest = std::max(longest, s.size());
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

/// The longest suffix of text that begins a stop string without being one.
size_t must_hold(const std::string& text, const std::vector<std::string>& stop) {
  size_t longest = 0;
  for (const std::string& s : stop) {
    for (size_t n = 1; n < s.size() && n <= text.size(); ++n) {
      if (text.compare(text.size() - n, n, s, 0, n) == 0) longest = std::max(longest, n);
    }
  }
  return longest;
}

/// Pushes the text in pieces: bit i of `cuts` cuts after byte i.
Reply run(const std::string& text, uint64_t cuts, const std::vector<std::string>& stop) {
  StopStrings search(stop);
  Reply reply;
  std::string seen;
  size_t start = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (i + 1 < text.size() && (cuts >> i & 1) == 0) continue;
    const std::string piece = text.substr(start, i + 1 - start);
    start = i + 1;
    reply.text += search.push(piece);
    if (search.matched()) continue;
    seen += piece;
    EXPECT_EQ(reply.text.size(), seen.size() - must_hold(seen, stop)) << "text is held back that need not be";
  }
  reply.text += search.finish();
  reply.matched = search.matched();
  return reply;
}

void expect_same_for_every_cut(const std::string& text, const std::vector<std::string>& stop) {
  const Reply expected = definition(text, stop);
  const uint64_t num_cuts = uint64_t{1} << (text.size() - 1);
  for (uint64_t cuts = 0; cuts < num_cuts; ++cuts) {
    const Reply found = run(text, cuts, stop);
    ASSERT_EQ(found.text, expected.text) << text << " cut " << cuts;
    ASSERT_EQ(found.matched, expected.matched) << text << " cut " << cuts;
  }
}

TEST(StopStrings, EveryCutGivesTheSameReply) {
  expect_same_for_every_cut("hello STOP more", {"STOP"});
  expect_same_for_every_cut("a STOSTOP b", {"STOP"});
  expect_same_for_every_cut("ababababc", {"ababc"});
  expect_same_for_every_cut("one two three", {"xyz", "three four"});
  expect_same_for_every_cut("a\n\nb\n\n\nc", {"\n\n\n", "c"});
  expect_same_for_every_cut("gr\xc3\xbc\xc3\x9f\x65 \xe2\x82\xac!", {"\xe2\x82\xac"});
}

TEST(StopStrings, AnInnerStringThatEndsFirstWins) {
  expect_same_for_every_cut("xabcdy", {"abcd", "bc"});
  EXPECT_EQ(run("xabcdy", 0, {"abcd", "bc"}).text, "xa");
}

TEST(StopStrings, OfStringsThatEndTogetherTheLongestWins) {
  expect_same_for_every_cut("xxabcyy", {"bc", "abc", "c"});
  EXPECT_EQ(run("xxabcyy", ~uint64_t{0}, {"bc", "abc"}).text, "xx");
}

TEST(StopStrings, ASuffixOfALongerCandidateIsStillFound) {
  // "abab" fails at 'd', but its suffix "b" + "d" is a stop string of its own.
  expect_same_for_every_cut("zabababdz", {"ababc", "bd"});
  EXPECT_EQ(run("zabababdz", ~uint64_t{0}, {"ababc", "bd"}).text, "zababa");
}

TEST(StopStrings, RandomTextsFollowTheDefinitionForEveryCut) {
  std::mt19937 random(20240817);  // two letters, so that prefixes repeat and overlap
  const auto word = [&](size_t length) {
    std::string s;
    for (size_t i = 0; i < length; ++i) s += "ab"[random() % 2];
    return s;
  };
  int num_matched = 0;
  for (int i = 0; i < 300; ++i) {
    std::vector<std::string> stop;
    for (uint32_t n = random() % 3 + 1; n > 0; --n) stop.push_back(word(random() % 5 + 1));
    const std::string text = word(9);
    expect_same_for_every_cut(text, stop);
    num_matched += definition(text, stop).matched;
  }
  EXPECT_GT(num_matched, 50);
  EXPECT_LT(num_matched, 290);
}

TEST(StopStrings, NothingIsVisibleAfterAMatch) {
  StopStrings search(std::vector<std::string>{"."});
  EXPECT_EQ(search.push("one."), "one");
  EXPECT_TRUE(search.matched());
  EXPECT_EQ(search.push("two."), "");
  EXPECT_EQ(search.finish(), "");
}

TEST(StopStrings, WithoutStringsTextPassesThrough) {
  StopStrings search({});
  EXPECT_EQ(search.push("one."), "one.");
  EXPECT_EQ(search.finish(), "");
  EXPECT_FALSE(search.matched());
}

}  // namespace
}  // namespace tensorfold
