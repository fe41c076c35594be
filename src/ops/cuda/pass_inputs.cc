// See pass_inputs.h.
#include "ops/cuda/pass_inputs.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace tensorfold::cuda {

PassInputs::~PassInputs() { cudaFreeHost(host_); }

Status PassInputs::begin(Device& device, int64_t most_bytes) {
  used_ = uploaded_ = 0;
  if (most_bytes <= device_.size_bytes()) return {};
  const int64_t bytes = std::max<int64_t>(2 * most_bytes, int64_t{1} << 18);
  cudaFreeHost(host_);
  host_ = nullptr;
  device_ = Buffer();
  TF_ASSIGN_OR_RETURN(device_, device.allocate(bytes, "inputs of a pass"));
  void* host = nullptr;
  const cudaError_t error = cudaMallocHost(&host, device_.size_bytes());
  if (error != cudaSuccess) {
    device_ = Buffer();
    return make_error(StatusCode::kOutOfMemory, "no pinned memory for {} bytes of a pass's inputs: {}", bytes,
                      cudaGetErrorString(error));
  }
  host_ = static_cast<std::byte*>(host);
  return {};
}

const std::byte* PassInputs::add_bytes(std::span<const std::byte> bytes, size_t capacity_bytes) {
  constexpr size_t kAlignment = 64;
  const size_t at = used_;
  used_ = (at + std::max(capacity_bytes, bytes.size()) + kAlignment - 1) / kAlignment * kAlignment;
  TF_CHECK(used_ <= static_cast<size_t>(device_.size_bytes()), "more inputs than the pass was begun with");
  if (!bytes.empty()) std::memcpy(host_ + at, bytes.data(), bytes.size());
  return device_.data() + at;
}

Status PassInputs::upload(Stream stream) {
  if (used_ == uploaded_) return {};
  const cudaError_t error = cudaMemcpyAsync(device_.data() + uploaded_, host_ + uploaded_, used_ - uploaded_,
                                            cudaMemcpyHostToDevice, stream);
  uploaded_ = used_;
  if (error == cudaSuccess) return {};
  return make_error(StatusCode::kInternal, "inputs of a pass: {}", cudaGetErrorString(error));
}

}  // namespace tensorfold::cuda
