// linear()'s kernels for CPUs with VDPBF16PS: bf16 activations, weights that are bf16 or small integers, which bf16
// holds exactly. One instruction is one step of arithmetic.md, "Linear", for 16 outputs.
//
// An integer becomes bf16 by table lookup. Words of packed weights are shifted so that a field lies at bit 0 of both
// halves of each word, and VPERMW reads 32 halves at once from a table of 32 entries; narrower fields have a table
// that repeats, so that the bits above them do not matter. That is two instructions for 32 weights beside the one
// that multiplies them. On Zen 5 (two each of lookup, shift and VDPBF16PS per cycle in four pipes) 64 bytes of 4-bit
// weights take about 3.3 cycles, 80 GB/s for a core at 4.2 GHz: more than memory gives it.
//
// Compiled with flags of its own (src/ops/CMakeLists.txt) and called after a check of the CPU. Includes nothing whose
// inline functions could be shared with other files.
#include <immintrin.h>

#include <utility>

#include "ops/cpu/linear_kernels.h"
#include "ops/linear_layout.h"

namespace tensorfold::cpu {
namespace {

constexpr int kBlocks = 2;  ///< Registers of 16 outputs in a panel.

/// Lambdas are kernels' loop bodies here: registers must not become memory at a call.
#define TF_INLINE __attribute__((always_inline))

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

/// Turns words into operands of VDPBF16PS. `field<kField>(words)` is the kField-th whole field of a vector's words;
/// `rest<kStep>(unit, block)` is a step that is put together from several vectors' spare bits.
template <int kBits>
class Decoder {
 public:
  Decoder() {
    static constexpr WordTable<kBits, 1> kTable;
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
      index = _mm512_ternarylogic_epi32(index, bit, _mm512_set1_epi16(1 << kBit), 0xf8);  // index | (bit & mask)
    });
    return _mm512_permutexvar_epi16(index, table_);
  }

 private:
  __m512i table_;
};

template <>
class Decoder<6> {
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
    const __m512i index = _mm512_ternarylogic_epi32(low, high, _mm512_set1_epi16(0x30), 0xf8);  // low | (high & mask)
    return _mm512_permutex2var_epi16(low_, index, high_);
  }

 private:
  __m512i low_, high_;
};

/// 8 bits: bytes are looked up, 64 at once. A stored byte c has its top bit inverted: below 0x80 it stands for
/// 128 + c, whose bf16 is 0x43 and c itself; from 0x80 on for c - 0x80, whose two bytes come from tables.
template <>
class Decoder<8> {
 public:
  Decoder() {
    static constexpr ByteTable kTable;
    low0_ = _mm512_load_si512(kTable.low);
    low1_ = _mm512_load_si512(kTable.low + 64);
    high0_ = _mm512_load_si512(kTable.high);
    high1_ = _mm512_load_si512(kTable.high + 64);
  }

