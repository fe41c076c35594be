// Packed integers (linear_layout.h) to operands of VDPBF16PS. For linear_avx512bf16.cc alone, with its flags.
//
// An integer becomes bf16 by table lookup. Words of packed weights are shifted so that a field lies at bit 0
// of both halves of each word, and VPERMW reads 32 halves at once from a table of 32 entries; narrower fields
// have a table that repeats, so that the bits above them do not matter. That is two instructions for 32
// weights beside the one that multiplies them.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/mxfp4.h"
#include "ops/linear_layout.h"

/// Lambdas are kernels' loop bodies here: registers must not become memory at a call.
#define TF_INLINE __attribute__((always_inline))

// Unnamed: these must not be merged with functions compiled for other CPUs.
namespace tensorfold::cpu {
namespace {

constexpr int kBlocks = 2;  ///< Registers of 16 outputs in a panel.

/// body(0) .. body(kCount - 1), each with its index as a compile-time constant.
template <int kCount, class Body>
TF_INLINE inline void unroll(const Body& body) {
  [&]<int... I>(std::integer_sequence<int, I...>) TF_INLINE { (body(std::integral_constant<int, I>{}), ...); }
  (std::make_integer_sequence<int, kCount>{});
}

/// bf16 of a small integer, as compile-time arithmetic.
constexpr uint16_t bf16_of(int integer) {
  if (integer == 0) return 0;
  int exponent = 0;
  while (integer >> (exponent + 1)) ++exponent;
  return static_cast<uint16_t>((127 + exponent) << 7 | ((integer << 7 >> exponent) & 0x7f));
}

/// Tables of 2^kBits entries, repeated to fill kRegisters registers.
template <int kBits, int kRegisters>
struct WordTable {
  alignas(64) uint16_t entry[32 * kRegisters];
  constexpr WordTable() : entry() {
    for (int i = 0; i < 32 * kRegisters; ++i) entry[i] = bf16_of(i % (1 << kBits));
  }
};

/// The table of E2M1 codes, repeated likewise.
struct E2m1Table {
  alignas(64) uint16_t entry[32];
  constexpr E2m1Table() : entry() {
    for (unsigned i = 0; i < 32; ++i) entry[i] = e2m1_bf16_bits(i % 16);
  }
};

/// Low and high bytes of the bf16 of 0..127.
struct ByteTable {
  alignas(64) uint8_t low[128];
  alignas(64) uint8_t high[128];
  constexpr ByteTable() : low(), high() {
    for (int i = 0; i < 128; ++i) {
      low[i] = static_cast<uint8_t>(bf16_of(i));
      high[i] = static_cast<uint8_t>(bf16_of(i) >> 8);
    }
  }
};

/// The words of vector `vector` of a unit, for one block of outputs.
TF_INLINE inline __m512i load_words(const std::byte* unit, int vector, int block) {
  return _mm512_load_si512(unit + (vector * kBlocks + block) * 64);
}

/// The width of the integers, and whether groups have biases.
template <int kWidth, bool kBiases = true>
struct Coding {
  static constexpr int kBits = kWidth;
  static constexpr bool kHasBiases = kBiases;
};

/// Turns words into operands of VDPBF16PS. `field<kField>(words)` is the kField-th whole field of a vector's
/// words; `rest<kStep>(unit, block)` is a step that is put together from several vectors' spare bits.
template <int kBits, class Table = WordTable<kBits, 1>, bool kHasBiases = true>
class Decoder : public Coding<kBits, kHasBiases> {
 public:
  Decoder() {
    static constexpr Table kTable;
    table_ = _mm512_load_si512(kTable.entry);
  }

  template <int kField>
  TF_INLINE __m512i field(__m512i words) const {
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(words, kField * kBits), table_);
  }

