// A CUDA device's memory as a Device: one allocator with an exact account, and copies through pinned staging.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "device/device.h"

namespace tensorfold {

struct CudaDeviceOptions {
  int ordinal = 0;           ///< As the CUDA runtime counts them.
  int64_t memory_bytes = 0;  ///< At most this much is allocated; 0: what is free, less a reserve for the runtime.
};

/// kNotFound where there is no such device, kUnsupported where check_compute_capability() says so.
///
/// Every copy and zero() is ordered before the work that is launched afterwards on blocking streams of the
/// device; zero() and copy() do not wait for it.
Result<std::unique_ptr<Device>> make_cuda_device(const CudaDeviceOptions& options);

/// What the runtime says of a device.
struct CudaDeviceInfo {
  std::string name;  ///< "NVIDIA H200".
  int major = 0, minor = 0;
  int num_multiprocessors = 0;
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
};

/// kUnsupported, naming the device, its compute capability and what is supported, where the kernels do not
/// run on it: they use instructions that exist in 9.0 alone, neither before nor after it.
Status check_compute_capability(int ordinal, const CudaDeviceInfo& device);

/// Devices that the driver offers; none where there is no driver.
int num_cuda_devices();
Result<CudaDeviceInfo> describe_cuda_device(int ordinal);

/// Bytes per second that a copy within the device's memory reads and writes together: the limit that decoding is compared
/// with. kOutOfMemory: no room for its buffers.
Result<double> measure_copy_bandwidth(Device& cuda_device);

}  // namespace tensorfold