  /// A vector holds two steps whose bytes alternate: decoded together (once: the compiler sees the same expressions)
  /// and merged by VPSHUFB.
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

TF_INLINE inline __m512 step(__m512 acc, __m512i x, __m512i w) {
  return _mm512_dpbf16_ps(acc, (__m512bh)x, (__m512bh)w);
}

/// Scales or biases of 16 outputs. The branch is the same for a whole matrix.
TF_INLINE inline __m512 load_scales(DType dtype, const std::byte* scales, int block) {
  if (dtype == DType::kF32) return _mm512_load_ps(reinterpret_cast<const float*>(scales) + 16 * block);
  const __m256i halves = _mm256_load_si256(reinterpret_cast<const __m256i*>(scales) + block);
  if (dtype == DType::kF16) return _mm512_cvtph_ps(halves);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

/// Sums of kRows rows and two blocks of outputs.
template <int kRows>
struct Sums {
  __m512 at[kRows][kBlocks];

  TF_INLINE void clear() {
    unroll<kRows>([&](auto r) TF_INLINE {
      unroll<kBlocks>([&](auto c) TF_INLINE { at[r][c] = _mm512_setzero_ps(); });
    });
  }
};

/// x of kRows rows, moving along the columns. Rows are reached from every fourth one by the multiples that an address
/// can hold, so that eight rows take few registers.
template <int kRows>
class Rows {
 public:
  Rows(const std::byte* x, int64_t stride) : stride_(stride) {
    for (int q = 0; q < kQuads; ++q) quads_[q] = x + 4 * q * stride;
  }
  TF_INLINE void advance(int64_t steps) {
    for (int q = 0; q < kQuads; ++q) quads_[q] += 4 * steps;
  }
  /// The columns of step `step` of row kRow, in every lane.
  template <int kRow>
  TF_INLINE __m512i pair(int step) const {
    const std::byte* row = quads_[kRow / 4] + kRow % 4 * stride_;
    return _mm512_set1_epi32(reinterpret_cast<const int32_t*>(row)[step]);
  }

 private:
  static constexpr int kQuads = (kRows + 3) / 4;
  const std::byte* quads_[kQuads];
  int64_t stride_;
};

/// sums += x.w for one step: w0 and w1 are the two blocks' weights.
template <int kRows>
TF_INLINE inline void add_step(Sums<kRows>& sums, const Rows<kRows>& rows, int step_idx, __m512i w0, __m512i w1) {
  unroll<kRows>([&](auto r) TF_INLINE {
    const __m512i pair = rows.template pair<r>(step_idx);
    sums.at[r][0] = step(sums.at[r][0], pair, w0);
    sums.at[r][1] = step(sums.at[r][1], pair, w1);
  });
}

/// The segments' sums and their tree. In memory: eight rows' are 8 KB, written once per segment.
template <int kRows>
class Segments {
 public:
  TF_INLINE void push(const Sums<kRows>& sums) { sums_[count_++] = sums; }

  void store_tree(float* out) {
    while (count_ < kSegments) sums_[count_++].clear();
#pragma GCC unroll 1
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kBlocks; ++c) {
        const auto s = [&](int i) TF_INLINE { return sums_[i].at[r][c]; };
        const __m512 low = _mm512_add_ps(_mm512_add_ps(s(0), s(1)), _mm512_add_ps(s(2), s(3)));
        const __m512 high = _mm512_add_ps(_mm512_add_ps(s(4), s(5)), _mm512_add_ps(s(6), s(7)));
        _mm512_store_ps(out + r * kPanelOutputs + 16 * c, _mm512_add_ps(low, high));
      }
    }
  }

 private:
  Sums<kRows> sums_[kSegments];
  int count_ = 0;
};

/// Asks for the 128 bytes that are read kPrefetchBytes later, unless they lie beyond `end`.
TF_INLINE inline void prefetch_ahead(const std::byte* p, const std::byte* end) {
  const std::byte* ahead = p + kPrefetchBytes;
  ahead = ahead < end ? ahead : p;
  _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
  _mm_prefetch(reinterpret_cast<const char*>(ahead) + 64, _MM_HINT_T0);
}

/// d += x.q over a unit. A loop over vectors, not unrolled: with a kernel per width and number of rows, code would
/// outgrow what a loop of 8 to 200 instructions gains by it.
template <int kBits, int kRows>
TF_INLINE inline void add_unit(Sums<kRows>& d, const Decoder<kBits>& decoder, Rows<kRows>& rows,
                               const std::byte* unit, const std::byte* prefetch_end) {
  constexpr int kFields = whole_steps_per_vector(kBits);
#pragma GCC unroll 1
  for (int v = 0; v < kBits; ++v) {
    const __m512i w0 = load_words(unit, v, 0), w1 = load_words(unit, v, 1);
    prefetch_ahead(unit + v * kBlocks * 64, prefetch_end);
    unroll<kFields>([&](auto f) TF_INLINE {
      add_step(d, rows, f, decoder.template field<f>(w0), decoder.template field<f>(w1));
    });
    rows.advance(kFields);
  }
  constexpr int kRest = kUnitSteps - whole_steps(kBits);
  if constexpr (kRest > 0) {
    unroll<kRest>([&](auto i) TF_INLINE {
      constexpr int kStep = whole_steps(kBits) + i;
      add_step(d, rows, i, decoder.template rest<kStep>(unit, 0), decoder.template rest<kStep>(unit, 1));
    });
    rows.advance(kRest);
  }
}

