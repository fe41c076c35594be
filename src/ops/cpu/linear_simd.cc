// linear()'s kernels in fp32 for every instruction set: a step of arithmetic.md, "Linear", is two fused
// multiply-adds. They take any weights, and activations as fp32 (bf16 ones are widened once per call, which
// is exact).
//
// An integer is cut out of its word by shift and mask and converted: with the multiply-add that is four
// instructions for a register of weights, so AVX2 is bound by computing, not by memory. The common widths
// have a kernel for every number of rows that decodes in registers. The others have one for a single row;
// several rows share a kernel that takes weights from a buffer, which costs them a fifth of their speed and
// the compiler a sixth of its time. So do several rows of MXFP4, whose lookups are dearer than shifts. Many
// rows go to linear_many_rows.cc.
#include "ops/cpu/isa_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/linear_simd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/contract_math.h"
#include "ops/cpu/linear_decode-inl.h"
#include "ops/cpu/linear_kernels.h"
#include "ops/cpu/linear_sums-inl.h"
#include "ops/linear_layout.h"

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {

/// The segments' sums and their tree.
template <int kRows, int kVectors>
class Segments {
 public:
  TF_INLINE Segments() {}
  TF_INLINE void push(const Sums<kRows, kVectors>& sums) { sums_[count_++] = sums; }

  /// `out` is the panel's place for the first of the registers.
  void store_tree(float* out) {
    while (count_ < kSegments) sums_[count_++].clear();
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kVectors; ++c) {
        const auto s = [&](int i) TF_INLINE { return sums_[i].at[r][c]; };
        const V low = hn::Add(hn::Add(s(0), s(1)), hn::Add(s(2), s(3)));
        const V high = hn::Add(hn::Add(s(4), s(5)), hn::Add(s(6), s(7)));
        hn::Store(hn::Add(low, high), D(), out + r * kPanelOutputs + c * kLanes);
      }
    }
  }

 private:
  Sums<kRows, kVectors> sums_[kSegments];
  int count_ = 0;
};

/// A unit's weights decoded in registers. A loop over vectors, not unrolled: with a kernel per width and
/// number of rows there would be megabytes of code.
template <class Coding>
struct UnitInRegisters {
  static constexpr int kBits = Coding::kBits;
  static constexpr bool has_biases = Coding::kHasBiases;
  static constexpr int64_t bytes = kPanelOutputs * kUnitColumns * kBits / 8;

  /// d += x.q over the unit, of which `first` is the first register of outputs.
  template <int kRows, int kVectors>
  TF_INLINE void add(Sums<kRows, kVectors>& d, Rows<kRows>& rows, const std::byte* unit, int first) const {
    constexpr int kFields = whole_steps_per_vector(kBits);
#pragma GCC unroll 1
    for (int v = 0; v < kBits; ++v) {
      hn::Vec<DU> words[kVectors];
      unroll<kVectors>([&](auto c) TF_INLINE { words[c] = load_words(unit, v, first + c); });
      unroll<kFields>([&](auto f) TF_INLINE {
        add_column(d, rows, 2 * f + 1,
                   [&](int c) TF_INLINE { return Coding::template field<f, 1>(words[c]); });
        add_column(d, rows, 2 * f, [&](int c) TF_INLINE { return Coding::template field<f, 0>(words[c]); });
      });
      rows.advance(2 * kFields);
    }
    if constexpr (constexpr int kRest = kUnitSteps - whole_steps(kBits); kRest > 0) {
      unroll<kRest>([&](auto i) TF_INLINE {
        constexpr int kStep = whole_steps(kBits) + i;
        add_column(d, rows, 2 * i + 1,
                   [&](int c) TF_INLINE { return Coding::template rest<kStep, 1>(unit, first + c); });
        add_column(d, rows, 2 * i,
                   [&](int c) TF_INLINE { return Coding::template rest<kStep, 0>(unit, first + c); });
      });
      rows.advance(2 * kRest);
    }
  }
};

/// A unit's weights decoded into a buffer by a function that is known at run time.
struct UnitInBuffer {
  DecodeUnit decode = nullptr;
  int64_t bytes = 0;
  bool has_biases = true;

