// The launches of a pass, or of a part of one, as data: recorded while the model calls ops, then run, or
// compared with those of an earlier pass whose CUDA graph can be launched instead. Everything that changes
// from pass to pass of one shape lies in device memory that PassInputs fills, so two passes of one shape
// record the same bytes.
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
  /// Appends kLaunch(stream, launch), a function of the kernels' side that takes plain data.
  template <auto kLaunch, class Launch>
  void add(const Launch& launch) {
    static_assert(std::is_trivially_copyable_v<Launch> && alignof(Launch) <= kAlignment);
    Launch plain = launch;
#if defined(__GNUC__) && !defined(__clang__)
    __builtin_clear_padding(&plain);  // else equal launches could differ
#endif
    append(run_launch<kLaunch, Launch>, &plain, sizeof plain);
  }
  /// Whether the last one added since clear() is such a launch.
  template <auto kLaunch, class Launch>
  bool ends_with() const {
    return last_ == run_launch<kLaunch, Launch>;
  }

  void run(Stream stream) const;
  void clear() { bytes_.clear(), size_ = 0, last_ = nullptr; }
  bool empty() const { return bytes_.empty(); }
  int size() const { return size_; }
  uint64_t hash() const;
  friend bool operator==(const LaunchList& a, const LaunchList& b) { return a.bytes_ == b.bytes_; }

 private:
  using Run = void (*)(Stream, const std::byte*);
  static constexpr size_t kAlignment = 16;
  struct alignas(kAlignment) Header {
    Run run;
    size_t bytes;  ///< Of the launch, padded to kAlignment.
  };
  template <auto kLaunch, class Launch>
  static void run_launch(Stream stream, const std::byte* at) {
    kLaunch(stream, *reinterpret_cast<const Launch*>(at));
  }
  void append(Run run, const void* launch, size_t bytes);

  std::vector<std::byte> bytes_;  ///< A header and its launch, again and again.
  int size_ = 0;
  Run last_ = nullptr;
};

}  // namespace tensorfold::cuda