template <int kBits, int kRows>
void affine_panel(const PanelArgs& args) {
  constexpr int64_t kUnitBytes = kPanelOutputs * kUnitColumns * kBits / 8;
  const Decoder<kBits> decoder;
  const DType dtype = args.shape.scale_dtype;
  const int64_t scale_bytes = kPanelOutputs * (dtype == DType::kF32 ? 4 : 2);
  const std::byte* p = args.panel;
  Rows<kRows> rows(args.x, args.x_stride_bytes);
  Segments<kRows> segments;
  int64_t column = 0, group = 0;
  while (column < args.shape.columns) {
    const int64_t segment_end = column + args.shape.segment_columns;
    const int64_t end = segment_end < args.shape.columns ? segment_end : args.shape.columns;
    Sums<kRows> acc;
    acc.clear();
    for (; column < end; ++group) {
      const std::byte* scales = p;
      p += 2 * scale_bytes;
      Sums<kRows> d;
      d.clear();
      for (const int64_t group_end = column + args.shape.group_columns; column < group_end; column += kUnitColumns) {
        add_unit<kBits>(d, decoder, rows, p, args.prefetch_end);
        p += kUnitBytes;
      }
      unroll<kBlocks>([&](auto c) TF_INLINE {
        const __m512 scale = load_scales(dtype, scales, c), bias = load_scales(dtype, scales + scale_bytes, c);
        unroll<kRows>([&](auto r) TF_INLINE {
          const __m512 xs = _mm512_set1_ps(args.group_sums[r * args.group_sums_stride + group]);
          acc.at[r][c] = _mm512_fmadd_ps(scale, d.at[r][c], _mm512_fmadd_ps(bias, xs, acc.at[r][c]));
        });
      });
    }
    segments.push(acc);
  }
  segments.store_tree(args.sums);
}

template <int kRows>
void bf16_panel(const PanelArgs& args) {
  const std::byte* p = args.panel;
  Rows<kRows> rows(args.x, args.x_stride_bytes);
  Segments<kRows> segments;
  int64_t column = 0;
  while (column < args.shape.columns) {
    const int64_t segment_end = column + args.shape.segment_columns;
    const int64_t end = segment_end < args.shape.columns ? segment_end : args.shape.columns;
    Sums<kRows> acc;
    acc.clear();
    for (; column < end; column += 2, p += 2 * 64) {
      add_step(acc, rows, 0, _mm512_load_si512(p), _mm512_load_si512(p + 64));
      prefetch_ahead(p, args.prefetch_end);
      rows.advance(1);
    }
    segments.push(acc);
  }
  segments.store_tree(args.sums);
}

/// 16 sums of 32 registers, more than VDPBF16PS's latency of 6 needs at two a cycle. A segment's running sums, read
/// and written once per group, lie partly in memory; with more rows the compiler moves the sums themselves in and out
/// (measured on Zen 5, 4 bits: 8 rows 260 GMAC/s on one core, 12 rows 220).
constexpr int kMaxRows = 8;

template <int kBits>
void affine_rows(const PanelArgs& args) {
  [&]<int... R>(std::integer_sequence<int, R...>) {
    static constexpr PanelKernel kByRows[] = {affine_panel<kBits, R + 1>...};
    kByRows[args.num_rows - 1](args);
  }
  (std::make_integer_sequence<int, kMaxRows>{});
}

void bf16_rows(const PanelArgs& args) {
  [&]<int... R>(std::integer_sequence<int, R...>) {
    static constexpr PanelKernel kByRows[] = {bf16_panel<R + 1>...};
    kByRows[args.num_rows - 1](args);
  }
  (std::make_integer_sequence<int, kMaxRows>{});
}

/// Lanes run over groups: step s of 16 groups is gathered, and multiplied by a pair of ones.
void group_sums(float* sums, const void* x, int64_t num_groups, int64_t group_columns) {
  const __m512i ones = _mm512_set1_epi32(0x3f803f80);
  const int words = static_cast<int>(group_columns / 2);
  const __m512i offsets = _mm512_mullo_epi32(
      _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi32(words));
  const auto* row = static_cast<const int32_t*>(x);
  for (int64_t g = 0; g < num_groups; g += 16, row += 16 * words) {
    const int64_t left = num_groups - g;
    const auto mask = static_cast<__mmask16>(left >= 16 ? 0xffff : (1 << left) - 1);
    __m512 acc = _mm512_setzero_ps();
    for (int s = 0; s < words; ++s) {
      const __m512i pair = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), mask, offsets, row + s, 4);
      acc = step(acc, pair, ones);
    }
    _mm512_mask_storeu_ps(sums + g, mask, acc);
  }
}

PanelKernel affine_kernel(int bits) {
  switch (bits) {
    case 2: return affine_rows<2>;
    case 3: return affine_rows<3>;
    case 4: return affine_rows<4>;
    case 5: return affine_rows<5>;
    case 6: return affine_rows<6>;
    default: return affine_rows<8>;
  }
}

}  // namespace

LinearKernels linear_kernels_avx512bf16(const LinearSpec& spec) {
  const bool is_affine = spec.format == WeightFormat::kAffine;
  return {.x_dtype = DType::kBF16,
          .panel = is_affine ? affine_kernel(spec.bits) : bf16_rows,
          .max_rows = kMaxRows,
          .group_sums = group_sums};
}

}  // namespace tensorfold::cpu
