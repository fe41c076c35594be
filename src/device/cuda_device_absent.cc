// cuda_device.h in a build without CUDA: there are no devices.
#include "device/cuda_device.h"

namespace tensorfold {

int num_cuda_devices() { return 0; }

Result<CudaDeviceInfo> describe_cuda_device(int ordinal) {
  return unsupported("cuda:{}: this build has no CUDA backend; `make cuda` builds one", ordinal);
}

Result<std::unique_ptr<Device>> make_cuda_device(const CudaDeviceOptions& options) {
  return describe_cuda_device(options.ordinal).status();
}

Result<double> measure_copy_bandwidth(Device& cuda_device) {
  return unsupported("{}: this build has no CUDA backend", cuda_device.name());
}

}  // namespace tensorfold
