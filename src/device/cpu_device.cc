// Host memory as a Device: anonymous mappings, so that freeing returns memory to the system at once.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "device/device.h"

namespace tensorfold {

Buffer::~Buffer() {
  if (device_ != nullptr) device_->free(data_, size_bytes_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

namespace {

/// From this size on a block asks for huge pages: a weight block read once per token otherwise pays a TLB miss
/// every 4 KB.
constexpr int64_t kHugePageThreshold_bytes = int64_t{4} << 20;

/// "MemAvailable" of the kernel, or free pages where that file is missing.
int64_t available_bytes() {
  if (std::FILE* file = std::fopen("/proc/meminfo", "r")) {
    char line[256];
    long long kib = -1;
    while (kib < 0 && std::fgets(line, sizeof line, file)) std::sscanf(line, "MemAvailable: %lld kB", &kib);
    std::fclose(file);
    if (kib >= 0) return kib * 1024;
  }
  return static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

class CpuDevice final : public Device {
 public:
  std::string name() const override { return "cpu"; }
  bool is_host_memory() const override { return true; }

  Result<Buffer> allocate(int64_t size_bytes, std::string_view what) override {
    const int64_t length = std::max<int64_t>(size_bytes, 1);
    void* data = mmap(nullptr, static_cast<size_t>(length), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      return make_error(StatusCode::kOutOfMemory, "{} needs {} MB, {} MB are free", what, length >> 20,
                        free_bytes() >> 20);
    }
    if (length >= kHugePageThreshold_bytes) madvise(data, static_cast<size_t>(length), MADV_HUGEPAGE);
    return Buffer(this, static_cast<std::byte*>(data), length);
  }

  int64_t free_bytes() const override { return available_bytes(); }
  int64_t total_bytes() const override {
    return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  }

  // memcpy and memset take no null, not even for no bytes.
  Status copy_to_device(std::byte* device, const std::byte* host, int64_t size_bytes) override {
    if (size_bytes > 0) std::memcpy(device, host, static_cast<size_t>(size_bytes));
    return {};
  }
  Status copy_to_host(std::byte* host, const std::byte* device, int64_t size_bytes) override {
    if (size_bytes > 0) std::memcpy(host, device, static_cast<size_t>(size_bytes));
    return {};
  }
  Status zero(std::byte* device, int64_t size_bytes) override {
    if (size_bytes > 0) std::memset(device, 0, static_cast<size_t>(size_bytes));
    return {};
  }
  Status copy(std::byte* to, const std::byte* from, int64_t size_bytes) override {
    if (size_bytes > 0) std::memcpy(to, from, static_cast<size_t>(size_bytes));
    return {};
  }

 private:
  void free(std::byte* data, int64_t size_bytes) override { munmap(data, static_cast<size_t>(size_bytes)); }
};

}  // namespace

Device& cpu_device() {
  static CpuDevice& device = *new CpuDevice;
  return device;
}

}  // namespace tensorfold
