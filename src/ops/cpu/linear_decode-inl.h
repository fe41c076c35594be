// Packed weights (linear_layout.h) to fp32 registers. Included once per instruction set.

#if defined(TENSORFOLD_OPS_CPU_LINEAR_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TENSORFOLD_OPS_CPU_LINEAR_DECODE_INL_H_
#undef TENSORFOLD_OPS_CPU_LINEAR_DECODE_INL_H_
#else
#define TENSORFOLD_OPS_CPU_LINEAR_DECODE_INL_H_
#endif

#include <utility>

#include "base/mxfp4.h"
#include "hwy/highway.h"
#include "ops/linear_layout.h"

/// Lambdas are kernels' loop bodies here: registers must not become memory at a call.
#undef TF_INLINE
#define TF_INLINE __attribute__((always_inline))

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using DU = hn::RebindToUnsigned<D>;
using V = hn::Vec<D>;
constexpr int kLanes = static_cast<int>(HWY_LANES(float));
constexpr int kPanelVectors = static_cast<int>(kPanelOutputs) / kLanes;  ///< Registers of a panel's outputs.

/// body(0) .. body(kCount - 1), each with its index as a compile-time constant.
template <int kCount, class Body>
TF_INLINE inline void unroll(const Body& body) {
  [&]<int... I>(std::integer_sequence<int, I...>) TF_INLINE { (body(std::integral_constant<int, I>{}), ...); }
  (std::make_integer_sequence<int, kCount>{});
}

/// Words of vector `vector` of a unit, for the outputs of register `c`.
TF_INLINE inline hn::Vec<DU> load_words(const std::byte* unit, int vector, int c) {
  return hn::Load(DU(), reinterpret_cast<const uint32_t*>(unit) + vector * kPanelOutputs + c * kLanes);
}

/// kCount bits of each word, from bit kBit on.
template <int kBit, int kCount>
TF_INLINE inline hn::Vec<DU> cut(hn::Vec<DU> words) {
  const auto shifted = hn::ShiftRight<kBit>(words);
  if constexpr (kBit + kCount == 32) return shifted;
  return hn::And(shifted, hn::Set(DU(), (1u << kCount) - 1));
}

TF_INLINE inline V to_floats(hn::Vec<DU> integers) {
  return hn::ConvertTo(D(), hn::BitCast(hn::RebindToSigned<D>(), integers));
}

#if HWY_TARGET == HWY_AVX3
/// A register of a table of 16 by the low four bits of each word: one instruction, which does not mind the
/// bits above them.
TF_INLINE inline V look_up(const float* table, hn::Vec<DU> words) {
  return hn::TableLookupLanes(hn::Load(D(), table), hn::Indices512<float>{words.raw});
}

/// 0 .. 2^kBits - 1, repeated.
template <int kBits>
struct IntegerTable {
  alignas(64) float value[16];
  constexpr IntegerTable() : value() {
    for (int i = 0; i < 16; ++i) value[i] = static_cast<float>(i % (1 << kBits));
  }
};
template <int kBits>
inline constexpr IntegerTable<kBits> kIntegers;
#endif

/// Integers of kWidth bits, in groups with biases.
template <int kWidth>
struct Integers {
  static constexpr int kBits = kWidth;
  static constexpr bool kHasBiases = true;

  /// The kField-th whole field of a vector's words, of the even (kColumn 0) or odd (1) column.
  template <int kField, int kColumn>
  static TF_INLINE inline V field(hn::Vec<DU> words) {
#if HWY_TARGET == HWY_AVX3
    if constexpr (kBits <= 4)
      return look_up(kIntegers<kBits>.value, hn::ShiftRight<16 * kColumn + kField * kBits>(words));
#endif
    if constexpr (field_inversion(kBits) != 0)
      words = hn::Xor(words, hn::Set(DU(), field_inversion(kBits) * 0x01010101u));
    return to_floats(cut<16 * kColumn + kField * kBits, kBits>(words));
  }

  /// A step that is put together from several vectors' spare bits.
  template <int kStep, int kColumn>
  static TF_INLINE inline V rest(const std::byte* unit, int c) {
    constexpr FieldPieces kPieces = field_pieces(kBits, kStep);
    auto value = hn::Zero(DU());
    unroll<kPieces.size>([&](auto i) TF_INLINE {
      constexpr FieldPiece kPiece = kPieces.piece[i];
      const auto part = cut<16 * kColumn + kPiece.bit, kPiece.count>(load_words(unit, kPiece.vector, c));
      // Bits one by one (3 and 5 bits), or four and two (6 bits): each piece lies above i times the first's.
      value = hn::Or(value, hn::ShiftLeft<i * kPieces.piece[0].count>(part));
    });
    return to_floats(value);
  }
};

/// E2M1 values by code, and the bytes of their bf16.
struct E2m1Tables {
  alignas(64) float value[16];
  alignas(16) uint8_t low_byte[16];
  alignas(16) uint8_t high_byte[16];
  constexpr E2m1Tables() : value(), low_byte(), high_byte() {
    for (unsigned i = 0; i < 16; ++i) {
      value[i] = e2m1_value(i);
      low_byte[i] = static_cast<uint8_t>(e2m1_bf16_bits(i));
      high_byte[i] = static_cast<uint8_t>(e2m1_bf16_bits(i) >> 8);
    }
  }
};
inline constexpr E2m1Tables kE2m1;

