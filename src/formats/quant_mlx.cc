// Checks, packing and quantization of formats/quant_mlx.h.
#include "formats/quant_mlx.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tensorfold {
namespace {

std::string spell_shapes(const PackedModule& module) {
  return fmt::format("{}: weight {}, scales {}, biases {}", module.name, to_string(*module.weight),
                     to_string(*module.scales), module.biases ? to_string(*module.biases) : "none");
}

bool is_scale_dtype(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32;
}

/// What must hold whatever the width: dtypes, equal leading axes, biases like scales.
bool is_consistent(const PackedModule& module) {
  const std::vector<int64_t>& weight = module.weight->shape;
  const std::vector<int64_t>& scales = module.scales->shape;
  if (module.weight->dtype != DType::kU32 || !is_scale_dtype(module.scales->dtype)) return false;
  if (module.biases->dtype != module.scales->dtype || module.biases->shape != scales) return false;
  return weight.size() >= 2 && weight.size() == scales.size() &&
         std::equal(weight.begin(), weight.end() - 1, scales.begin());
}

/// bits = 32 * weight.last / (group_size * scales.last), or 0 when that is no width.
int solve_bits(int64_t weight_words, int64_t num_groups, int group_size) {
  int64_t bits = 0;
  int64_t in = 0;
  if (__builtin_mul_overflow(weight_words, 32, &bits) || __builtin_mul_overflow(num_groups, group_size, &in))
    return 0;
  if (in == 0 || bits % in != 0 || !is_affine_bits(bits / in)) return 0;
  return static_cast<int>(bits / in);
}

constexpr uint64_t low_mask(int bits) { return (uint64_t{1} << bits) - 1; }

/// Eight values of kBits, lowest first, moved to the eight bytes of a word: the upper four values to the
/// upper half, then the upper two of each half to its upper half, then each odd one to its own byte.
template <int kBits>
uint64_t spread_to_bytes(uint64_t word) {
  word = (word & low_mask(4 * kBits)) | (word >> (4 * kBits) << 32);
  constexpr uint64_t kPairs = low_mask(2 * kBits) * 0x0000000100000001u;
  word = (word & kPairs) | ((word & kPairs << (2 * kBits)) << (16 - 2 * kBits));
  constexpr uint64_t kSingles = low_mask(kBits) * 0x0001000100010001u;
  return (word & kSingles) | ((word & kSingles << kBits) << (8 - kBits));
}

/// Eight values are exactly kBits bytes, whatever the width: the unit of all packing here.
template <int kBits>
void unpack_all(const std::byte* row, std::span<uint8_t> values) {
  for (size_t i = 0; i < values.size(); i += 8, row += kBits) {
    uint64_t word = 0;
    std::memcpy(&word, row, kBits);
    word = spread_to_bytes<kBits>(word);
    std::memcpy(&values[i], &word, 8);
  }
}

/// Four bits apart: bytes instead of words, which compilers turn into shuffles.
template <>
void unpack_all<4>(const std::byte* row, std::span<uint8_t> values) {
  for (size_t i = 0; i < values.size() / 2; ++i) {
    const uint8_t byte = static_cast<uint8_t>(row[i]);
    values[2 * i] = byte & 15;
    values[2 * i + 1] = byte >> 4;
  }
}

template <int kBits>
void pack_all(std::span<const uint8_t> values, std::byte* row) {
  for (size_t i = 0; i < values.size(); i += 8, row += kBits) {
    uint64_t word = 0;
    for (int k = 0; k < 8; ++k) {
      TF_DCHECK(values[i + k] < 1u << kBits);
      word |= static_cast<uint64_t>(values[i + k]) << (kBits * k);
    }
    std::memcpy(row, &word, kBits);
  }
}

/// Calls f with the width as a compile-time constant.
template <class F>
void with_bits(int bits, const F& f) {
  switch (bits) {
    case 2:
      return f(std::integral_constant<int, 2>());
    case 3:
      return f(std::integral_constant<int, 3>());
    case 4:
      return f(std::integral_constant<int, 4>());
    case 5:
      return f(std::integral_constant<int, 5>());
    case 6:
      return f(std::integral_constant<int, 6>());
    case 8:
      return f(std::integral_constant<int, 8>());
  }
  check_failed(__FILE__, __LINE__, "affine packing has no such width");
}

struct GroupScale {
  float scale;
  float bias;
};

/// The steps of specs/mlx-quantization.md §4 in fp32: the end of larger magnitude becomes a multiple of the
/// scale, so that it and zero are exact.
GroupScale fit_group(std::span<const float> weights, float max_value) {
  const auto [lo, hi] = std::minmax_element(weights.begin(), weights.end());
  constexpr float kLeastScale = 1e-7f;
  float scale = std::max((*hi - *lo) / max_value, kLeastScale);
  const bool from_low = std::fabs(*lo) > std::fabs(*hi);
  const float edge = from_low ? *lo : *hi;
  if (!from_low) scale = -scale;
  const float steps = std::nearbyint(edge / scale);
  if (steps == 0.0f) return {scale, 0.0f};
  return {edge / steps, edge};
}

}  // namespace

