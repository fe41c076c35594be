// A bounded memory of the words encoded so far and their ids. Words repeat: English text finds 19 of 20 here.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "base/hash.h"

namespace tensorfold {

/// Direct-mapped: a new word takes the place of the one that was there. Entries fill a cache line each, so
/// that a hit costs one miss; 32768 of them are 2 MB. One thread at a time.
class BpeCache {
 public:
  static constexpr size_t kMaxWordBytes = 16;
  static constexpr size_t kMaxIds = 11;

  /// A word's bytes as two integers and its length; equal exactly for equal words of at most kMaxWordBytes.
  struct Key {
    uint64_t head = 0, tail = 0;
    uint8_t num_bytes = 0;
  };
  /// Requires 1 <= word.size() <= kMaxWordBytes. Reads no byte beside the word.
  static Key key_of(std::string_view word) {
    const char* p = word.data();
    const size_t n = word.size();
    Key key{0, 0, static_cast<uint8_t>(n)};
    if (n >= 8) {
      std::memcpy(&key.head, p, 8);
      std::memcpy(&key.tail, p + n - 8, 8);
    } else if (n >= 4) {
      uint32_t head, tail;
      std::memcpy(&head, p, 4);
      std::memcpy(&tail, p + n - 4, 4);
      key.head = uint64_t{head} << 32 | tail;
    } else {
      const auto byte = [p](size_t i) { return static_cast<uint64_t>(static_cast<unsigned char>(p[i])); };
      key.head = byte(0) << 16 | byte(n / 2) << 8 | byte(n - 1);
    }
    return key;
  }

  /// The ids of a word; empty when it is not here (a word may have no ids: it is then not kept).
  std::span<const int32_t> find(const Key& key) const {
    const Entry& entry = entries_[slot_of(key)];
    const bool hit = entry.head == key.head && entry.tail == key.tail && entry.num_bytes == key.num_bytes;
    return {entry.ids.data(), hit ? entry.num_ids : size_t{0}};
  }
  void put(const Key& key, std::span<const int32_t> ids) {
    if (ids.empty() || ids.size() > kMaxIds) return;
    Entry& entry = entries_[slot_of(key)];
    entry.head = key.head;
    entry.tail = key.tail;
    entry.num_bytes = key.num_bytes;
    entry.num_ids = static_cast<uint8_t>(ids.size());
    std::copy(ids.begin(), ids.end(), entry.ids.begin());
  }

 private:
  static constexpr size_t kNumEntries = 1 << 15;
  struct Entry {
    uint64_t head = 0, tail = 0;
    uint8_t num_bytes = 0;  // 0: empty
    uint8_t num_ids = 0;
    std::array<int32_t, kMaxIds> ids{};
  };
  static_assert(sizeof(Entry) == 64, "an entry is a cache line");

  static size_t slot_of(const Key& key) {
    return mix64(key.head + 0x9e3779b97f4a7c15ull * (key.tail + key.num_bytes)) & (kNumEntries - 1);
  }

  std::vector<Entry> entries_ = std::vector<Entry>(kNumEntries);
};

}  // namespace tensorfold
