// linear()'s kernels for CPUs with VDPBF16PS: bf16 activations, weights that are bf16, or small integers or
// E2M1 values, which bf16 holds exactly. One instruction is one step of arithmetic.md, "Linear", for 16
// outputs.
//
// On Zen 5 (two each of lookup, shift and VDPBF16PS per cycle in four pipes) 64 bytes of 4-bit weights take
// about 3.3 cycles for one row, 80 GB/s for a core at 4.2 GHz: more than memory gives it. Eight rows are
// bound by VDPBF16PS.
//
// Compiled with flags of its own (src/ops/CMakeLists.txt) and called after a check of the CPU. Includes
// nothing whose inline functions could be shared with other files.
#include <immintrin.h>

#include "ops/cpu/linear_avx512bf16_decode.h"
#include "ops/cpu/linear_kernels.h"
#include "ops/linear_layout.h"

namespace tensorfold::cpu {
namespace {

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

/// x of kRows rows, moving along the columns. Rows are reached from every fourth one by the multiples that an
/// address can hold, so that eight rows take few registers.
template <int kRows>
class Rows {
 public:
  TF_INLINE void set(const std::byte* x, int64_t stride) {
    stride_ = stride;
    for (int q = 0; q < kQuads; ++q) quads_[q] = x + 4 * q * stride;
  }
  TF_INLINE void advance(int64_t steps) {
    for (int q = 0; q < kQuads; ++q) quads_[q] += 4 * steps;
  }
  /// The columns of step `step` of row kRow, in every lane.
  template <int kRow>
  TF_INLINE __m512i pair(int step) const {
    int32_t pair;  // rows may start at any even address
    __builtin_memcpy(&pair, quads_[kRow / 4] + kRow % 4 * stride_ + 4 * step, sizeof pair);
    return _mm512_set1_epi32(pair);
  }

