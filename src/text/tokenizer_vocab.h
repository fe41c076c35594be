// The vocabulary of a model: token strings and ids, both ways.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace tensorfold {

/// Largest id a file may use. Real vocabularies have some 300,000 tokens; the bound keeps tables indexed by
/// id small (32 MB) whatever a file says.
constexpr int64_t kMaxTokenId = (1 << 22) - 1;

/// Strings are kept in one block; the table is open-addressed and half empty. Immutable once built; any
/// number of threads.
class TokenizerVocab {
 public:
  /// From {"token": id, ...}. `component` begins the messages.
  static Result<TokenizerVocab> parse(const Json& json, std::string_view component);

  std::optional<int32_t> find(std::string_view token) const;
  /// The token of an id, or nullopt. Of several tokens with one id, the last in the file.
  std::optional<std::string_view> token(int32_t id) const;

  int64_t num_tokens() const { return static_cast<int64_t>(entries_.size()); }
  /// Largest id + 1; 0 for an empty vocabulary.
  int32_t id_limit() const { return static_cast<int32_t>(entry_of_id_.size()); }
  /// No two tokens share an id.
  bool has_unique_ids() const { return has_unique_ids_; }

  /// All tokens, in the order of the file.
  size_t size() const { return entries_.size(); }
  std::string_view token_at(size_t index) const {
    return std::string_view(pool_).substr(entries_[index].offset, entries_[index].num_bytes);
  }

 private:
  struct Entry {
    uint32_t offset, num_bytes;  // in pool_
    int32_t id;
  };
  static constexpr uint32_t kEmpty = UINT32_MAX;

  size_t slot_of(std::string_view token) const;  // its own, or the empty one where it would go

  std::string pool_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> slots_;        // index into entries_, or kEmpty; size a power of two
  std::vector<uint32_t> entry_of_id_;  // index into entries_, or kEmpty
  bool has_unique_ids_ = true;
};

/// A number that differs between runs of the program, so that no file can be made whose keys collide in a
/// hash table.
uint64_t tokenizer_hash_seed();

}  // namespace tensorfold
