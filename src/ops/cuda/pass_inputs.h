// What a pass takes from the host: tokens, positions, sequences, page tables, sampling parameters. Gathered
// in pinned memory while the pass is recorded, and copied to the same places of one device block before it
// runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "device/device.h"
#include "ops/cuda/linear.h"

namespace tensorfold::cuda {

class PassInputs {
 public:
  PassInputs() = default;
  ~PassInputs();
  PassInputs(const PassInputs&) = delete;
  PassInputs& operator=(const PassInputs&) = delete;

  /// Starts a pass whose inputs are at most `most_bytes`. The device must not be using those of an earlier
  /// one.
  Status begin(Device& device, int64_t most_bytes);

  /// Where `values` will lie on the device. `capacity` elements are kept for them, so that places of later
  /// inputs do not depend on how many there are now.
  template <class T>
  const T* add(std::span<const T> values, size_t capacity) {
    return reinterpret_cast<const T*>(add_bytes(std::as_bytes(values), capacity * sizeof(T)));
  }
  template <class T>
  const T* add(std::span<const T> values) {
    return add(values, values.size());
  }

  /// Copies what was added since the last upload, asynchronously.
  Status upload(Stream stream);

 private:
  const std::byte* add_bytes(std::span<const std::byte> bytes, size_t capacity_bytes);

  std::byte* host_ = nullptr;  ///< Pinned, as large as device_.
  Buffer device_;
  size_t used_ = 0, uploaded_ = 0;
};

}  // namespace tensorfold::cuda