  template <int kStep>
  TF_INLINE __m512i rest(const std::byte* unit, int block) const {
    // Bit 15 of vector v becomes bit v.
    __m512i index = _mm512_srli_epi16(load_words(unit, 0, block), 15);
    unroll<kBits - 1>([&](auto i) TF_INLINE {
      constexpr int kBit = i + 1;
      const __m512i bit = _mm512_srli_epi16(load_words(unit, kBit, block), 15 - kBit);
      index =
          _mm512_ternarylogic_epi32(index, bit, _mm512_set1_epi16(1 << kBit), 0xf8);  // index | (bit & mask)
    });
    return _mm512_permutexvar_epi16(index, table_);
  }

 private:
  __m512i table_;
};

template <>
class Decoder<6> : public Coding<6> {
 public:
  Decoder() {
    static constexpr WordTable<6, 2> kTable;
    low_ = _mm512_load_si512(kTable.entry);
    high_ = _mm512_load_si512(kTable.entry + 32);
  }

  template <int kField>
  TF_INLINE __m512i field(__m512i words) const {
    return _mm512_permutex2var_epi16(low_, _mm512_srli_epi16(words, kField * 6), high_);
  }

  template <int kStep>
  TF_INLINE __m512i rest(const std::byte* unit, int block) const {
    constexpr FieldPieces kPieces = field_pieces(6, kStep);
    constexpr FieldPiece kLow = kPieces.piece[0], kHigh = kPieces.piece[1];
    const __m512i low = _mm512_srli_epi16(load_words(unit, kLow.vector, block), kLow.bit);
    const __m512i high = _mm512_srli_epi16(load_words(unit, kHigh.vector, block), kHigh.bit - kLow.count);
    const __m512i index =
        _mm512_ternarylogic_epi32(low, high, _mm512_set1_epi16(0x30), 0xf8);  // low | (high & mask)
    return _mm512_permutex2var_epi16(low_, index, high_);
  }

 private:
  __m512i low_, high_;
};

/// 8 bits: bytes are looked up, 64 at once. A stored byte c has its top bit inverted: below 0x80 it stands
/// for 128 + c, whose bf16 is 0x43 and c itself; from 0x80 on for c - 0x80, whose two bytes come from tables.
template <>
class Decoder<8> : public Coding<8> {
 public:
  Decoder() {
    static constexpr ByteTable kTable;
    low0_ = _mm512_load_si512(kTable.low);
    low1_ = _mm512_load_si512(kTable.low + 64);
    high0_ = _mm512_load_si512(kTable.high);
    high1_ = _mm512_load_si512(kTable.high + 64);
  }

  /// A vector holds two steps whose bytes alternate: decoded together (once: the compiler sees the same
  /// expressions) and merged by VPSHUFB.
  template <int kField>
  TF_INLINE __m512i field(__m512i bytes) const {
    const __mmask64 is_small = _mm512_movepi8_mask(bytes);
    const __m512i low = _mm512_mask2_permutex2var_epi8(low0_, bytes, is_small, low1_);
    const __m512i high = _mm512_mask_blend_epi8(is_small, _mm512_set1_epi8(0x43),
                                                _mm512_permutex2var_epi8(high0_, bytes, high1_));
    if constexpr (kField == 0) {
      return _mm512_mask_shuffle_epi8(low, 0xaaaaaaaaaaaaaaaaull, high, from_even());
    } else {
      return _mm512_mask_shuffle_epi8(high, 0x5555555555555555ull, low, from_odd());
    }
  }

 private:
  /// The byte below each odd byte, and the byte above each even one.
  static __m512i from_even() { return _mm512_set4_epi32(0x0e0e0c0c, 0x0a0a0808, 0x06060404, 0x02020000); }
  static __m512i from_odd() { return _mm512_set4_epi32(0x0f0f0d0d, 0x0b0b0909, 0x07070505, 0x03030101); }

  __m512i low0_, low1_, high0_, high1_;
};

using Mxfp4Decoder = Decoder<4, E2m1Table, /*kHasBiases=*/false>;

}  // namespace
}  // namespace tensorfold::cpu
