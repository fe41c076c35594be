// The launches of a pass as data: recorded while the model calls ops, then run, or compared with those of an earlier pass
// whose CUDA graph can be launched instead. Everything that changes from pass to pass of one shape lies in device memory
// that PassInputs fills, so two passes of one shape record the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "ops/cuda/linear.h"

namespace tensorfold::cuda {

class LaunchList {
 public:
  /// Appends kLaunch(stream, launch), a function of the kernels' side that takes plain data. Returns its place.
  template <auto kLaunch, class Launch>
  size_t add(const Launch& launch) {
    static_assert(std::is_trivially_copyable_v<Launch> && alignof(Launch) <= kAlignment);
    Launch plain = launch;
#if defined(__GNUC__) && !defined(__clang__)
    __builtin_clear_padding(&plain);  // else equal launches could differ
#endif
    return append(run_launch<kLaunch, Launch>, &plain, sizeof plain);
  }

  /// The launch that was added last, if it is one of kLaunch and not yet removed; else null. Valid until the next add().
  template <auto kLaunch, class Launch>
  const Launch* last() const {
    if (last_ == kNone) return nullptr;
    Header header;
    std::memcpy(&header, bytes_.data() + last_, sizeof header);
    if (header.run != run_launch<kLaunch, Launch>) return nullptr;
    return reinterpret_cast<const Launch*>(bytes_.data() + last_ + sizeof header);
  }
  /// Removes what last() gives. Which launch is then the last one is no longer known.
  void remove_last() {
    bytes_.resize(last_);
    last_ = kNone;
  }

  void run(Stream stream) const;
  void clear() {
    bytes_.clear();
    last_ = kNone;
  }
  bool empty() const { return bytes_.empty(); }
  uint64_t hash() const;
  friend bool operator==(const LaunchList& a, const LaunchList& b) { return a.bytes_ == b.bytes_; }

 private:
  using Run = void (*)(Stream, const std::byte*);
  static constexpr size_t kAlignment = 16, kNone = static_cast<size_t>(-1);
  struct alignas(kAlignment) Header {
    Run run;
    size_t bytes;  ///< Of the launch, padded to kAlignment.
  };
  template <auto kLaunch, class Launch>
  static void run_launch(Stream stream, const std::byte* at) {
    kLaunch(stream, *reinterpret_cast<const Launch*>(at));
  }
  size_t append(Run run, const void* launch, size_t bytes);

  size_t last_ = kNone;           ///< Where the last launch's header lies.
  std::vector<std::byte> bytes_;  ///< A header and its launch, again and again.
};

}  // namespace tensorfold::cuda