/// The codes of MXFP4.
struct E2m1 {
  static constexpr int kBits = 4;
  static constexpr bool kHasBiases = false;

#if HWY_TARGET == HWY_AVX3
  template <int kField, int kColumn>
  static TF_INLINE inline V field(hn::Vec<DU> words) {
    return look_up(kE2m1.value, hn::ShiftRight<16 * kColumn + kField * 4>(words));
  }
#else
  // A register holds half a table or less, so bytes are looked up: the two of a bf16, for every second field
  // of a word at once. Fields 0 and 1 are in a half's low byte, 2 and 3 in its high byte. (What several calls
  // have in common is computed once: the compiler sees the same expressions.)
  template <int kField, int kColumn>
  static TF_INLINE inline V field(hn::Vec<DU> words) {
    const hn::Repartition<uint8_t, D> d8;
    const hn::Repartition<uint16_t, D> d16;
    if constexpr (kField % 2 == 1) words = hn::ShiftRight<4>(words);
    const auto codes = hn::BitCast(d8, hn::And(words, hn::Set(DU(), 0x0f0f0f0fu)));
    const auto low = hn::BitCast(d16, hn::TableLookupBytes(hn::LoadDup128(d8, kE2m1.low_byte), codes));
    const auto high = hn::BitCast(d16, hn::TableLookupBytes(hn::LoadDup128(d8, kE2m1.high_byte), codes));
    const auto halves = kField < 2 ? hn::Or(hn::ShiftLeft<8>(high), hn::And(low, hn::Set(d16, 0x00ffu)))
                                   : hn::Or(hn::And(high, hn::Set(d16, 0xff00u)), hn::ShiftRight<8>(low));
    const auto pair = hn::BitCast(DU(), halves);
    return hn::BitCast(D(),
                       kColumn == 0 ? hn::ShiftLeft<16>(pair) : hn::And(pair, hn::Set(DU(), 0xffff0000u)));
  }
#endif
};

/// Decodes registers [first, first + count) of a unit's outputs to weights [32 columns][32], from the row's
/// start on.
using DecodeUnit = void (*)(float* weights, const std::byte* unit, int first, int count);

template <class Coding>
void decode_unit(float* weights, const std::byte* unit, int first, int count) {
  constexpr int kBits = Coding::kBits, kFields = whole_steps_per_vector(kBits);
  const auto store = [&](int column, int c, V values)
                         TF_INLINE { hn::Store(values, D(), weights + column * kPanelOutputs + c * kLanes); };
  for (int c = 0; c < count; ++c) {
    for (int v = 0; v < kBits; ++v) {
      const auto words = load_words(unit, v, first + c);
      unroll<kFields>([&](auto f) TF_INLINE {
        store(2 * (v * kFields + f), c, Coding::template field<f, 0>(words));
        store(2 * (v * kFields + f) + 1, c, Coding::template field<f, 1>(words));
      });
    }
    if constexpr (constexpr int kRest = kUnitSteps - whole_steps(kBits); kRest > 0) {
      unroll<kRest>([&](auto i) TF_INLINE {
        constexpr int kStep = whole_steps(kBits) + i;
        store(2 * kStep, c, Coding::template rest<kStep, 0>(unit, first + c));
        store(2 * kStep + 1, c, Coding::template rest<kStep, 1>(unit, first + c));
      });
    }
  }
}

TF_INLINE inline V widen_bf16(hn::Vec<DU> halves) { return hn::BitCast(D(), hn::ShiftLeft<16>(halves)); }

/// Scales or biases of the outputs of register `c`. The branch is the same for a whole matrix.
TF_INLINE inline V load_scales(DType dtype, const std::byte* scales, int c) {
  const D d;
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<hwy::float16_t, D> df16;
  if (dtype == DType::kF32) return hn::Load(d, reinterpret_cast<const float*>(scales) + c * kLanes);
  const auto halves = hn::Load(d16, reinterpret_cast<const uint16_t*>(scales) + c * kLanes);
  if (dtype == DType::kF16) return hn::PromoteTo(d, hn::BitCast(df16, halves));
  return widen_bf16(hn::PromoteTo(DU(), halves));
}

/// Column kColumn of a pair of columns of float weights, for the outputs of register `c`.
template <DType kDType, int kColumn>
TF_INLINE inline V elements(const std::byte* pair, int c) {
  if constexpr (kDType == DType::kF32) {
    return hn::Load(D(), reinterpret_cast<const float*>(pair) + kColumn * kPanelOutputs + c * kLanes);
  } else if constexpr (kDType == DType::kBF16) {
    const auto words = load_words(pair, 0, c);
    return kColumn == 0 ? widen_bf16(words) : hn::BitCast(D(), hn::And(words, hn::Set(DU(), 0xffff0000u)));
  } else {
    const hn::Rebind<uint16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> df16;
    const auto words = load_words(pair, 0, c);
    const auto halves = kColumn == 0 ? hn::And(words, hn::Set(DU(), 0xffffu)) : hn::ShiftRight<16>(words);
    return hn::PromoteTo(D(), hn::BitCast(df16, hn::TruncateTo(d16, halves)));
  }
}

/// Decodes a pair of columns of float weights to weights [2 columns][32].
template <DType kDType>
TF_INLINE inline void decode_pair(float* weights, const std::byte* pair) {
  for (int c = 0; c < kPanelVectors; ++c) {
    hn::Store(elements<kDType, 0>(pair, c), D(), weights + c * kLanes);
    hn::Store(elements<kDType, 1>(pair, c), D(), weights + kPanelOutputs + c * kLanes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#endif
