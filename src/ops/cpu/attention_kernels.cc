// attention's inner kernels on Highway (see attention_kernels.h). A bf16 pair is one 32-bit lane: its high half is a
// float as it stands, its low half after a shift.
#include "ops/cpu/isa_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_kernels.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {

/// One step of bf16 columns: the two factors of each lane.
struct Bf16Columns {
  using Element = uint32_t;
  static constexpr int64_t kRowsPerStep = 1;
  template <class D, class V>
  static HWY_INLINE void load(D d, const uint32_t* b, int64_t, V& low, V& high) {
    const hn::RebindToUnsigned<D> du;
    const auto pair = hn::LoadU(du, b);
    low = hn::BitCast(d, hn::ShiftLeft<16>(pair));
    high = hn::BitCast(d, hn::And(pair, hn::Set(du, 0xffff0000u)));
  }
};

struct F32Columns {
  using Element = float;
  static constexpr int64_t kRowsPerStep = 2;
  template <class D, class V>
  static HWY_INLINE void load(D d, const float* b, int64_t stride, V& low, V& high) {
    low = hn::LoadU(d, b);
    high = hn::LoadU(d, b + stride);
  }
};

/// The sums of kRows rows and kVectors vectors of columns from column x on.
template <class Columns, int kRows, int kVectors>
HWY_INLINE void panel_block(const PanelArgs& args, int64_t row, int64_t x) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(d));
  float* c = args.c + row * args.c_stride + x;
  V sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = args.scale == nullptr
                      ? hn::Zero(d)
                      : hn::Mul(hn::LoadU(d, c + r * args.c_stride + v * kLanes), hn::Set(d, args.scale[row + r]));
    }
  }
  const auto* b = static_cast<const typename Columns::Element*>(args.b) + x;
  const float* a = static_cast<const float*>(args.a) + row * args.a_stride;
  for (int64_t j = 0; j < args.num_steps; ++j, b += Columns::kRowsPerStep * args.b_stride, a += 2) {
    V low[kVectors], high[kVectors];
    for (int v = 0; v < kVectors; ++v) Columns::load(d, b + v * kLanes, args.b_stride, low[v], high[v]);
    for (int r = 0; r < kRows; ++r) {
      const V first = hn::Set(d, a[r * args.a_stride]), second = hn::Set(d, a[r * args.a_stride + 1]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(second, high[v], sum[r][v]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(first, low[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], d, c + r * args.c_stride + v * kLanes);
  }
}

/// Registers: kRows * kVectors sums, 2 * kVectors columns, 2 factors. 16 registers on AVX2 (4 x 2), else 32 (4 x 4).
constexpr int kPanelRows = 4;
#if HWY_TARGET == HWY_AVX2
constexpr int kPanelVectors = 2;
#else
constexpr int kPanelVectors = 4;
#endif

template <class Columns, int kRows>
HWY_INLINE void panel_rows(const PanelArgs& args, int64_t row) {
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(hn::ScalableTag<float>()));
  int64_t x = 0;
  for (; x + kPanelVectors * kLanes <= args.num_columns; x += kPanelVectors * kLanes) {
    panel_block<Columns, kRows, kPanelVectors>(args, row, x);
  }
  for (; x < args.num_columns; x += kLanes) panel_block<Columns, kRows, 1>(args, row, x);
}

template <class Columns>
HWY_INLINE void panel(const PanelArgs& args) {
  int64_t row = 0;
  for (; row + kPanelRows <= args.num_rows; row += kPanelRows) panel_rows<Columns, kPanelRows>(args, row);
  switch (args.num_rows - row) {
    case 3: return panel_rows<Columns, 3>(args, row);
    case 2: return panel_rows<Columns, 2>(args, row);
    case 1: return panel_rows<Columns, 1>(args, row);
  }
}

void panel_bf16_pages(const PanelArgs& args) { panel<Bf16Columns>(args); }
void panel_f32_pages(const PanelArgs& args) { panel<F32Columns>(args); }

/// How weights leave the softmax: f32 as they are, rounded to bf16 and stored as f32, or as bf16. A weight is in
/// [0, 1] and never denormal; where one is NaN so is l, and the row's result whatever becomes of the weight.
struct KeepWeights {
  using Element = float;
  template <class D, class V>
  static HWY_INLINE void store(D d, V p, float* out) {
    hn::StoreU(p, d, out);
  }
};

template <class D, class V>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> round_weight(D, V p) {
  const hn::RebindToUnsigned<D> du;
  const auto u = hn::BitCast(du, p);
  return hn::Add(u, hn::Add(hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1u)), hn::Set(du, 0x7fffu)));
}

struct RoundWeights {
  using Element = float;
  template <class D, class V>
  static HWY_INLINE void store(D d, V p, float* out) {
    const hn::RebindToUnsigned<D> du;
    hn::StoreU(hn::BitCast(d, hn::And(round_weight(d, p), hn::Set(du, 0xffff0000u))), d, out);
  }
};

