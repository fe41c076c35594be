// See cuda_device.h.
#include "device/cuda_device.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "base/check.h"

namespace tensorfold {
namespace {

/// Left to the runtime of what is free: its modules, graphs and local memory.
constexpr int64_t kReserve_bytes = int64_t{1} << 30;
constexpr int64_t kStaging_bytes = int64_t{8} << 20;
constexpr int64_t kAlignment_bytes = 256;

Status to_status(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return {};
  return make_error(StatusCode::kInternal, "{}: {}", what, cudaGetErrorString(error));
}

/// Two pinned buffers and a stream of their own: one is filled while the other is on its way.
class Staging {
 public:
  static Result<std::unique_ptr<Staging>> create() {
    std::unique_ptr<Staging> staging(new Staging);
    TF_RETURN_IF_ERROR(to_status(cudaStreamCreate(&staging->stream_), "a stream for copies"));
    for (Half& half : staging->halves_) {
      TF_RETURN_IF_ERROR(to_status(cudaMallocHost(&half.bytes, kStaging_bytes), "pinned memory for copies"));
      TF_RETURN_IF_ERROR(to_status(cudaEventCreateWithFlags(&half.copied, cudaEventDisableTiming), "an event"));
    }
    return staging;
  }
  ~Staging() {
    for (Half& half : halves_) {
      if (half.copied != nullptr) cudaEventDestroy(half.copied);
      cudaFreeHost(half.bytes);
    }
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  Status to_device(std::byte* device, const std::byte* host, int64_t size_bytes) {
    for (int64_t done = 0; done < size_bytes; done += kStaging_bytes) {
      Half& half = halves_[done / kStaging_bytes % 2];
      const int64_t bytes = std::min(kStaging_bytes, size_bytes - done);
      TF_RETURN_IF_ERROR(to_status(cudaEventSynchronize(half.copied), "copy to the device"));
      std::memcpy(half.bytes, host + done, bytes);
      cudaMemcpyAsync(device + done, half.bytes, bytes, cudaMemcpyHostToDevice, stream_);
      TF_RETURN_IF_ERROR(to_status(cudaEventRecord(half.copied, stream_), "copy to the device"));
    }
    return to_status(cudaStreamSynchronize(stream_), "copy to the device");
  }

 private:
  struct Half {
    std::byte* bytes = nullptr;
    cudaEvent_t copied = nullptr;
  };
  Staging() = default;
  cudaStream_t stream_ = nullptr;
  Half halves_[2];
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int ordinal, int64_t total_bytes, int64_t limit_bytes)
      : ordinal_(ordinal), total_bytes_(total_bytes), limit_bytes_(limit_bytes) {}

  std::string name() const override { return fmt::format("cuda:{}", ordinal_); }
  bool is_host_memory() const override { return false; }

  Result<Buffer> allocate(int64_t size_bytes, std::string_view what) override {
    cudaSetDevice(ordinal_);
    const int64_t bytes = (std::max<int64_t>(size_bytes, 1) + kAlignment_bytes - 1) / kAlignment_bytes * kAlignment_bytes;
    const std::lock_guard lock(mutex_);
    void* data = nullptr;
    if (used_bytes_ + bytes > limit_bytes_ || cudaMalloc(&data, bytes) != cudaSuccess) {
      cudaGetLastError();  // an allocation that failed is no fault of the device
      return make_error(StatusCode::kOutOfMemory, "{} needs {} MB, {} MB of {}'s memory are free ({} MB missing)", what,
                        bytes >> 20, free_locked() >> 20, name(), std::max<int64_t>(bytes - free_locked(), 0) >> 20);
    }
    used_bytes_ += bytes;
    return Buffer(this, static_cast<std::byte*>(data), bytes);
  }

  int64_t free_bytes() const override {
    const std::lock_guard lock(mutex_);
    return free_locked();
  }
  int64_t total_bytes() const override { return total_bytes_; }

  Status copy_to_device(std::byte* device, const std::byte* host, int64_t size_bytes) override {
    if (size_bytes == 0) return {};
    cudaSetDevice(ordinal_);
    TF_ASSIGN_OR_RETURN(std::unique_ptr<Staging> staging, take_staging());
    Status status = staging->to_device(device, host, size_bytes);
    const std::lock_guard lock(mutex_);
    staging_.push_back(std::move(staging));
    return status;
  }
  Status copy_to_host(std::byte* host, const std::byte* device, int64_t size_bytes) override {
    if (size_bytes == 0) return {};
    cudaSetDevice(ordinal_);
    return to_status(cudaMemcpy(host, device, size_bytes, cudaMemcpyDeviceToHost), "copy from the device");
  }
  Status zero(std::byte* device, int64_t size_bytes) override {
    if (size_bytes == 0) return {};
    cudaSetDevice(ordinal_);
    return to_status(cudaMemsetAsync(device, 0, size_bytes, nullptr), "clearing device memory");
  }
  Status copy(std::byte* to, const std::byte* from, int64_t size_bytes) override {
    if (size_bytes == 0) return {};
    cudaSetDevice(ordinal_);
    return to_status(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDeviceToDevice, nullptr),
                     "copying device memory");
  }