  template <int kRows, int kVectors>
  TF_INLINE void add(Sums<kRows, kVectors>& d, Rows<kRows>& rows, const std::byte* unit, int first) const {
    HWY_ALIGN float weights[kUnitColumns * kPanelOutputs];
    decode(weights, unit, first, kVectors);
    for (const float* w = weights; w < weights + kUnitColumns * kPanelOutputs; w += 2 * kPanelOutputs) {
      add_column(d, rows, 1, [&](int c) TF_INLINE { return hn::Load(D(), w + kPanelOutputs + c * kLanes); });
      add_column(d, rows, 0, [&](int c) TF_INLINE { return hn::Load(D(), w + c * kLanes); });
      rows.advance(2);
    }
  }
};

/// kVectors registers of a panel's outputs, from register `first` on.
template <int kRows, int kVectors, class Unit>
void group_part(const PanelArgs& args, const Unit& unit, int first) {
  const DType dtype = args.shape.scale_dtype;
  const int64_t scale_bytes = kPanelOutputs * (dtype == DType::kF32 ? 4 : 2);
  const std::byte* p = args.panel;
  Rows<kRows> rows(args.x, args.x_stride_bytes);
  Segments<kRows, kVectors> segments;
  int64_t column = 0, group = 0;
  while (column < args.shape.columns) {
    const int64_t end = HWY_MIN(column + args.shape.segment_columns, args.shape.columns);
    Sums<kRows, kVectors> acc;
    acc.clear();
    for (; column < end; ++group) {
      const std::byte* scales = p;
      p += unit.has_biases ? 2 * scale_bytes : scale_bytes;
      Sums<kRows, kVectors> d;
      d.clear();
      for (const int64_t group_end = column + args.shape.group_columns; column < group_end;
           column += kUnitColumns) {
        prefetch_ahead(p, unit.bytes, args.prefetch_end);
        unit.add(d, rows, p, first);
        p += unit.bytes;
      }
      unroll<kVectors>([&](auto c) TF_INLINE {
        if (unit.has_biases) {
          const V bias = load_scales(dtype, scales + scale_bytes, first + c);
          unroll<kRows>([&](auto r) TF_INLINE {
            const V xs = hn::Set(D(), args.group_sums[r * args.group_sums_stride + group]);
            acc.at[r][c] = hn::MulAdd(bias, xs, acc.at[r][c]);
          });
        }
        const V scale = load_scales(dtype, scales, first + c);
        unroll<kRows>([&](auto r) TF_INLINE { acc.at[r][c] = hn::MulAdd(scale, d.at[r][c], acc.at[r][c]); });
      });
    }
    segments.push(acc);
  }
  segments.store_tree(args.sums + first * kLanes);
}

/// The same for float weights.
template <DType kDType, int kRows, int kVectors>
void float_part(const PanelArgs& args, int first) {
  constexpr int64_t kPairBytes = kPanelOutputs * 2 * (kDType == DType::kF32 ? 4 : 2);
  const std::byte* p = args.panel;
  Rows<kRows> rows(args.x, args.x_stride_bytes);
  Segments<kRows, kVectors> segments;
  int64_t column = 0;
  while (column < args.shape.columns) {
    const int64_t end = HWY_MIN(column + args.shape.segment_columns, args.shape.columns);
    Sums<kRows, kVectors> acc;
    acc.clear();
    for (; column < end; column += 2, p += kPairBytes) {
      prefetch_ahead(p, kPairBytes, args.prefetch_end);
      add_column(acc, rows, 1, [&](int c) TF_INLINE { return elements<kDType, 1>(p, first + c); });
      add_column(acc, rows, 0, [&](int c) TF_INLINE { return elements<kDType, 0>(p, first + c); });
      rows.advance(2);
    }
    segments.push(acc);
  }
  segments.store_tree(args.sums + first * kLanes);
}

template <int kRows, class Unit>
void group_rows(const PanelArgs& args, const Unit& unit) {
  constexpr int kVectors = vectors_for(kRows);
  for (int first = 0; first < kPanelVectors; first += kVectors)
    group_part<kRows, kVectors>(args, unit, first);
}

template <DType kDType, int kRows>
void float_rows(const PanelArgs& args) {
  constexpr int kVectors = vectors_for(kRows);
  for (int first = 0; first < kPanelVectors; first += kVectors)
    float_part<kDType, kRows, kVectors>(args, first);
}

template <class Unit, int... R>
void group_any_rows(const PanelArgs& args, const Unit& unit, std::integer_sequence<int, R...>) {
  using Kernel = void (*)(const PanelArgs&, const Unit&);
  static constexpr Kernel kByRows[] = {group_rows<R + 1, Unit>...};
  kByRows[args.num_rows - 1](args, unit);
}