bool is_affine_bits(int64_t bits) { return (bits >= 2 && bits <= 6) || bits == 8; }

bool is_affine_group_size(int64_t group_size) {
  return group_size == 32 || group_size == 64 || group_size == 128;
}

Result<AffineTensor> describe_affine(const PackedModule& module, const ModuleQuantization& expected) {
  TF_CHECK(module.weight != nullptr && module.scales != nullptr);
  if (expected.mode != QuantMode::kAffine || module.biases == nullptr) {
    const bool by_config = expected.mode != QuantMode::kAffine;
    return unsupported(
        "{}: packed as {}, which is not read yet", module.name,
        by_config ? quant_mode_name(expected.mode) : "scales without biases (no affine groups)");
  }
  if (!is_consistent(module)) return corrupt("{} do not belong together", spell_shapes(module));
  const std::vector<int64_t>& weight = module.weight->shape;
  const int bits = solve_bits(weight.back(), module.scales->shape.back(), expected.group_size);
  if (bits == 0) {
    return corrupt("{} fit no width at group_size {} (config.json: {} bits)", spell_shapes(module),
                   expected.group_size, expected.bits);
  }
  AffineTensor tensor;
  tensor.batch_shape.assign(weight.begin(), weight.end() - 2);
  tensor.out = weight[weight.size() - 2];
  tensor.in = module.scales->shape.back() * expected.group_size;
  tensor.bits = bits;
  tensor.group_size = expected.group_size;
  tensor.scale_dtype = module.scales->dtype;
  return tensor;
}

uint32_t packed_value(std::span<const std::byte> row, int bits, int64_t i) {
  const int64_t first_bit = i * bits;
  const size_t first = static_cast<size_t>(first_bit / 8);
  const size_t last = static_cast<size_t>((first_bit + bits - 1) / 8);
  TF_DCHECK(i >= 0 && last < row.size());
  uint32_t word = static_cast<uint32_t>(row[first]);
  if (last > first) word |= static_cast<uint32_t>(row[last]) << 8;  // At most 8 bits: never a third byte.
  return word >> (first_bit % 8) & ((1u << bits) - 1);
}

void unpack_row(std::span<const std::byte> row, int bits, std::span<uint8_t> values) {
  TF_CHECK(values.size() % 8 == 0 && row.size() == values.size() * bits / 8);
  with_bits(bits, [&](auto width) { unpack_all<width.value>(row.data(), values); });
}

void pack_row(std::span<const uint8_t> values, int bits, std::span<std::byte> row) {
  TF_CHECK(values.size() % 8 == 0 && row.size() == values.size() * bits / 8);
  with_bits(bits, [&](auto width) { pack_all<width.value>(values, row.data()); });
}

void quantize_row(std::span<const float> weights, int bits, int group_size, const QuantizedRow& result) {
  TF_CHECK(is_affine_bits(bits) && is_affine_group_size(group_size) && weights.size() % group_size == 0);
  TF_CHECK(result.values.size() == weights.size() && result.scales.size() == weights.size() / group_size);
  TF_CHECK(result.biases.size() == result.scales.size());
  const float max_value = static_cast<float>((1 << bits) - 1);
  for (size_t group = 0; group < result.scales.size(); ++group) {
    const size_t begin = group * group_size;
    const auto [scale, bias] = fit_group(weights.subspan(begin, group_size), max_value);
    for (size_t i = begin; i < begin + group_size; ++i) {
      const float value = std::nearbyint((weights[i] - bias) / scale);
      result.values[i] = static_cast<uint8_t>(std::clamp(value, 0.0f, max_value));
    }
    result.scales[group] = scale;
    result.biases[group] = bias;
  }
}

}  // namespace tensorfold