 private:
  static constexpr int kQuads = (kRows + 3) / 4;
  const std::byte* quads_[kQuads];
  int64_t stride_;
};

/// sums += x.w for one step: w0 and w1 are the two blocks' weights.
template <int kRows>
TF_INLINE inline void add_step(Sums<kRows>& sums, const Rows<kRows>& rows, int step_idx, __m512i w0,
                               __m512i w1) {
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

/// Asks for what lies kPrefetchBytes ahead, in the order of memory whatever the order of use: asking in
/// several places by turns costs a quarter of the bandwidth. Stops at `end`.
class Prefetch {
 public:
  TF_INLINE Prefetch(const std::byte* p, const std::byte* end) : next_(p + kPrefetchBytes), end_(end) {}

  /// The next 128 bytes.
  TF_INLINE void advance() {
    if (next_ >= end_) return;
    _mm_prefetch(reinterpret_cast<const char*>(next_), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(next_) + 64, _MM_HINT_T0);
    next_ += 128;
  }

 private:
  const std::byte* next_;
  const std::byte* end_;
};

/// d[g] += x.q over a unit of each of kGroups groups, which lie chunk_bytes apart. A loop over vectors, not
/// unrolled: with a kernel per width and number of rows, code would outgrow what a loop of 8 to 200
/// instructions gains by it.
template <class Decoder, int kRows, int kGroups>
TF_INLINE inline void add_units(Sums<kRows> (&d)[kGroups], const Decoder& decoder,
                                Rows<kRows> (&rows)[kGroups], const std::byte* unit, int64_t chunk_bytes,
                                Prefetch& prefetch) {
  constexpr int kBits = Decoder::kBits;
  constexpr int kFields = whole_steps_per_vector(kBits);
#pragma GCC unroll 1
  for (int v = 0; v < kBits; ++v) {
    __m512i w[kGroups][kBlocks];
    unroll<kGroups>([&](auto g) TF_INLINE {
      unroll<kBlocks>([&](auto c) TF_INLINE { w[g][c] = load_words(unit + g * chunk_bytes, v, c); });
      prefetch.advance();
    });
    unroll<kFields>([&](auto f) TF_INLINE {
      unroll<kGroups>([&](auto g) TF_INLINE {
        add_step(d[g], rows[g], f, decoder.template field<f>(w[g][0]), decoder.template field<f>(w[g][1]));
      });
    });
    unroll<kGroups>([&](auto g) TF_INLINE { rows[g].advance(kFields); });
  }
  constexpr int kRest = kUnitSteps - whole_steps(kBits);
  if constexpr (kRest > 0) {
    unroll<kGroups>([&](auto g) TF_INLINE {
      unroll<kRest>([&](auto i) TF_INLINE {
        constexpr int kStep = whole_steps(kBits) + i;
        const std::byte* words = unit + g * chunk_bytes;
        add_step(d[g], rows[g], i, decoder.template rest<kStep>(words, 0),
                 decoder.template rest<kStep>(words, 1));
      });
      rows[g].advance(kRest);
    });
  }
}

/// acc = fma(scale, d, fma(bias, xs, acc)), or fma(scale, d, acc) without biases, for kGroups groups from
/// `group` on, which start at `chunk`.
template <class Decoder, int kRows, int kGroups>
TF_INLINE inline void add_groups(Sums<kRows>& acc, const Decoder& decoder, const PanelArgs& args,
                                 const std::byte* chunk, int64_t group) {
  constexpr int64_t kUnitBytes = kPanelOutputs * kUnitColumns * Decoder::kBits / 8;
  const DType dtype = Decoder::kHasBiases ? args.shape.scale_dtype : DType::kBF16;
  const int64_t scale_bytes = kPanelOutputs * (dtype == DType::kF32 ? 4 : 2);
  const int64_t unit_offset = Decoder::kHasBiases ? 2 * scale_bytes : scale_bytes;
  Rows<kRows> rows[kGroups];
  Sums<kRows> d[kGroups];
  unroll<kGroups>([&](auto g) TF_INLINE {
    rows[g].set(args.x + (group + g) * args.shape.group_columns * 2, args.x_stride_bytes);
    d[g].clear();
  });
  const std::byte* unit = chunk + unit_offset;
  Prefetch prefetch(chunk, args.prefetch_end);
  for (int64_t i = 0; i < kGroups * unit_offset; i += 128) prefetch.advance();
  for (int64_t column = 0; column < args.shape.group_columns; column += kUnitColumns, unit += kUnitBytes) {
    add_units(d, decoder, rows, unit, args.shape.chunk_bytes, prefetch);
  }
  unroll<kGroups>([&](auto g) TF_INLINE {
    const std::byte* scales = chunk + g * args.shape.chunk_bytes;
    unroll<kBlocks>([&](auto c) TF_INLINE {
      if constexpr (Decoder::kHasBiases) {
        const __m512 bias = load_scales(dtype, scales + scale_bytes, c);
        unroll<kRows>([&](auto r) TF_INLINE {
          const __m512 xs = _mm512_set1_ps(args.group_sums[r * args.group_sums_stride + group + g]);
          acc.at[r][c] = _mm512_fmadd_ps(bias, xs, acc.at[r][c]);
        });
      }
      const __m512 scale = load_scales(dtype, scales, c);
      unroll<kRows>([&](auto r)
                        TF_INLINE { acc.at[r][c] = _mm512_fmadd_ps(scale, d[g].at[r][c], acc.at[r][c]); });
    });
  });
}

/// A group's sums are chains of up to 64 steps of latency 6, and two sums a row are too few to fill the gaps:
/// up to three rows take two groups at once. (One row, 4 bits, groups of 64, weights in L2, one core: 47 ->
/// 56 GB/s. Four at once reach 70 there, but no more from memory.)
constexpr int64_t groups_at_once(int rows) { return rows <= 3 ? 2 : 1; }

template <class Decoder, int kRows>
void group_panel(const PanelArgs& args) {
  constexpr int64_t kMaxGroups = groups_at_once(kRows);
  const Decoder decoder;
  Segments<kRows> segments;
  const int64_t num_groups = args.shape.columns / args.shape.group_columns;
  const int64_t segment_groups = args.shape.segment_columns / args.shape.group_columns;
  for (int64_t begin = 0; begin < num_groups; begin += segment_groups) {
    const int64_t end = begin + segment_groups < num_groups ? begin + segment_groups : num_groups;
    Sums<kRows> acc;
    acc.clear();
    int64_t group = begin;
    // As many as fit, then fewer: a constant count each.
    unroll<kMaxGroups>([&](auto fewer) TF_INLINE {
      constexpr int kGroups = kMaxGroups - fewer;
      for (; group + kGroups <= end; group += kGroups) {
        add_groups<Decoder, kRows, kGroups>(acc, decoder, args, args.panel + group * args.shape.chunk_bytes,
                                            group);
      }
    });
    segments.push(acc);
  }
  segments.store_tree(args.sums);
}

template <int kRows>
void bf16_panel(const PanelArgs& args) {
  const std::byte* p = args.panel;
  Rows<kRows> rows;
  rows.set(args.x, args.x_stride_bytes);
  Prefetch prefetch(p, args.prefetch_end);
  Segments<kRows> segments;
  int64_t column = 0;
  while (column < args.shape.columns) {
    const int64_t segment_end = column + args.shape.segment_columns;
    const int64_t end = segment_end < args.shape.columns ? segment_end : args.shape.columns;
    Sums<kRows> acc;
    acc.clear();
    for (; column < end; column += 2, p += 2 * 64) {
      add_step(acc, rows, 0, _mm512_load_si512(p), _mm512_load_si512(p + 64));
      prefetch.advance();
      rows.advance(1);
    }
    segments.push(acc);
  }
  segments.store_tree(args.sums);
}

/// 16 sums of 32 registers, more than VDPBF16PS's latency of 6 needs at two a cycle. A segment's running
/// sums, read and written once per group, lie partly in memory; with more rows the compiler moves the sums
/// themselves in and out (measured on Zen 5, 4 bits: 8 rows 230 GMAC/s on one core, 12 rows 220).
constexpr int kMaxRows = 8;

template <class Decoder>
void group_rows(const PanelArgs& args) {
  [&]<int... R>(std::integer_sequence<int, R...>) {
    static constexpr PanelKernel kByRows[] = {group_panel<Decoder, R + 1>...};
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

/// Index tables that exchange, between registers i and i + kDistance, the lanes whose numbers differ in that
/// bit.
template <int kDistance>
struct ExchangeTable {
  alignas(64) int32_t low[16];
  alignas(64) int32_t high[16];
  constexpr ExchangeTable() : low(), high() {
    for (int j = 0; j < 16; ++j) {
      const bool is_set = (j & kDistance) != 0;
      low[j] = is_set ? 16 + j - kDistance : j;
      high[j] = is_set ? 16 + j : j + kDistance;
    }
  }
};

/// Lane j of register i becomes lane i of register j.
TF_INLINE inline void transpose(__m512i (&r)[16]) {
  unroll<4>([&](auto stage) TF_INLINE {
    constexpr int kDistance = 1 << stage;
    static constexpr ExchangeTable<kDistance> kTable;
    const __m512i low = _mm512_load_si512(kTable.low), high = _mm512_load_si512(kTable.high);
    unroll<16>([&](auto i) TF_INLINE {
      if constexpr ((i & kDistance) == 0) {
        const __m512i a = r[i], b = r[i + kDistance];
        r[i] = _mm512_permutex2var_epi32(a, low, b);
        r[i + kDistance] = _mm512_permutex2var_epi32(a, high, b);
      }
    });
  });
}

/// Lanes run over 16 groups, whose units of 16 steps are transposed for it; a step is multiplied by a pair of
/// ones.
void group_sums(float* sums, const void* x, int64_t num_groups, int64_t group_columns) {
  const __m512i ones = _mm512_set1_epi32(0x3f803f80);
  const int64_t group_words = group_columns / 2;
  const auto* row = static_cast<const int32_t*>(x);
  for (int64_t g = 0; g < num_groups; g += 16, row += 16 * group_words) {
    const int64_t left = num_groups - g < 16 ? num_groups - g : 16;
    __m512 acc = _mm512_setzero_ps();
    for (int64_t word = 0; word < group_words; word += kUnitSteps) {
      __m512i steps[16];
      unroll<16>([&](auto i) TF_INLINE {
        steps[i] = i < left ? _mm512_loadu_si512(row + i * group_words + word) : _mm512_setzero_si512();
      });
      transpose(steps);
      unroll<kUnitSteps>([&](auto s) TF_INLINE { acc = step(acc, steps[s], ones); });
    }
    _mm512_mask_storeu_ps(sums + g, static_cast<__mmask16>((1 << left) - 1), acc);
  }
}

PanelKernel panel_kernel(const LinearSpec& spec) {
  if (spec.format == WeightFormat::kFloat) return bf16_rows;
  if (spec.format == WeightFormat::kMxfp4) return group_rows<Mxfp4Decoder>;
  switch (spec.bits) {
    case 2:
      return group_rows<Decoder<2>>;
    case 3:
      return group_rows<Decoder<3>>;
    case 4:
      return group_rows<Decoder<4>>;
    case 5:
      return group_rows<Decoder<5>>;
    case 6:
      return group_rows<Decoder<6>>;
    default:
      return group_rows<Decoder<8>>;
  }
}

}  // namespace

LinearKernels linear_kernels_avx512bf16(const LinearSpec& spec) {
  const RowsKernel kernel{panel_kernel(spec), kMaxRows};
  return {.x_dtype = DType::kBF16, .few_rows = kernel, .many_rows = kernel, .group_sums = group_sums};
}

}  // namespace tensorfold::cpu
