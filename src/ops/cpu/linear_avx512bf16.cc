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

/// Turns the vectors of a unit into operands of VDPBF16PS. `operand<step>(w)` takes vector w[v] of 16 outputs.
template <int kBits>
class Decoder {
 public:
  Decoder() {
    static constexpr WordTable<kBits, 1> kTable;
    table_ = _mm512_load_si512(kTable.entry);
  }

  template <int kStep>
  TF_INLINE __m512i operand(const __m512i (&w)[kBits]) const {
    constexpr FieldPieces kPieces = field_pieces(kBits, kStep);
    __m512i index;
    if constexpr (kPieces.size == 1) {
      constexpr FieldPiece kPiece = kPieces.piece[0];
      index = _mm512_srli_epi16(w[kPiece.vector], kPiece.bit);
    } else {
      // One bit of each vector: bit 15 of vector v becomes bit v.
      index = _mm512_srli_epi16(w[0], 15);
      unroll<kBits - 1>([&](auto i) TF_INLINE {
        constexpr int kBit = i + 1;
        index = _mm512_ternarylogic_epi32(index, _mm512_srli_epi16(w[kBit], 15 - kBit),
                                          _mm512_set1_epi16(1 << kBit), 0xf8);  // index | (shifted & mask)
      });
    }
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

  template <int kStep>
  TF_INLINE __m512i operand(const __m512i (&w)[6]) const {
    constexpr FieldPieces kPieces = field_pieces(6, kStep);
    __m512i index = _mm512_srli_epi16(w[kPieces.piece[0].vector], kPieces.piece[0].bit);
    if constexpr (kPieces.size == 2) {
      constexpr FieldPiece kHigh = kPieces.piece[1];
      index = _mm512_ternarylogic_epi32(index, _mm512_srli_epi16(w[kHigh.vector], kHigh.bit - 4),
                                        _mm512_set1_epi16(0x30), 0xf8);
    }
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

  /// A vector holds two steps whose bytes alternate; they are decoded together and merged by VPSHUFB.
  template <int kStep>
  TF_INLINE __m512i operand(const __m512i (&w)[8]) const {
    const __m512i bytes = w[kStep / 2];
    const __mmask64 is_small = _mm512_movepi8_mask(bytes);
    const __m512i low = _mm512_mask2_permutex2var_epi8(low0_, bytes, is_small, low1_);
    const __m512i high = _mm512_mask_blend_epi8(is_small, _mm512_set1_epi8(0x43),
                                                _mm512_permutex2var_epi8(high0_, bytes, high1_));
    if constexpr (kStep % 2 == 0) {
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

/// Scales or biases of 16 outputs.
template <DType kDType>
TF_INLINE inline __m512 load_scales(const std::byte* scales, int block) {
  if constexpr (kDType == DType::kF32) {
    return _mm512_load_ps(reinterpret_cast<const float*>(scales) + 16 * block);
  } else {
    const __m256i halves = _mm256_load_si256(reinterpret_cast<const __m256i*>(scales) + block);
    if constexpr (kDType == DType::kF16) return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
}

/// The sum of eight segments of 16 outputs.
inline __m512 tree(const __m512 (&s)[kSegments]) {
  return _mm512_add_ps(_mm512_add_ps(_mm512_add_ps(s[0], s[1]), _mm512_add_ps(s[2], s[3])),
                       _mm512_add_ps(_mm512_add_ps(s[4], s[5]), _mm512_add_ps(s[6], s[7])));
}

/// d += x.q over one unit for both blocks.
template <int kBits>
TF_INLINE inline void unit_dot(__m512 (&d)[kBlocks], const Decoder<kBits>& decoder,
                                            const std::byte* unit, const int32_t* x) {
  __m512i w[kBlocks][kBits];
  unroll<kBits>([&](auto v) TF_INLINE {
    unroll<kBlocks>([&](auto c) TF_INLINE { w[c][v] = _mm512_load_si512(unit + (v * kBlocks + c) * 64); });
  });
  unroll<kUnitSteps>([&](auto s) TF_INLINE {
    const __m512i pair = _mm512_set1_epi32(x[s]);
    unroll<kBlocks>([&](auto c) TF_INLINE { d[c] = step(d[c], pair, decoder.template operand<s>(w[c])); });
  });
}

template <int kBits, DType kDType>
void affine_row(const RowArgs& args) {
  constexpr int64_t kScaleBytes = kPanelOutputs * (kDType == DType::kF32 ? 4 : 2);
  constexpr int64_t kUnitBytes = kPanelOutputs * kUnitColumns * kBits / 8;
  const Decoder<kBits> decoder;
  const std::byte* p = args.panel;
  const auto* x = static_cast<const int32_t*>(args.x);
  const int64_t groups = args.shape.num_groups, units = args.shape.units_per_group;
  __m512 sums[kBlocks][kSegments];
  unroll<kSegments>([&](auto s) TF_INLINE {
    unroll<kBlocks>([&](auto c) TF_INLINE { sums[c][s] = _mm512_setzero_ps(); });
  });
  int64_t g = 0;
  for (int segment = 0; g < groups; ++segment) {
    __m512 acc[kBlocks] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    const int64_t end = g + args.shape.segment_groups < groups ? g + args.shape.segment_groups : groups;
    for (; g < end; ++g) {
      const std::byte* scales = p;
      p += 2 * kScaleBytes;
      __m512 d[kBlocks] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
      for (int64_t u = 0; u < units; ++u) {
        unit_dot<kBits>(d, decoder, p, x);
        p += kUnitBytes;
        x += kUnitSteps;
      }
      const __m512 xs = _mm512_set1_ps(args.group_sums[g]);
      unroll<kBlocks>([&](auto c) TF_INLINE {
        acc[c] = _mm512_fmadd_ps(load_scales<kDType>(scales + kScaleBytes, c), xs, acc[c]);
        acc[c] = _mm512_fmadd_ps(load_scales<kDType>(scales, c), d[c], acc[c]);
      });
    }
    unroll<kBlocks>([&](auto c) TF_INLINE { sums[c][segment] = acc[c]; });
  }
  unroll<kBlocks>([&](auto c) TF_INLINE { _mm512_store_ps(args.sums + 16 * c, tree(sums[c])); });
}

template <int kBits>
void decode_affine(const DecodedTile& tile, const std::byte* p, int64_t num_groups, const PanelShape& shape) {
  constexpr int64_t kUnitBytes = kPanelOutputs * kUnitColumns * kBits / 8;
  const Decoder<kBits> decoder;
  const int64_t scale_bytes = shape.chunk_bytes - shape.units_per_group * kUnitBytes;
  std::byte* out = tile.weights;
  for (int64_t g = 0; g < num_groups; ++g) {
    p += scale_bytes;
    for (int64_t u = 0; u < shape.units_per_group; ++u, p += kUnitBytes, out += kUnitSteps * kBlocks * 64) {
      unroll<kBlocks>([&](auto c) TF_INLINE {
        __m512i w[kBits];
        unroll<kBits>([&](auto v) TF_INLINE { w[v] = _mm512_load_si512(p + (v * kBlocks + c) * 64); });
        unroll<kUnitSteps>([&](auto s) TF_INLINE {
          _mm512_store_si512(out + (s * kBlocks + c) * 64, decoder.template operand<s>(w));
        });
      });
    }
  }
}

template <DType kDType>
void decode_scales(const DecodedTile& tile, const std::byte* p, int64_t num_groups, const PanelShape& shape) {
  constexpr int64_t kScaleBytes = kPanelOutputs * (kDType == DType::kF32 ? 4 : 2);
  for (int64_t g = 0; g < num_groups; ++g, p += shape.chunk_bytes) {
    unroll<kBlocks>([&](auto c) TF_INLINE {
      _mm512_store_ps(tile.scales + g * kPanelOutputs + 16 * c, load_scales<kDType>(p, c));
      _mm512_store_ps(tile.biases + g * kPanelOutputs + 16 * c, load_scales<kDType>(p + kScaleBytes, c));
    });
  }
}

template <int kBits, DType kDType>
void decode(const DecodedTile& tile, const std::byte* p, int64_t num_groups, const PanelShape& shape) {
  decode_scales<kDType>(tile, p, num_groups, shape);
  decode_affine<kBits>(tile, p, num_groups, shape);
}

/// Address of row kRow: rows are reached from every fourth one, so that few registers hold addresses.
template <int kRow>
TF_INLINE inline const std::byte* row_address(const std::byte* const* quads, int64_t stride) {
  return quads[kRow / 4] + kRow % 4 * stride;
}

/// kRows rows times a tile. Two broadcast columns of x meet two registers of weights: with 12 rows that is 24
/// independent sums, enough for VDPBF16PS's latency of 6 at two a cycle, and 14 loads.
template <int kRows, bool kIsAffine>
void tile_rows(const TileArgs& args) {
  constexpr int kQuads = (kRows + 3) / 4;
  const std::byte* quads[kQuads];
  for (int q = 0; q < kQuads; ++q) quads[q] = args.x + 4 * q * args.x_stride_bytes;
  const int64_t stride = args.x_stride_bytes;
  const std::byte* w = args.weights;
  for (int64_t g = 0; g < args.num_groups; ++g) {
    __m512 d[kRows][kBlocks];
    unroll<kRows>([&](auto r) TF_INLINE {
      unroll<kBlocks>([&](auto c) TF_INLINE {
        d[r][c] = kIsAffine ? _mm512_setzero_ps() : _mm512_load_ps(args.acc + r * kPanelOutputs + 16 * c);
      });
    });
    for (int64_t s = 0; s < args.steps_per_group; ++s, w += kBlocks * 64) {
      const __m512i w0 = _mm512_load_si512(w), w1 = _mm512_load_si512(w + 64);
      unroll<kRows>([&](auto r) TF_INLINE {
        const __m512i pair =
            _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(row_address<r>(quads, stride)));
        d[r][0] = step(d[r][0], pair, w0);
        d[r][1] = step(d[r][1], pair, w1);
      });
      for (int q = 0; q < kQuads; ++q) quads[q] += 4;
    }
    unroll<kRows>([&](auto r) TF_INLINE {
      float* acc = args.acc + r * kPanelOutputs;
      if constexpr (kIsAffine) {
        const __m512 xs = _mm512_set1_ps(args.group_sums[r * args.group_sums_stride + g]);
        unroll<kBlocks>([&](auto c) TF_INLINE {
          const __m512 scale = _mm512_load_ps(args.scales + g * kPanelOutputs + 16 * c);
          const __m512 bias = _mm512_load_ps(args.biases + g * kPanelOutputs + 16 * c);
          d[r][c] = _mm512_fmadd_ps(scale, d[r][c], _mm512_fmadd_ps(bias, xs, _mm512_load_ps(acc + 16 * c)));
        });
      }
      unroll<kBlocks>([&](auto c) TF_INLINE { _mm512_store_ps(acc + 16 * c, d[r][c]); });
    });
  }
}

constexpr int kMaxTileRows = 12;

template <bool kIsAffine>
void tile(const TileArgs& args) {
  [&]<int... R>(std::integer_sequence<int, R...>) {
    static constexpr TileKernel kByRows[] = {tile_rows<R + 1, kIsAffine>...};
    kByRows[args.num_rows - 1](args);
  }
  (std::make_integer_sequence<int, kMaxTileRows>{});
}

/// Lanes run over groups: column pair s of 16 groups is gathered, and multiplied by a pair of ones.
void group_sums(float* sums, const void* x, int64_t num_groups, int64_t units_per_group) {
  const __m512i ones = _mm512_set1_epi32(0x3f803f80);
  const int words = static_cast<int>(units_per_group) * kUnitSteps;
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

template <int kBits>
LinearKernels affine_kernels(DType dtype) {
  LinearKernels kernels{.x_dtype = DType::kBF16, .tile = tile<true>, .group_sums = group_sums,
                        .max_tile_rows = kMaxTileRows};
  switch (dtype) {
    case DType::kBF16:
      kernels.row = affine_row<kBits, DType::kBF16>;
      kernels.decode = decode<kBits, DType::kBF16>;
      break;
    case DType::kF16:
      kernels.row = affine_row<kBits, DType::kF16>;
      kernels.decode = decode<kBits, DType::kF16>;
      break;
    default:
      kernels.row = affine_row<kBits, DType::kF32>;
      kernels.decode = decode<kBits, DType::kF32>;
      break;
  }
  return kernels;
}

}  // namespace

LinearKernels linear_kernels_avx512bf16(const LinearSpec& spec) {
  if (spec.format == WeightFormat::kFloat) {
    return {.x_dtype = DType::kBF16, .tile = tile<false>, .max_tile_rows = kMaxTileRows};
  }
  switch (spec.bits) {
    case 2: return affine_kernels<2>(spec.dtype);
    case 3: return affine_kernels<3>(spec.dtype);
    case 4: return affine_kernels<4>(spec.dtype);
    case 5: return affine_kernels<5>(spec.dtype);
    case 6: return affine_kernels<6>(spec.dtype);
    default: return affine_kernels<8>(spec.dtype);
  }
}

}  // namespace tensorfold::cpu
