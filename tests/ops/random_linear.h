// Matrices and activations for tests of linear(), embed() and experts(): reproducible, and nowhere
// degenerate.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "memory/weight.h"
#include "tests/ops/per_isa.h"

namespace tensorfold {

/// Values of a random matrix or row.
enum class Values {
  kUsual,        ///< About normal(0, 1), with some zeros of both signs.
  kTiny,         ///< So small that products of two lie around 2^-126, on both sides.
  kBitPatterns,  ///< Any bits: infinities and NaN included.
};

inline float random_value(std::mt19937_64& random, Values values) {
  std::normal_distribution<float> normal;
  switch (values) {
    case Values::kUsual: {
      const uint64_t kind = random() % 16;
      return kind == 0 ? 0.0f : kind == 1 ? -0.0f : normal(random);
    }
    case Values::kTiny:
      return std::ldexp(normal(random), -59 - static_cast<int>(random() % 8));
    default:
      return std::bit_cast<float>(static_cast<uint32_t>(random()));
  }
}

inline void append_value(std::vector<std::byte>& bytes, DType dtype, float value) {
  const auto append = [&](const auto& stored) {
    const auto* first = reinterpret_cast<const std::byte*>(&stored);
    bytes.insert(bytes.end(), first, first + sizeof stored);
  };
  if (dtype == DType::kF32) {
    append(value);
  } else if (dtype == DType::kF16) {
    append(to_f16(value));
  } else {
    append(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));  // truncated: keeps denormals
  }
}

/// An E8M0 scale of the same kinds; those of kTiny lie around 2^-62.
inline std::byte random_e8m0(std::mt19937_64& random, Values values) {
  const uint64_t bits = random();
  const uint64_t scale = values == Values::kUsual  ? 120 + bits % 12
                         : values == Values::kTiny ? 60 + bits % 10
                                                   : bits % 256;
  return static_cast<std::byte>(scale);
}

/// A checkpoint matrix with its packed form and its linear bias.
class RandomLinear {
 public:
  /// Packs with `packer` (every backend's packed bytes must be equal: pack_test).
  RandomLinear(const LinearSpec& spec, uint64_t seed, const WeightPacker& packer,
               Values values = Values::kUsual)
      : spec_(spec) {
    std::mt19937_64 random(seed);
    const int64_t elements = spec.out * spec.in;
    if (spec.format == WeightFormat::kFloat) {
      for (int64_t i = 0; i < elements; ++i) append_value(weight_, spec.dtype, random_value(random, values));
    } else {
      for (int64_t i = 0; i < elements * spec.bits / 8; ++i)
        weight_.push_back(static_cast<std::byte>(random()));
      for (int64_t i = 0; i < elements / spec.group_size; ++i) {
        if (spec.format == WeightFormat::kMxfp4) {
          scales_.push_back(random_e8m0(random, values));
          continue;
        }
        append_value(scales_, spec.dtype, random_value(random, values) / 8);
        append_value(biases_, spec.dtype, random_value(random, values));
      }
    }
    for (int64_t i = 0; i < spec.out; ++i) bias_.push_back(random_value(random, values));
    packed_.resize(static_cast<size_t>(packer.packed_bytes(spec)) + 64);
    const auto misalignment = reinterpret_cast<uintptr_t>(packed_.data()) % 64;
    start_ = packed_.data() + (misalignment == 0 ? 0 : 64 - misalignment);
    packer.pack(spec, source(), {start_, static_cast<size_t>(packer.packed_bytes(spec))});
  }
  RandomLinear(const RandomLinear&) = delete;
  RandomLinear& operator=(const RandomLinear&) = delete;

  const LinearSpec& spec() const { return spec_; }
  LinearSource source() const { return {weight_, scales_, biases_}; }
  LinearWeight weight(bool with_bias = false) const {
    return {.spec = spec_, .data = start_, .bias = with_bias ? bias_.data() : nullptr};
  }

 private:
  LinearSpec spec_;
  std::vector<std::byte> weight_, scales_, biases_, packed_;
  std::vector<float> bias_;
  std::byte* start_ = nullptr;
};

/// Fills every element of a matrix.
inline void fill_random(const View& view, uint64_t seed, Values values = Values::kUsual) {
  std::mt19937_64 random(seed);
  for (int64_t t = 0; t < view.num_rows(); ++t) {
    for (int64_t i = 0; i < view.dim(1); ++i) {
      const float value = random_value(random, values);
      if (view.dtype == DType::kF32) {
        view.row<float>(t)[i] = value;
      } else {
        view.row<uint16_t>(t)[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
      }
    }
  }
}

inline LinearSpec float_spec(int64_t out, int64_t in, DType dtype) {
  return {.out = out, .in = in, .format = WeightFormat::kFloat, .dtype = dtype, .bits = dtype_bits(dtype)};
}

inline LinearSpec affine_spec(int64_t out, int64_t in, int bits, int group_size, DType dtype) {
  return {.out = out,
          .in = in,
          .format = WeightFormat::kAffine,
          .dtype = dtype,
          .bits = bits,
          .group_size = group_size};
}

inline LinearSpec mxfp4_spec(int64_t out, int64_t in) {
  return {.out = out,
          .in = in,
          .format = WeightFormat::kMxfp4,
          .dtype = DType::kBF16,
          .bits = 4,
          .group_size = 32};
}

/// Every format that linear() takes, with the given number of outputs and of groups (of 64 columns for
/// floats, less an odd number of them).
inline std::vector<LinearSpec> all_specs(int64_t out, int64_t groups) {
  std::vector<LinearSpec> specs = {mxfp4_spec(out, groups * 32)};
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    specs.push_back(float_spec(out, groups * 64 - 27, dtype));
    for (int group_size : {32, 64, 128}) {
      for (int bits : {2, 3, 4, 5, 6, 8}) {
        specs.push_back(affine_spec(out, groups * group_size, bits, group_size, dtype));
      }
    }
  }
  return specs;
}

}  // namespace tensorfold
