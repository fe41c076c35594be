// Which CUDA devices the kernels run on (cuda_device.h). In every build, so that it is tested in every build.
#include "device/cuda_device.h"

namespace tensorfold {

Status check_compute_capability(int ordinal, const CudaDeviceInfo& device) {
  if (device.major == 9 && device.minor == 0) return {};
  return unsupported(
      "cuda:{} ({}) has compute capability {}.{}; the CUDA kernels run on 9.0 alone (H100, H200, GH200): use "
      "the "
      "CPU (--device cpu)",
      ordinal, device.name, device.major, device.minor);
}

}  // namespace tensorfold
