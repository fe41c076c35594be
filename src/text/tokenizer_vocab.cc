// text/tokenizer_vocab.h
#include "text/tokenizer_vocab.h"

#include <algorithm>
#include <bit>
#include <random>

#include "base/hash.h"

namespace tensorfold {

uint64_t tokenizer_hash_seed() {
  static const uint64_t kSeed = mix64(uint64_t{std::random_device{}()} << 32 | std::random_device{}());
  return kSeed;
}

Result<TokenizerVocab> TokenizerVocab::parse(const Json& json, std::string_view component) {
  if (!json.is_object()) return corrupt("{}: is {}, expected an object", component, json.kind_name());
  const Json::Object& members = json.as_object();
  TokenizerVocab vocab;
  size_t num_bytes = 0;
  for (const Json::Member& member : members) num_bytes += member.first.size();
  if (num_bytes >= UINT32_MAX) return unsupported("{}: the tokens have more than 4 GB", component);
  vocab.pool_.reserve(num_bytes);
  vocab.entries_.reserve(members.size());
  vocab.slots_.assign(std::bit_ceil(2 * members.size() + 1), kEmpty);
  for (const auto& [token, id] : members) {
    if (!id.is_int() || id.as_int() < 0)
      return corrupt("{}: the id of '{}' is not an integer from 0 up", component, token);
    if (id.as_int() > kMaxTokenId) {
      return unsupported("{}: '{}' has id {}, the limit is {}", component, token, id.as_int(), kMaxTokenId);
    }
    const auto index = static_cast<uint32_t>(vocab.entries_.size());
    vocab.entries_.push_back({static_cast<uint32_t>(vocab.pool_.size()), static_cast<uint32_t>(token.size()),
                              static_cast<int32_t>(id.as_int())});
    vocab.pool_ += token;
    vocab.slots_[vocab.slot_of(token)] = index;  // Json has no duplicate keys.
    const auto place = static_cast<size_t>(id.as_int());
    if (vocab.entry_of_id_.size() <= place) vocab.entry_of_id_.resize(place + 1, kEmpty);
    if (vocab.entry_of_id_[place] != kEmpty) vocab.has_unique_ids_ = false;
    vocab.entry_of_id_[place] = index;
  }
  return vocab;
}

size_t TokenizerVocab::slot_of(std::string_view token) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = hash_bytes(std::as_bytes(std::span(token)), tokenizer_hash_seed()) & mask;
  while (slots_[slot] != kEmpty && token_at(slots_[slot]) != token) slot = (slot + 1) & mask;
  return slot;
}

std::optional<int32_t> TokenizerVocab::find(std::string_view token) const {
  if (slots_.empty()) return std::nullopt;
  const uint32_t index = slots_[slot_of(token)];
  return index == kEmpty ? std::nullopt : std::optional(entries_[index].id);
}

std::optional<std::string_view> TokenizerVocab::token(int32_t id) const {
  if (id < 0 || id >= id_limit() || entry_of_id_[id] == kEmpty) return std::nullopt;
  return token_at(entry_of_id_[id]);
}

}  // namespace tensorfold
