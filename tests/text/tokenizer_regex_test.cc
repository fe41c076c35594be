// Patterns match as Oniguruma matches them (tools/fixtures/tokenizer_regex.py), and the hand-written scanners
// cut as their patterns do.
#include "text/tokenizer_regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/text/tokenizer_cases.h"
#include "text/pre_tokenizer_scanner.h"

namespace tensorfold {
namespace {

/// What Split(Isolated) makes of a text: matches and the gaps between them, none empty.
std::vector<TextRange> isolate(const TokenizerRegex& regex, std::string_view text) {
  std::vector<TextRange> matches, pieces;
  regex.find_all(text, matches);
  size_t done = 0;
  for (const TextRange& match : matches) {
    if (match.begin > done) pieces.push_back({done, match.begin});
    if (match.size() > 0) pieces.push_back(match);
    done = match.end;
  }
  if (done < text.size()) pieces.push_back({done, text.size()});
  return pieces;
}

std::string joined(std::string_view text, const std::vector<TextRange>& pieces) {
  std::string out;
  for (const TextRange& piece : pieces) {
    if (!out.empty()) out += "\ue000";
    out += text.substr(piece.begin, piece.size());
  }
  return out;
}

TEST(TokenizerRegexTest, MatchesAsOnigurumaDoes) {
  const Json golden = read_tokenizer_golden("regex");
  ASSERT_TRUE(golden.is_object());
  const Json::Array& texts = golden.find("texts")->as_array();
  int num_supported = 0;
  for (const Json& row : golden.find("patterns")->as_array()) {
    const std::string& pattern = row.as_array()[0].as_string();
    const Json::Array& pieces = row.as_array()[1].as_array();
    SCOPED_TRACE("pattern " + pattern);
    const Result<TokenizerRegex> regex = TokenizerRegex::compile(pattern);
    if (!regex.ok()) {
      // What cannot be done exactly is refused, never done otherwise.
      EXPECT_EQ(regex.status().code(), StatusCode::kUnsupported) << regex.status().message();
      continue;
    }
    ++num_supported;
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::string& text = texts[i].as_string();
      const std::string& expected = pieces[i].is_int() ? text : pieces[i].as_string();
      EXPECT_EQ(joined(text, isolate(*regex, text)), expected) << "text '" << text << "'";
    }
  }
  EXPECT_GE(num_supported, 110);
}

TEST(TokenizerRegexTest, MalformedPatternsAreRefusedWithTheirText) {
  const Json golden = read_tokenizer_golden("regex");
  ASSERT_TRUE(golden.is_object());
  for (const Json& pattern : golden.find("refused")->as_array()) {
    const Result<TokenizerRegex> regex = TokenizerRegex::compile(pattern.as_string());
    ASSERT_FALSE(regex.ok()) << pattern.as_string();
    EXPECT_THAT(regex.status().message(), testing::HasSubstr("pattern '" + pattern.as_string() + "'"));
  }
}

TEST(TokenizerRegexTest, EndlessBacktrackingStopsAtALimit) {
  const Result<TokenizerRegex> regex = TokenizerRegex::compile("(?:a|a)*b");
  ASSERT_TRUE(regex.ok());
  std::vector<TextRange> matches;
  regex->find_all("ab" + std::string(5000, 'a'), matches);
  EXPECT_THAT(matches, testing::ElementsAre(TextRange{0, 2}));
}

TEST(TokenizerRegexTest, APatternThatNeedsMuchStackStillMatches) {
  const Result<TokenizerRegex> regex = TokenizerRegex::compile("(?:(?:a|b)(?:a|b))*c");
  ASSERT_TRUE(regex.ok());
  const std::string text = std::string(20000, 'a') + "c";
  std::vector<TextRange> matches;
  regex->find_all(text, matches);
  EXPECT_THAT(matches, testing::ElementsAre(TextRange{0, text.size()}));
}

class ScannerTest : public testing::TestWithParam<std::string> {};

TEST_P(ScannerTest, CutsAsItsPatternDoes) {
  const Json golden = read_tokenizer_golden("texts");
  ASSERT_TRUE(golden.is_object());
  const RandomTexts random(golden);
  const auto scanner = find_scanner(GetParam());
  ASSERT_NE(scanner, nullptr);
  const Result<TokenizerRegex> regex = TokenizerRegex::compile(GetParam());
  ASSERT_TRUE(regex.ok()) << regex.status().message();
  std::vector<std::string> texts;
  for (const Json& text : golden.find("texts")->as_array()) texts.push_back(text.as_string());
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    texts.push_back(random.text(seed, {}));
    texts.push_back(random.characters(seed, 1 + seed % 30));
  }
  for (const std::string& text : texts) {
    std::vector<TextRange> pieces;
    scanner->scan(text, {0, text.size()}, pieces);
    ASSERT_EQ(pieces, isolate(*regex, text)) << "text '" << text << "'";
  }
}

TEST_P(ScannerTest, SeesNothingOutsideItsRange) {
  const auto scanner = find_scanner(GetParam());
  ASSERT_NE(scanner, nullptr);
  const std::string inside = "'s a1 \u6f22  ";
  std::vector<TextRange> alone, surrounded;
  scanner->scan(inside, {0, inside.size()}, alone);
  const std::string text = "x'" + inside + "\n\nxs";
  scanner->scan(text, {2, 2 + inside.size()}, surrounded);
  for (TextRange& piece : alone) piece = {piece.begin + 2, piece.end + 2};
  EXPECT_EQ(surrounded, alone);
}

INSTANTIATE_TEST_SUITE_P(All, ScannerTest, testing::ValuesIn(scanner_patterns()));

}  // namespace
}  // namespace tensorfold
