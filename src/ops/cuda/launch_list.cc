// See launch_list.h.
#include "ops/cuda/launch_list.h"

#include "base/hash.h"

namespace tensorfold::cuda {

void LaunchList::append(Run run, const void* launch, size_t bytes) {
  const Header header{run, (bytes + kAlignment - 1) / kAlignment * kAlignment};
  ++size_, last_ = run;
  const size_t at = bytes_.size();
  bytes_.resize(at + sizeof header + header.bytes);
  std::memcpy(bytes_.data() + at, &header, sizeof header);
  std::memcpy(bytes_.data() + at + sizeof header, launch, bytes);
}

void LaunchList::run(Stream stream) const {
  for (size_t at = 0; at < bytes_.size();) {
    Header header;
    std::memcpy(&header, bytes_.data() + at, sizeof header);
    header.run(stream, bytes_.data() + at + sizeof header);
    at += sizeof header + header.bytes;
  }
}

uint64_t LaunchList::hash() const { return hash_bytes(bytes_); }

}  // namespace tensorfold::cuda