struct NarrowWeights {
  using Element = uint16_t;
  template <class D, class V>
  static HWY_INLINE void store(D d, V p, uint16_t* out) {
    const hn::Rebind<uint16_t, D> d16;
    hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(round_weight(d, p))), d16, out);
  }
};

template <class Weights>
HWY_INLINE void tile_softmax(const TileSoftmaxArgs& args) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d)), kVectors = kPageTokens / kLanes;
  const V minus_infinity = hn::Neg(hn::Inf(d));
  for (int64_t r = 0; r < args.num_rows; ++r) {
    V s[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      s[v] = hn::Mul(hn::Set(d, args.score_scale), hn::LoadU(d, args.products + r * kPageTokens + v * kLanes));
    }
    if (args.end_slot[r] - args.first_slot[r] != kPageTokens) {
      const V first = hn::Set(d, static_cast<float>(args.first_slot[r]));
      const V end = hn::Set(d, static_cast<float>(args.end_slot[r]));
      for (int v = 0; v < kVectors; ++v) {
        const V slot = hn::Iota(d, static_cast<float>(v * kLanes));
        s[v] = hn::IfThenElse(hn::And(hn::Ge(slot, first), hn::Lt(slot, end)), s[v], minus_infinity);
      }
    }
    V largest = s[0];
    for (int v = 1; v < kVectors; ++v) largest = hn::Max(largest, s[v]);
    const float m = args.m[r], tile_m = hn::GetLane(hn::MaxOfLanes(d, largest));
    const float new_m = tile_m > m ? tile_m : m;
    const V maxima = hn::Set(d, new_m);

    auto* weights = static_cast<typename Weights::Element*>(args.weights) + r * kPageTokens;
    HWY_ALIGN float partials[kPageTokens / 2];
    for (int v = 0; v < kVectors / 2; ++v) {  // slots i and i + 32 share a partial
      const V low = simd_exp2_nonpositive(d, hn::Sub(s[v], maxima));
      const V high = simd_exp2_nonpositive(d, hn::Sub(s[v + kVectors / 2], maxima));
      Weights::store(d, low, weights + v * kLanes);
      Weights::store(d, high, weights + v * kLanes + kPageTokens / 2);
      hn::Store(hn::Add(low, high), d, partials + v * kLanes);
    }
    const float a = m == new_m ? 1.0f : exp2_f32(m - new_m);
    args.m[r] = new_m;
    args.a[r] = a;
    args.l[r] = contract::fused(args.l[r], a, halve_32(partials));
  }
}

void tile_softmax_f32(const TileSoftmaxArgs& args) { tile_softmax<KeepWeights>(args); }
void tile_softmax_rounded(const TileSoftmaxArgs& args) { tile_softmax<RoundWeights>(args); }
void tile_softmax_bf16(const TileSoftmaxArgs& args) { tile_softmax<NarrowWeights>(args); }

void merge_partials(float* out, const float* in, float a, float b, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < n; i += lanes) {
    const auto kept = hn::Mul(hn::LoadU(d, out + i), hn::Set(d, a));
    hn::StoreU(hn::MulAdd(hn::LoadU(d, in + i), hn::Set(d, b), kept), d, out + i);
  }
}

template <class Out>
HWY_INLINE void finish(Out* out, const float* o, float l, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) store_as(d, hn::Div(hn::LoadU(d, o + i), hn::Set(d, l)), out + i);
  for (; i < n; ++i) store_one(o[i] / l, out + i);
}

void finish_f32(std::byte* out, const float* o, float l, int64_t n) { finish(reinterpret_cast<float*>(out), o, l, n); }
void finish_bf16(std::byte* out, const float* o, float l, int64_t n) { finish(reinterpret_cast<bf16*>(out), o, l, n); }

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tensorfold::cpu {

AttentionKernels attention_kernels(CpuIsa isa, DType dtype) {
  AttentionKernels kernels;
  kernels.merge = TF_ISA_FUNCTION(isa, merge_partials);
  if (dtype == DType::kF32) {
    kernels.panel = TF_ISA_FUNCTION(isa, panel_f32_pages);
    kernels.tile_softmax = TF_ISA_FUNCTION(isa, tile_softmax_f32);
    kernels.finish = TF_ISA_FUNCTION(isa, finish_f32);
    return kernels;
  }
  kernels.panel = TF_ISA_FUNCTION(isa, panel_bf16_pages);
  kernels.tile_softmax = TF_ISA_FUNCTION(isa, tile_softmax_rounded);
  kernels.finish = TF_ISA_FUNCTION(isa, finish_bf16);
#if defined(__x86_64__)
  if (isa == CpuIsa::kAvx512Bf16) {
    kernels.panel = attention_panel_avx512bf16;
    kernels.tile_softmax = TF_ISA_FUNCTION(isa, tile_softmax_bf16);
    kernels.operand_dtype = DType::kBF16;
  }
#endif
  return kernels;
}

}  // namespace tensorfold::cpu
#endif
