// tests/text/tokenizer_cases.h
#include "tests/text/tokenizer_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/hash.h"
#include "tests/support/test_paths.h"
#include "tests/support/zstd_file.h"
#include "text/unicode.h"

namespace tensorfold {

Draws::Draws(uint64_t seed) : state_(mix64(seed + 1)) {}
uint64_t Draws::below(uint64_t limit) {
  state_ += 0x9e3779b97f4a7c15ull;
  return mix64(state_) % limit;
}

RandomTexts::RandomTexts(const Json& golden) {
  for (const Json& fragment : golden.find("fragments")->as_array())
    fragments_.push_back(fragment.as_string());
  for (const Json& range : golden.find("ranges")->as_array()) {
    ranges_.emplace_back(static_cast<char32_t>(range.as_array()[0].as_int()),
                         static_cast<char32_t>(range.as_array()[1].as_int()));
  }
}

std::string RandomTexts::text(uint64_t seed, const std::vector<std::string>& added_tokens) const {
  constexpr int kPieces[] = {1, 2, 3, 4, 5, 8, 12, 20};
  constexpr int kCharacters[] = {1, 1, 2, 3, 6};
  Draws draws(seed);
  std::string text;
  for (int left = kPieces[draws.below(8)]; left > 0; --left) {
    const uint64_t kind = draws.below(100);
    if (kind < 45) {
      text += fragments_[draws.below(fragments_.size())];
    } else if (kind < 85) {
      const auto [first, last] = ranges_[draws.below(ranges_.size())];
      for (int n = kCharacters[draws.below(5)]; n > 0; --n) {
        append_utf8(text, first + static_cast<char32_t>(draws.below(last - first + 1)));
      }
    } else if (kind < 93 && !added_tokens.empty()) {
      text += added_tokens[draws.below(added_tokens.size())];
    } else {
      const std::string& fragment = fragments_[draws.below(fragments_.size())];
      for (uint64_t n = 2 + draws.below(11); n > 0; --n) text += fragment;
    }
  }
  return text;
}

std::string RandomTexts::characters(uint64_t seed, int count) const {
  Draws draws(seed);
  std::string text;
  while (count-- > 0) {
    const auto [first, last] = ranges_[draws.below(ranges_.size())];
    append_utf8(text, first + static_cast<char32_t>(draws.below(last - first + 1)));
  }
  return text;
}

std::string random_bytes(uint64_t seed) {
  constexpr uint8_t kEdges[] = {0xe0, 0xed, 0xf0, 0xf4, 0x80, 0x9f, 0xa0, 0xbf};
  Draws draws(seed);
  std::string bytes;
  for (uint64_t left = 1 + draws.below(40); left > 0; --left) {
    switch (draws.below(4)) {
      case 0:
        bytes += static_cast<char>(0x80 + draws.below(0x40));
        break;
      case 1:
        bytes += static_cast<char>(0xc0 + draws.below(0x40));
        break;
      case 2:
        bytes += static_cast<char>(0x20 + draws.below(0x7f - 0x20));
        break;
      default:
        bytes += static_cast<char>(kEdges[draws.below(8)]);
    }
  }
  return bytes;
}

std::vector<int32_t> random_ids(uint64_t seed, int32_t vocab_size) {
  Draws draws(seed);
  std::vector<int32_t> ids;
  for (uint64_t left = 1 + draws.below(24); left > 0; --left) {
    const bool any = draws.below(2) == 1;
    ids.push_back(static_cast<int32_t>(draws.below(any ? vocab_size + 3 : std::min(1000, vocab_size))));
  }
  return ids;
}

namespace {
void append_u32(std::string& out, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(value >> shift);
}
}  // namespace

void CaseHash::add_ids(std::span<const int32_t> ids) {
  append_u32(bytes_, static_cast<uint32_t>(ids.size()));
  for (const int32_t id : ids) append_u32(bytes_, static_cast<uint32_t>(id));
}
void CaseHash::add_text(std::string_view text) {
  append_u32(bytes_, static_cast<uint32_t>(text.size()));
  bytes_ += text;
}
std::string CaseHash::hex() const {
  return fmt::format("{:016x}", hash_bytes(std::as_bytes(std::span(bytes_))));
}

Json read_tokenizer_golden(const std::string& name) {
  const std::string path = std::string(kSourceDir) + "/tests/golden/tokenizer/" + name + ".json";
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  const Result<Json> json = parse_json(text.str());
  EXPECT_TRUE(json.ok()) << path << ": " << json.status().message();
  return json.ok() ? *json : Json();
}

PublishedTokenizer read_published_tokenizer(const std::string& name) {
  PublishedTokenizer files;
  for (const auto& [file, content] :
       {std::pair("tokenizer.json", &files.json), std::pair("tokenizer_config.json", &files.config_json)}) {
    const Result<std::string> text =
        read_zstd_file(fmt::format("{}/tokenizers/{}/{}.zst", kSharedData, name, file));
    EXPECT_TRUE(text.ok()) << text.status().message();
    if (text.ok()) *content = *text;
  }
  return files;
}

std::vector<std::string> added_token_contents(const std::string& tokenizer_json) {
  const Result<Json> json = parse_json(tokenizer_json);
  std::vector<std::pair<int64_t, std::string>> tokens;
  if (json.ok()) {
    for (const Json& token : json->find("added_tokens")->as_array()) {
      tokens.emplace_back(token.find("id")->as_int(), token.find("content")->as_string());
    }
  }
  std::sort(tokens.begin(), tokens.end());
  std::vector<std::string> contents;
  for (auto& [id, content] : tokens) contents.push_back(std::move(content));
  return contents;
}

}  // namespace tensorfold
