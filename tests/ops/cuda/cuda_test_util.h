// Device arrays and random inputs for the tests and benchmarks of CUDA ops.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "base/bf16.h"
#include "base/check.h"

namespace tensorfold::cuda {

inline void cuda_check(cudaError_t error) { TF_CHECK(error == cudaSuccess, cudaGetErrorString(error)); }

/// Whether a device that runs sm_90a code is present; tests skip by name without one.
inline bool have_device() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return false;
  cudaDeviceProp properties;
  cuda_check(cudaGetDeviceProperties(&properties, 0));
  return properties.major == 9;
}

/// `count` elements on the device between two guards of 256 bytes that check() verifies.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    cuda_check(cudaMalloc(&block_, bytes() + 2 * kGuard));
    cuda_check(cudaMemset(block_, 0xa5, bytes() + 2 * kGuard));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { upload(values); }
  ~DeviceArray() { cudaFree(block_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return reinterpret_cast<T*>(block_ + kGuard); }
  size_t size() const { return count_; }
  void upload(const std::vector<T>& values) {
    cuda_check(cudaMemcpy(data(), values.data(), bytes(), cudaMemcpyHostToDevice));
  }
  std::vector<T> download() const {
    std::vector<T> values(count_);
    cuda_check(cudaMemcpy(values.data(), data(), bytes(), cudaMemcpyDeviceToHost));
    return values;
  }
  bool guards_intact() const {
    std::vector<unsigned char> guard(2 * kGuard);
    cuda_check(cudaMemcpy(guard.data(), block_, kGuard, cudaMemcpyDeviceToHost));
    cuda_check(cudaMemcpy(guard.data() + kGuard, block_ + kGuard + bytes(), kGuard, cudaMemcpyDeviceToHost));
    for (unsigned char byte : guard) {
      if (byte != 0xa5) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 256;
  size_t bytes() const { return count_ * sizeof(T); }
  size_t count_;
  std::byte* block_ = nullptr;
};

inline std::vector<bf16> random_bf16(size_t count, uint32_t seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<bf16> values(count);
  for (bf16& v : values) v = to_bf16(normal(random));
  return values;
}

/// A random matrix in checkpoint order, with the views of LinearSource.
struct RandomMatrix {
  LinearSpec spec;
  std::vector<std::byte> weight, scales, biases;

  RandomMatrix(const LinearSpec& s, uint32_t seed) : spec(s) {
    std::mt19937 random(seed);
    const auto fill = [](std::vector<std::byte>& to, const std::vector<bf16>& from) {
      to.resize(from.size() * 2);
      std::memcpy(to.data(), from.data(), to.size());
    };
    if (spec.format == WeightFormat::kFloat) {
      fill(weight, random_bf16(static_cast<size_t>(spec.out * spec.in), seed, 0.05f));
      return;
    }
    weight.resize(static_cast<size_t>(spec.out * spec.in * spec.bits / 8));
    for (std::byte& byte : weight) byte = static_cast<std::byte>(random());
    const auto groups = static_cast<size_t>(spec.out * spec.in / spec.group_size);
    std::vector<bf16> scale = random_bf16(groups, seed + 1, 0.01f), bias = random_bf16(groups, seed + 2, 0.05f);
    fill(scales, scale);
    fill(biases, bias);
  }
  LinearSource source() const { return {weight, scales, biases}; }

  /// Element (row, column) as the CUDA kernels define it: bf16, or bf16(fma(scale, q, bias)) with one rounding.
  double value(int64_t row, int64_t column) const {
    const auto bf16_at = [](const std::vector<std::byte>& from, int64_t i) {
      bf16 v;
      std::memcpy(&v, from.data() + 2 * i, 2);
      return static_cast<double>(to_float(v));
    };
    if (spec.format == WeightFormat::kFloat) return bf16_at(weight, row * spec.in + column);
    const int64_t group = (row * spec.in + column) / spec.group_size;
    const auto byte = static_cast<unsigned>(weight[static_cast<size_t>((row * spec.in + column) / 2)]);
    const double q = (byte >> (column % 2 * 4)) & 15u;
    // scale (8 bits) * q (4 bits) + bias is exact in double; the float cast in between would round twice.
    const double exact = bf16_at(scales, group) * q + bf16_at(biases, group);
    const auto bits = std::bit_cast<uint64_t>(exact);
    const uint64_t kept = bits & ~((uint64_t{1} << 45) - 1), rest = bits & ((uint64_t{1} << 45) - 1);
    const uint64_t half = uint64_t{1} << 44;
    const bool up = rest > half || (rest == half && ((bits >> 45) & 1));
    return std::bit_cast<double>(kept + (up ? uint64_t{1} << 45 : 0));
  }
};

}  // namespace tensorfold::cuda
