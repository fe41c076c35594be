// xxHash behind base/hash.h.
#include "base/hash.h"

#include <xxhash.h>

namespace tensorfold {

uint64_t hash_bytes(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH64(bytes.data(), bytes.size(), seed);
}

}  // namespace tensorfold
