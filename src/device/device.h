// What a backend's memory looks like from outside: allocate, copy, zero, and how much there is.
// Implemented once per backend (cpu_device.cc, cuda_device.cc); knows nothing of tensors or models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tensorfold {

class Device;

/// A block of a device's memory, freed with its last owner. Movable; null after a move.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device* device, std::byte* data, int64_t size_bytes)
      : device_(device), data_(data), size_bytes_(size_bytes) {}
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  std::byte* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
};

/// One memory and its copies. Thread-safe. Outlives every Buffer it handed out.
class Device {
 public:
  virtual ~Device() = default;

  /// "cpu", "cuda:0".
  virtual std::string name() const = 0;

  /// Whether the host may read and write this memory directly.
  virtual bool is_host_memory() const = 0;

  /// At least `size_bytes` bytes aligned to 256, content undefined. `what` names the purpose in the
  /// kOutOfMemory message: "weights of layer 3 need 120 MB, 80 MB are free".
  virtual Result<Buffer> allocate(int64_t size_bytes, std::string_view what) = 0;

  /// Bytes that could be allocated now, and the device's total.
  virtual int64_t free_bytes() const = 0;
  virtual int64_t total_bytes() const = 0;

  /// Copies between host memory and this device's; returns when done. On the CPU both are memcpy.
  virtual Status copy_to_device(std::byte* device, const std::byte* host, int64_t size_bytes) = 0;
  virtual Status copy_to_host(std::byte* host, const std::byte* device, int64_t size_bytes) = 0;
  virtual Status zero(std::byte* device, int64_t size_bytes) = 0;

  /// Copies within this device's memory; the two blocks do not overlap. Whatever is asked of the device later finds
  /// it done.
  virtual Status copy(std::byte* to, const std::byte* from, int64_t size_bytes) = 0;

 private:
  friend class Buffer;
  virtual void free(std::byte* data, int64_t size_bytes) = 0;
};

/// The host's own memory. Large blocks are mapped with huge pages where the kernel gives them. Never destroyed.
Device& cpu_device();

}  // namespace tensorfold
