// Arrays of the op tests (tests/ops/op_test_support.h) on the device, and one way to run a launch: what the
// tests of the small CUDA ops share.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "tests/ops/op_test_support.h"

namespace tensorfold::test {

inline void check_cuda(cudaError_t error) { TF_CHECK(error == cudaSuccess, cudaGetErrorString(error)); }

/// Skips, by name, where no device runs sm_90a code.
class OnCudaDevice : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0, major = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0)
      check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major != 9) GTEST_SKIP() << "no device of compute capability 9.0";
  }
};

/// What lies between and around the rows of a copy.
enum class Surroundings {
  kNan,     ///< Of an input: whoever reads it, computes NaN.
  kGuards,  ///< Of an output: the array's own, which guards_intact() looks at.
};

/// The memory of an Array on the device, at the same place relative to 64 bytes.
class DeviceCopy {
 public:
  explicit DeviceCopy(const Array& array, Surroundings surroundings = Surroundings::kGuards) : host_(array) {
    check_cuda(cudaMalloc(&memory_, array.block().size() + 64));
    base_ = memory_ + reinterpret_cast<uintptr_t>(array.block().data()) % 64;
    offset_ = array.view().data - array.block().data();
    std::vector<std::byte> bytes(array.block().begin(), array.block().end());
    if (surroundings == Surroundings::kNan) {
      std::ranges::fill(bytes, std::byte{0xff});
      const View view = array.view();
      const auto row_bytes = static_cast<size_t>(array.columns() * dtype_bytes(view.dtype));
      for (int64_t t = 0; t < array.rows() && row_bytes > 0; ++t) {
        const std::byte* row = view.rows(t, 1).data;
        std::memcpy(bytes.data() + (row - array.block().data()), row, row_bytes);
      }
    }
    check_cuda(cudaMemcpy(base_, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  }
  ~DeviceCopy() { cudaFree(memory_); }
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;

  View view() const {
    View v = host_.view();
    v.data = base_ + offset_;
    return v;
  }
  /// Of Surroundings::kGuards.
  Array download() const {
    Array result = host_;
    check_cuda(cudaMemcpy(result.block().data(), base_, result.block().size(), cudaMemcpyDeviceToHost));
    return result;
  }

 private:
  Array host_;
  std::byte* memory_ = nullptr;
  std::byte* base_ = nullptr;
  int64_t offset_ = 0;
};

/// An input on the device, NaN around it.
struct DeviceInput : DeviceCopy {
  explicit DeviceInput(const Array& array) : DeviceCopy(array, Surroundings::kNan) {}
};

/// A vector on the device.
template <class T>
class DeviceVector {
 public:
  explicit DeviceVector(const std::vector<T>& values) : count_(values.size()) {
    check_cuda(cudaMalloc(&data_, std::max<size_t>(values.size(), 1) * sizeof(T)));
    check_cuda(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~DeviceVector() { cudaFree(data_); }
  DeviceVector(const DeviceVector&) = delete;
  DeviceVector& operator=(const DeviceVector&) = delete;
  const T* data() const { return data_; }
  std::vector<T> download() const {
    std::vector<T> values(count_);
    check_cuda(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  size_t count_;
  T* data_ = nullptr;
};

/// Waits for what was launched; a fault ends the test program.
inline void finish_launches() {
  check_cuda(cudaGetLastError());
  check_cuda(cudaDeviceSynchronize());
}

}  // namespace tensorfold::test