template <DType kDType, int... R>
void float_any_rows(const PanelArgs& args, std::integer_sequence<int, R...>) {
  static constexpr PanelKernel kByRows[] = {float_rows<kDType, R + 1>...};
  kByRows[args.num_rows - 1](args);
}

/// Whether several rows decode in registers too.
template <class Coding>
constexpr bool in_registers() {
  return Coding::kHasBiases && (Coding::kBits == 4 || Coding::kBits == 8);
}

template <class Coding>
void group_panel(const PanelArgs& args) {
  const UnitInRegisters<Coding> unit;
  if constexpr (in_registers<Coding>()) {
    group_any_rows(args, unit, std::make_integer_sequence<int, kMaxRows>());
  } else if (args.num_rows == 1) {
    group_rows<1>(args, unit);
  } else {
    group_any_rows(args, UnitInBuffer{decode_unit<Coding>, unit.bytes, unit.has_biases},
                   std::make_integer_sequence<int, kMaxRows>());
  }
}

template <DType kDType>
void float_panel(const PanelArgs& args) {
  float_any_rows<kDType>(args, std::make_integer_sequence<int, kMaxRows>());
}

/// Scalar: a group's sum is one chain, and several groups' chains overlap in an out-of-order core.
void group_sums(float* sums, const void* x, int64_t num_groups, int64_t group_columns) {
  const auto* group = static_cast<const float*>(x);
  for (int64_t g = 0; g < num_groups; ++g, group += group_columns) {
    float sum = 0.0f;
    for (int64_t k = 0; k < group_columns; k += 2) {
      sum = contract::fused(group[k + 1], 1.0f,
                            sum);  // as additions, GCC 12 miscompiles it: reference/linear.cc
      sum = contract::fused(group[k], 1.0f, sum);
    }
    sums[g] = sum;
  }
}

PanelKernel few_rows_panel(const LinearSpec& spec) {
  if (spec.format == WeightFormat::kFloat) {
    if (spec.dtype == DType::kBF16) return float_panel<DType::kBF16>;
    return spec.dtype == DType::kF16 ? float_panel<DType::kF16> : float_panel<DType::kF32>;
  }
  if (spec.format == WeightFormat::kMxfp4) return group_panel<E2m1>;
  switch (spec.bits) {
    case 2:
      return group_panel<Integers<2>>;
    case 3:
      return group_panel<Integers<3>>;
    case 4:
      return group_panel<Integers<4>>;
    case 5:
      return group_panel<Integers<5>>;
    case 6:
      return group_panel<Integers<6>>;
    default:
      return group_panel<Integers<8>>;
  }
}

int max_few_rows() { return kMaxRows; }

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tensorfold::cpu {

namespace {

/// Measured on a Xeon of model 207 (two cores): from nine rows on decoding once is worth what it costs
/// to put weights and sums into memory. Eight rows of AVX2 are faster in two calls whose decoding runs beside
/// the multiply-adds. bf16 takes one instruction to decode and f32 none, so they gain by reading L1 instead
/// of L2 only (16 rows: 0.8 to 1.15 times, 64 rows: 1.0 to 1.3 times as fast).
int min_many_rows(const LinearSpec& spec) {
  return spec.format == WeightFormat::kFloat && spec.dtype != DType::kF16 ? 32 : 9;
}

}  // namespace

LinearKernels linear_kernels_f32(CpuIsa isa, const LinearSpec& spec) {
  return {.x_dtype = DType::kF32,
          .few_rows = {TF_ISA_FUNCTION(isa, few_rows_panel)(spec), TF_ISA_FUNCTION(isa, max_few_rows)()},
          .many_rows = {many_rows_panel(isa, spec), kMaxKernelRows},
          .min_many_rows = min_many_rows(spec),
          .group_sums = TF_ISA_FUNCTION(isa, group_sums)};
}

LinearKernels linear_kernels(CpuIsa isa, const LinearSpec& spec, DType activation) {
#if defined(__x86_64__)
  const bool exact_in_bf16 = spec.format != WeightFormat::kFloat || spec.dtype == DType::kBF16;
  if (isa == CpuIsa::kAvx512Bf16 && activation == DType::kBF16 && exact_in_bf16) {
    return linear_kernels_avx512bf16(spec);
  }
#else
  static_cast<void>(activation);
#endif
  return linear_kernels_f32(isa, spec);
}

}  // namespace tensorfold::cpu
#endif
