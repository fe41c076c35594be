// Device arrays and random inputs for the tests and benchmarks of CUDA ops.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "base/bf16.h"
#include "base/check.h"
#include "base/mxfp4.h"
#include "memory/weight.h"

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
    const auto elements = static_cast<size_t>(spec.out * spec.in);
    if (spec.format == WeightFormat::kFloat) {
      fill(weight, elements, 0.05f, random);
      return;
    }
    weight.resize(elements * static_cast<size_t>(spec.bits) / 8);
    for (std::byte& byte : weight) byte = static_cast<std::byte>(random());
    const size_t groups = elements / static_cast<size_t>(spec.group_size);
    if (spec.format == WeightFormat::kMxfp4) {
      scales.resize(groups);
      for (std::byte& byte : scales) byte = static_cast<std::byte>(118 + random() % 8);
      return;
    }
    fill(scales, groups, 0.16f / static_cast<float>(1 << spec.bits), random);
    fill(biases, groups, 0.05f, random);
  }
  LinearSource source() const { return {weight, scales, biases}; }

  /// Integer or code (row, column), and its group's scale and bias.
  uint32_t integer(int64_t row, int64_t column) const {
    uint32_t q = 0;
    for (int b = 0; b < spec.bits; ++b) {
      const int64_t bit = (row * spec.in + column) * spec.bits + b;
      q |= (static_cast<uint32_t>(weight[static_cast<size_t>(bit / 8)]) >> (bit % 8) & 1u) << b;
    }
    return q;
  }
  float scale(int64_t row, int64_t column) const {
    const int64_t group = (row * spec.in + column) / spec.group_size;
    if (spec.format != WeightFormat::kMxfp4) return number(scales, group);
    return std::ldexp(1.0f, static_cast<int>(scales[static_cast<size_t>(group)]) - 127);
  }
  float bias(int64_t row, int64_t column) const {
    return number(biases, (row * spec.in + column) / spec.group_size);
  }

  /// Element (row, column) as embed() gives it: in fp32.
  float element(int64_t row, int64_t column) const {
    if (spec.format == WeightFormat::kFloat) return number(weight, row * spec.in + column);
    const uint32_t q = integer(row, column);
    if (spec.format == WeightFormat::kMxfp4) return scale(row, column) * e2m1_value(q);
    return std::fma(scale(row, column), static_cast<float>(q), bias(row, column));
  }
  /// As the CUDA kernels multiply by it (arithmetic.md): exact, or bf16(fma(scale, q, bias)) where it has 4
  /// bits or fewer.
  double value(int64_t row, int64_t column) const {
    if (spec.format != WeightFormat::kAffine) return element(row, column);
    const double exact = static_cast<double>(scale(row, column)) * integer(row, column) + bias(row, column);
    if (spec.bits > 4) return exact;
    // bf16 scale (8 bits) * q (4 bits) + bias is exact in double: one rounding. Others are rounded to fp32 in
    // between.
    return spec.dtype == DType::kBF16 ? round_to_bf16(exact) : round_to_bf16(element(row, column));
  }

 private:
  static double round_to_bf16(double exact) {
    const auto bits = std::bit_cast<uint64_t>(exact);
    const uint64_t kept = bits & ~((uint64_t{1} << 45) - 1), rest = bits & ((uint64_t{1} << 45) - 1);
    const uint64_t half = uint64_t{1} << 44;
    const bool up = rest > half || (rest == half && ((bits >> 45) & 1));
    return std::bit_cast<double>(kept + (up ? uint64_t{1} << 45 : 0));
  }
  void fill(std::vector<std::byte>& to, size_t count, float deviation, std::mt19937& random) const {
    std::normal_distribution<float> normal(0.0f, deviation);
    const auto bytes = static_cast<size_t>(dtype_bytes(spec.dtype));
    to.resize(count * bytes);
    for (size_t i = 0; i < count; ++i) {
      const float v = normal(random);
      const bf16 as_bf16 = to_bf16(v);
      const f16 as_f16 = to_f16(v);
      const void* from = &v;
      if (spec.dtype == DType::kBF16) from = &as_bf16;
      if (spec.dtype == DType::kF16) from = &as_f16;
      std::memcpy(to.data() + i * bytes, from, bytes);
    }
  }
  float number(const std::vector<std::byte>& from, int64_t i) const {
    const std::byte* at = from.data() + i * dtype_bytes(spec.dtype);
    if (spec.dtype == DType::kF32) {
      float v;
      std::memcpy(&v, at, 4);
      return v;
    }
    uint16_t bits;
    std::memcpy(&bits, at, 2);
    return spec.dtype == DType::kF16 ? to_float(f16{bits}) : to_float(bf16{bits});
  }
};

}  // namespace tensorfold::cuda
