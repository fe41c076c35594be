// See trace.h. Memory at a given address is the driver's alone to give, whose functions are found by name, so
// that nothing is linked with it.
#include "ops/cuda/trace.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "base/log.h"
#include "ops/cuda/trace_params.h"

namespace tensorfold::cuda {
namespace {

Status to_status(int error, const char* what) {
  if (error == 0) return {};
  return make_error(StatusCode::kInternal, "memory for a trace at {:#x}: {} failed ({})", kTraceAddress, what,
                    error);
}

/// Calls the driver's function `name` of this type.
template <class Function, class... Arguments>
Status call_driver(const char* name, Arguments... arguments) {
  constexpr unsigned kCuda12 = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &function, kCuda12, cudaEnableDefault, &found);
  if (error != cudaSuccess || function == nullptr) return to_status(cudaErrorSymbolNotFound, name);
  return to_status(reinterpret_cast<Function>(function)(arguments...), name);
}

}  // namespace

Status start_trace() {
  static bool is_started = false;
  if (is_started) return {};
  int device = 0;
  TF_RETURN_IF_ERROR(to_status(cudaGetDevice(&device), "cudaGetDevice"));
  CUmemAllocationProp kind{};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  constexpr size_t kGranularity = size_t{2} << 20;
  constexpr size_t kBytes = (sizeof(TraceMemory) + kGranularity - 1) / kGranularity * kGranularity;
  CUdeviceptr at = 0;
  CUmemGenericAllocationHandle memory{};
  TF_RETURN_IF_ERROR((call_driver<decltype(&cuMemAddressReserve)>(
      "cuMemAddressReserve", &at, kBytes, size_t{0}, CUdeviceptr{kTraceAddress}, 0ull)));
  if (at != kTraceAddress) return to_status(cudaErrorInvalidValue, "reserving the address");
  TF_RETURN_IF_ERROR((call_driver<decltype(&cuMemCreate)>("cuMemCreate", &memory, kBytes, &kind, 0ull)));
  TF_RETURN_IF_ERROR((call_driver<decltype(&cuMemMap)>("cuMemMap", at, kBytes, size_t{0}, memory, 0ull)));
  const CUmemAccessDesc access{.location = kind.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  TF_RETURN_IF_ERROR(
      (call_driver<decltype(&cuMemSetAccess)>("cuMemSetAccess", at, kBytes, &access, size_t{1})));
  TF_RETURN_IF_ERROR(to_status(cudaMemset(reinterpret_cast<void*>(at), 0, kBytes), "cudaMemset"));
  is_started = true;
  return {};
}

void write_trace() {
  std::vector<std::byte> bytes(sizeof(TraceMemory));
  const cudaError_t error =
      cudaMemcpy(bytes.data(), reinterpret_cast<void*>(kTraceAddress), bytes.size(), cudaMemcpyDeviceToHost);
  if (error != cudaSuccess) return log_warning("the trace cannot be read: {}", cudaGetErrorString(error));
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(kTraceFile, "wb"), &std::fclose);
  if (file == nullptr || std::fwrite(bytes.data(), 1, bytes.size(), file.get()) != bytes.size())
    log_warning("{}: the trace cannot be written", kTraceFile);
}

}  // namespace tensorfold::cuda