 private:
  void free(std::byte* data, int64_t size_bytes) override {
    cudaSetDevice(ordinal_);
    cudaFree(data);
    const std::lock_guard lock(mutex_);
    used_bytes_ -= size_bytes;
  }

  /// What the limit leaves, or less where others use the device.
  int64_t free_locked() const {
    cudaSetDevice(ordinal_);
    size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) return 0;
    return std::min(static_cast<int64_t>(free), limit_bytes_ - used_bytes_);
  }

  Result<std::unique_ptr<Staging>> take_staging() {
    {
      const std::lock_guard lock(mutex_);
      if (!staging_.empty()) {
        std::unique_ptr<Staging> staging = std::move(staging_.back());
        staging_.pop_back();
        return staging;
      }
    }
    return Staging::create();
  }

  const int ordinal_;
  const int64_t total_bytes_;
  const int64_t limit_bytes_;
  mutable std::mutex mutex_;
  int64_t used_bytes_ = 0;                          // guarded by mutex_
  std::vector<std::unique_ptr<Staging>> staging_;  // guarded by mutex_; those not in use
};

}  // namespace

int num_cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

namespace {

/// Everything but the free memory.
Result<CudaDeviceInfo> properties_of(int ordinal) {
  const int count = num_cuda_devices();
  if (ordinal < 0 || ordinal >= count) {
    return not_found("cuda:{}: no such device; {}", ordinal,
                     count == 0 ? std::string("the CUDA driver offers none")
                                : fmt::format("there are {}, counted from 0", count));
  }
  cudaDeviceProp properties;
  TF_RETURN_IF_ERROR(to_status(cudaGetDeviceProperties(&properties, ordinal), "the device's properties"));
  return CudaDeviceInfo{.name = properties.name,
                        .major = properties.major,
                        .minor = properties.minor,
                        .num_multiprocessors = properties.multiProcessorCount,
                        .total_bytes = static_cast<int64_t>(properties.totalGlobalMem),
                        .free_bytes = 0};
}

}  // namespace

Result<CudaDeviceInfo> describe_cuda_device(int ordinal) {
  TF_ASSIGN_OR_RETURN(CudaDeviceInfo info, properties_of(ordinal));
  TF_RETURN_IF_ERROR(to_status(cudaSetDevice(ordinal), "choosing the device"));
  size_t free = 0, total = 0;
  TF_RETURN_IF_ERROR(to_status(cudaMemGetInfo(&free, &total), "the device's free memory"));
  info.total_bytes = static_cast<int64_t>(total);
  info.free_bytes = static_cast<int64_t>(free);
  return info;
}

Result<double> measure_copy_bandwidth(Device& cuda_device) {
  constexpr int kRounds = 10;
  const int64_t bytes = std::min(int64_t{2} << 30, cuda_device.free_bytes() / 3);
  TF_ASSIGN_OR_RETURN(const Buffer from, cuda_device.allocate(bytes, "buffer of the bandwidth measurement"));
  TF_ASSIGN_OR_RETURN(const Buffer to, cuda_device.allocate(bytes, "buffer of the bandwidth measurement"));
  cudaEvent_t begin = nullptr, end = nullptr;
  TF_RETURN_IF_ERROR(to_status(cudaEventCreate(&begin), "an event"));
  TF_RETURN_IF_ERROR(to_status(cudaEventCreate(&end), "an event"));
  float best_ms = 1e30f;
  for (int round = 0; round < kRounds; ++round) {
    cudaEventRecord(begin);
    cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice);
    cudaEventRecord(end);
    TF_RETURN_IF_ERROR(to_status(cudaEventSynchronize(end), "the bandwidth measurement"));
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    best_ms = std::min(best_ms, ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return 2.0 * static_cast<double>(bytes) / best_ms * 1e3;
}

Result<std::unique_ptr<Device>> make_cuda_device(const CudaDeviceOptions& options) {
  // First, and without a context on the device, which may fail for reasons that say less.
  TF_ASSIGN_OR_RETURN(const CudaDeviceInfo known, properties_of(options.ordinal));
  TF_RETURN_IF_ERROR(check_compute_capability(options.ordinal, known));
  TF_ASSIGN_OR_RETURN(const CudaDeviceInfo info, describe_cuda_device(options.ordinal));
  const int64_t most = std::max<int64_t>(info.free_bytes - kReserve_bytes, 0);
  if (options.memory_bytes > most) {
    return make_error(StatusCode::kOutOfMemory, "cuda:{} has {} MB of memory free, not the {} MB asked for",
                      options.ordinal, most >> 20, options.memory_bytes >> 20);
  }
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(
      options.ordinal, info.total_bytes, options.memory_bytes > 0 ? options.memory_bytes : most));
}

}  // namespace tensorfold
