// The texts and ids that tools/fixtures/tokenizer_cases.py hashed into the goldens, drawn the same way.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/tokenizer.h"

namespace tensorfold {

/// Numbers keyed by (seed, how many were drawn).
class Draws {
 public:
  explicit Draws(uint64_t seed);
  uint64_t below(uint64_t limit);

 private:
  uint64_t state_;
};

/// `fragments` and `ranges` of tests/golden/tokenizer/texts.json.
class RandomTexts {
 public:
  explicit RandomTexts(const Json& golden);
  std::string text(uint64_t seed, const std::vector<std::string>& added_tokens) const;
  /// Characters only, from the same ranges; for comparisons that need no tokenizer.
  std::string characters(uint64_t seed, int count) const;

 private:
  std::vector<std::string> fragments_;
  std::vector<std::pair<char32_t, char32_t>> ranges_;
};

std::string random_bytes(uint64_t seed);
std::vector<int32_t> random_ids(uint64_t seed, int32_t vocab_size);

/// XXH64 of a sequence of id lists and texts, each preceded by its length, as 16 hex digits.
class CaseHash {
 public:
  void add_ids(std::span<const int32_t> ids);
  void add_text(std::string_view text);
  std::string hex() const;

 private:
  std::string bytes_;
};

/// A file of tests/golden/tokenizer. Fails the test and returns null where it cannot be read.
Json read_tokenizer_golden(const std::string& name);

/// tokenizer.json and tokenizer_config.json of a published tokenizer in ../shared/data. Fails the test and
/// returns empty strings where they are missing.
struct PublishedTokenizer {
  std::string json, config_json;
};
PublishedTokenizer read_published_tokenizer(const std::string& name);

/// The contents of the added tokens of a tokenizer.json, by id.
std::vector<std::string> added_token_contents(const std::string& tokenizer_json);

}  // namespace tensorfold
