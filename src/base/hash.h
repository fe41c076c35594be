// The hashes whose values are part of replies or files: xxHash64 for bytes, a fixed mixer for counters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tensorfold {

/// XXH64 of the bytes with the seed. The same on every machine and version.
uint64_t hash_bytes(std::span<const std::byte> bytes, uint64_t seed = 0);

/// The finalizer of SplitMix64 (Steele, Lea & Flood 2014): a bijection whose output bits all depend on all input bits.
constexpr uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace tensorfold
