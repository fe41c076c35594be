// make_cuda_ops() in a build without CUDA.
#include "device/cuda_device.h"
#include "ops/ops.h"

namespace tensorfold {

Result<std::unique_ptr<Ops>> make_cuda_ops(const CudaOptions& options) {
  return describe_cuda_device(options.device).status();
}

}  // namespace tensorfold
