// embed() of the cpu backend: a row gathered out of a packed table. Its words lie one to a vector of 32, so a
// row of 4-bit weights touches in/8 cache lines that the head, if tied, reads in order.
#include "ops/cpu/isa_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/embed.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/embed.h"
#include "ops/cpu/simd_math-inl.h"
#include "ops/linear_layout.h"

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {

/// out[k] = fma(scale, values[k], bias) * multiplier for the 32 columns of a unit.
template <class Out>
HWY_INLINE void scale_unit(Out* out, const float* values, float scale, float bias, float multiplier) {
  const hn::ScalableTag<float> d;
  for (int64_t k = 0; k < kUnitColumns; k += static_cast<int64_t>(hn::Lanes(d))) {
    const auto value = hn::MulAdd(hn::Set(d, scale), hn::Load(d, values + k), hn::Set(d, bias));
    store_as(d, hn::Mul(value, hn::Set(d, multiplier)), out + k);
  }
}

void scale_unit_f32(float* out, const float* values, float scale, float bias, float multiplier) {
  scale_unit(out, values, scale, bias, multiplier);
}
void scale_unit_bf16(bf16* out, const float* values, float scale, float bias, float multiplier) {
  scale_unit(out, values, scale, bias, multiplier);
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cstring>

#include "base/mxfp4.h"
#include "ops/cpu/split.h"

namespace tensorfold::cpu {
namespace {

float load_float(DType dtype, const std::byte* address) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, address, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, address, sizeof bits);
  return dtype == DType::kBF16 ? to_float(bf16{bits}) : to_float(f16{bits});
}

/// What the scale multiplies, for one output of a unit: integers, or E2M1 values; `words` is the output's
/// word of vector 0.
template <int kBits, bool kIsMxfp4 = false>
void unit_values(float* values, const std::byte* words) {
  uint32_t word[kBits];
  for (int v = 0; v < kBits; ++v) std::memcpy(&word[v], words + v * kPanelOutputs * 4, 4);
  for (int k = 0; k < kUnitColumns; ++k) {
    const FieldPieces pieces = field_pieces(kBits, k / 2);
    uint32_t value = 0;
    for (int i = 0, at = 0; i < pieces.size; ++i) {
      const FieldPiece& piece = pieces.piece[static_cast<size_t>(i)];
      value |= (word[piece.vector] >> (piece.bit + k % 2 * 16) & ((1u << piece.count) - 1)) << at;
      at += piece.count;
    }
    values[k] = kIsMxfp4 ? e2m1_value(value) : static_cast<float>(value ^ field_inversion(kBits));
  }
}

using UnitValues = void (*)(float* values, const std::byte* words);

UnitValues unit_values_of(const LinearSpec& spec) {
  if (spec.format == WeightFormat::kMxfp4) return unit_values<4, true>;
  switch (spec.bits) {
    case 2:
      return unit_values<2>;
    case 3:
      return unit_values<3>;
    case 4:
      return unit_values<4>;
    case 5:
      return unit_values<5>;
    case 6:
      return unit_values<6>;
    default:
      return unit_values<8>;
  }
}

/// A row of groups. MXFP4's have no bias: fma(s, q, -0) is s * q, its zeros' signs included.
template <class Out>
void group_row(Out* out, const LinearWeight& table, const LinearLayout& layout, int64_t token,
               float multiplier, void (*scale_unit)(Out*, const float*, float, float, float)) {
  const LinearSpec& spec = table.spec;
  const UnitValues unit_values = unit_values_of(spec);
  const int64_t unit_bytes = kPanelOutputs * kUnitColumns * spec.bits / 8;
  alignas(64) float values[kUnitColumns];
  for (int64_t g = 0; g < layout.num_chunks(); ++g) {
    const std::byte* scale = table.data + packed_scale_offset(spec, layout, token, g);
    const float s = load_float(spec.dtype, scale);
    const float b =
        spec.format == WeightFormat::kMxfp4 ? -0.0f : load_float(spec.dtype, scale + layout.scale_bytes);
    const std::byte* unit = table.data + token / kPanelOutputs * layout.panel_bytes + g * layout.chunk_bytes +
                            layout.unit_offset + token % kPanelOutputs * 4;
    for (int64_t k = 0; k < layout.chunk_columns;
         k += kUnitColumns, unit += unit_bytes, out += kUnitColumns) {
      unit_values(values, unit);
      scale_unit(out, values, s, b, multiplier);
    }
  }
}

template <class Out>
void float_row(Out* out, const LinearWeight& table, const LinearLayout& layout, int64_t token,
               float multiplier) {
  for (int64_t k = 0; k < table.spec.in; ++k) {
    const float value =
        load_float(table.spec.dtype, table.data + packed_float_offset(table.spec, layout, token, k)) *
        multiplier;
    if constexpr (sizeof(Out) == sizeof(float)) {
      out[k] = value;
    } else {
      out[k] = to_bf16(value);
    }
  }
}

}  // namespace

void embed(CpuContext& cpu, View out, const LinearWeight& table, std::span<const int32_t> tokens,
           float scale) {
  const LinearLayout layout(table.spec);
  const auto unit_f32 = TF_ISA_FUNCTION(cpu.isa, scale_unit_f32);
  const auto unit_bf16 = TF_ISA_FUNCTION(cpu.isa, scale_unit_bf16);
  const auto row = [&](auto* out_row, int64_t token, auto scale_unit) {
    if (table.spec.format != WeightFormat::kFloat) {
      group_row(out_row, table, layout, token, scale, scale_unit);
    } else {
      float_row(out_row, table, layout, token, scale);
    }
  };
  for_row_blocks(cpu.pool, out.num_rows(), out.dim(1), [&](int64_t t) {
    const int64_t token = tokens[static_cast<size_t>(t)];
    if (out.dtype == DType::kF32) {
      row(out.row<float>(t), token, unit_f32);
    } else {
      row(out.row<bf16>(t), token, unit_bf16);
    }
  });
}

}  // namespace tensorfold::cpu
#endif
