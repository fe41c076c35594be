// Packed weights (linear_layout.h) to fp32 registers and tiles. Included once per instruction set.

#if defined(TENSORFOLD_OPS_CPU_LINEAR_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TENSORFOLD_OPS_CPU_LINEAR_DECODE_INL_H_
#undef TENSORFOLD_OPS_CPU_LINEAR_DECODE_INL_H_
#else
#define TENSORFOLD_OPS_CPU_LINEAR_DECODE_INL_H_
#endif

#include <utility>

#include "hwy/highway.h"
#include "ops/cpu/linear_kernels.h"
#include "ops/linear_layout.h"

/// Lambdas are kernels' loop bodies here: registers must not become memory at a call.
#undef TF_INLINE
#define TF_INLINE __attribute__((always_inline))

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr int kLanes = static_cast<int>(HWY_LANES(float));
constexpr int kVectors = static_cast<int>(kPanelOutputs) / kLanes;  ///< Registers of a panel's outputs.

/// body(0) .. body(kCount - 1), each with its index as a compile-time constant.
template <int kCount, class Body>
TF_INLINE inline void unroll(const Body& body) {
  [&]<int... I>(std::integer_sequence<int, I...>) TF_INLINE { (body(std::integral_constant<int, I>{}), ...); }
  (std::make_integer_sequence<int, kCount>{});
}

constexpr int64_t scale_size(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

/// Words of vector `vector` of a unit, for the outputs of register `c`.
TF_INLINE inline hn::Vec<hn::RebindToUnsigned<D>> load_words(const std::byte* unit, int vector, int c) {
  const hn::RebindToUnsigned<D> du;
  return hn::Load(du, reinterpret_cast<const uint32_t*>(unit) + vector * kPanelOutputs + c * kLanes);
}

/// Column kColumn of a unit, as fp32, for the outputs of register `c`.
template <int kBits, int kColumn>
TF_INLINE inline V integers(const std::byte* unit, int c) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  constexpr FieldPieces kPieces = field_pieces(kBits, kColumn / 2);
  auto value = hn::Zero(du);
  unroll<kPieces.size>([&](auto i) TF_INLINE {
    constexpr FieldPiece kPiece = kPieces.piece[i];
    constexpr int kBit = kPiece.bit + kColumn % 2 * 16;
    // Pieces of several bits come first, so that their places in the value are the sum of the counts before them.
    constexpr int kPlace = i * kPieces.piece[0].count;
    auto part = hn::ShiftRight<kBit>(load_words(unit, kPiece.vector, c));
    if constexpr (kBit + kPiece.count < 32) part = hn::And(part, hn::Set(du, (1u << kPiece.count) - 1));
    value = i == 0 ? part : hn::Or(value, hn::ShiftLeft<kPlace>(part));
  });
  if constexpr (field_inversion(kBits) != 0) value = hn::Xor(value, hn::Set(du, field_inversion(kBits)));
  return hn::ConvertTo(D(), hn::BitCast(di, value));
}

/// Scales or biases of the outputs of register `c`.
template <DType kDType>
TF_INLINE inline V load_scales(const std::byte* scales, int c) {
  const D d;
  if constexpr (kDType == DType::kF32) {
    return hn::Load(d, reinterpret_cast<const float*>(scales) + c * kLanes);
  } else if constexpr (kDType == DType::kF16) {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(d, hn::Load(d16, reinterpret_cast<const hwy::float16_t*>(scales) + c * kLanes));
  } else {
    const hn::Rebind<uint16_t, D> d16;
    const hn::RebindToUnsigned<D> du;
    const auto halves = hn::Load(d16, reinterpret_cast<const uint16_t*>(scales) + c * kLanes);
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, halves)));
  }
}

template <int kBits, DType kDType>
void decode_affine(const DecodedTile& tile, const std::byte* p, int64_t num_groups, const PanelShape& shape) {
  constexpr int64_t kScaleBytes = kPanelOutputs * scale_size(kDType);
  constexpr int64_t kUnitBytes = kPanelOutputs * kUnitColumns * kBits / 8;
  const D d;
  auto* out = reinterpret_cast<float*>(tile.weights);
  for (int64_t g = 0; g < num_groups; ++g) {
    for (int c = 0; c < kVectors; ++c) {
      hn::Store(load_scales<kDType>(p, c), d, tile.scales + g * kPanelOutputs + c * kLanes);
      hn::Store(load_scales<kDType>(p + kScaleBytes, c), d, tile.biases + g * kPanelOutputs + c * kLanes);
    }
    p += 2 * kScaleBytes;
    for (int64_t u = 0; u < shape.units_per_group; ++u, p += kUnitBytes, out += kUnitColumns * kPanelOutputs) {
      for (int c = 0; c < kVectors; ++c) {
        unroll<kUnitColumns>([&](auto k) TF_INLINE {
          hn::Store(integers<kBits, k>(p, c), d, out + k * kPanelOutputs + c * kLanes);
        });
      }
    }
  }
}

/// Chunks of bf16 weights: words hold an even column below an odd one.
inline void decode_bf16(const DecodedTile& tile, const std::byte* p, int64_t num_chunks, const PanelShape& shape) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  auto* out = reinterpret_cast<float*>(tile.weights);
  for (int64_t i = 0; i < num_chunks; ++i, p += shape.chunk_bytes, out += 2 * kPanelOutputs) {
    for (int c = 0; c < kVectors; ++c) {
      const auto words = load_words(p, 0, c);
      hn::Store(hn::BitCast(d, hn::ShiftLeft<16>(words)), d, out + c * kLanes);
      hn::Store(hn::BitCast(d, hn::And(words, hn::Set(du, 0xffff0000u))), d, out + kPanelOutputs + c * kLanes);
    }
  }
}

/// The same for f16.
inline void decode_f16(const DecodedTile& tile, const std::byte* p, int64_t num_chunks, const PanelShape& shape) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> du16;
  const hn::Rebind<hwy::float16_t, D> d16;
  const auto widen = [&](hn::Vec<hn::RebindToUnsigned<D>> halves) TF_INLINE {
    return hn::PromoteTo(d, hn::BitCast(d16, hn::TruncateTo(du16, halves)));
  };
  auto* out = reinterpret_cast<float*>(tile.weights);
  for (int64_t i = 0; i < num_chunks; ++i, p += shape.chunk_bytes, out += 2 * kPanelOutputs) {
    for (int c = 0; c < kVectors; ++c) {
      const auto words = load_words(p, 0, c);
      hn::Store(widen(hn::And(words, hn::Set(du, 0xffffu))), d, out + c * kLanes);
      hn::Store(widen(hn::ShiftRight<16>(words)), d, out + kPanelOutputs + c * kLanes);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#endif
