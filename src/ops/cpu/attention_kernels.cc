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
  constexpr int64_t kStepBytes = kVectors * kLanes * 4 * Columns::kRowsPerStep;
  const int64_t distance = prefetch_distance(args.num_steps), rest = args.num_steps - distance;
  const char* next = static_cast<const char*>(args.next) + x * args.num_steps * 4 * Columns::kRowsPerStep;
  for (int64_t j = 0; j < args.num_steps; ++j, b += Columns::kRowsPerStep * args.b_stride, a += 2) {
    V low[kVectors], high[kVectors];
    for (int v = 0; v < kVectors; ++v) Columns::load(d, b + v * kLanes, args.b_stride, low[v], high[v]);
    if (row == 0 && args.next != nullptr) {
      const char* from = j < rest ? reinterpret_cast<const char*>(b + distance * Columns::kRowsPerStep * args.b_stride)
                                  : next + (j - rest) * kStepBytes;
      for (int64_t i = 0; i < kStepBytes; i += 64) __builtin_prefetch(from + i);
    }
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

/// The scores of row r as kVectors vectors: c * product where the slot is in sight, -inf elsewhere.
template <class D, class V, int kVectors>
HWY_INLINE void load_scores(D d, const TileSoftmaxArgs& args, int64_t r, V (&s)[kVectors]) {
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  for (int v = 0; v < kVectors; ++v) {
    s[v] = hn::Mul(hn::Set(d, args.score_scale), hn::LoadU(d, args.products + r * kPageTokens + v * kLanes));
  }
  if (args.end_slot[r] - args.first_slot[r] == kPageTokens) return;
  const V first = hn::Set(d, static_cast<float>(args.first_slot[r]));
  const V end = hn::Set(d, static_cast<float>(args.end_slot[r]));
  for (int v = 0; v < kVectors; ++v) {
    const V slot = hn::Iota(d, static_cast<float>(v * kLanes));
    s[v] = hn::IfThenElse(hn::And(hn::Ge(slot, first), hn::Lt(slot, end)), s[v], hn::Neg(hn::Inf(d)));
  }
}

/// Two passes over the rows, each with short chains of dependence, so that several rows are in flight at once.
template <class Weights>
HWY_INLINE void tile_softmax(const TileSoftmaxArgs& args) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d)), kVectors = kPageTokens / kLanes;
  for (int64_t r = 0; r < args.num_rows; ++r) {
    V s[kVectors];
    load_scores(d, args, r, s);
    for (int n = kVectors / 2; n > 0; n /= 2) {
      for (int v = 0; v < n; ++v) s[v] = hn::Max(s[v], s[v + n]);
    }
    const float m = args.m[r], tile_m = hn::GetLane(hn::MaxOfLanes(d, s[0]));
    const float new_m = tile_m > m ? tile_m : m;
    args.a[r] = m == new_m ? 1.0f : exp2_f32(m - new_m);
    args.m[r] = new_m;
  }
  for (int64_t r = 0; r < args.num_rows; ++r) {
    V s[kVectors];
    load_scores(d, args, r, s);
    const V maxima = hn::Set(d, args.m[r]);
    auto* weights = static_cast<typename Weights::Element*>(args.weights) + r * kPageTokens;
    for (int v = 0; v < kVectors; ++v) {
      s[v] = simd_exp2_nonpositive(d, hn::Sub(s[v], maxima));
      Weights::store(d, s[v], weights + v * kLanes);
    }
    // Slots i and i + 32 share a partial; then i and i + 16, and so on.
    for (int n = kVectors / 2; n > 0; n /= 2) {
      for (int v = 0; v < n; ++v) s[v] = hn::Add(s[v], s[v + n]);
    }
    args.l[r] = contract::fused(args.l[r], args.a[r], halve_vector(d, s[0]));
  }
}

void tile_softmax_f32(const TileSoftmaxArgs& args) { tile_softmax<KeepWeights>(args); }
void tile_softmax_rounded(const TileSoftmaxArgs& args) { tile_softmax<RoundWeights>(args); }
void tile_softmax_bf16(const TileSoftmaxArgs& args) { tile_softmax<NarrowWeights>(args); }

void merge_row(const RowPartial& total, const RowPartial& other, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const float m = *other.m > *total.m ? *other.m : *total.m;
  const float a = *total.m == m ? 1.0f : exp2_f32(*total.m - m), b = *other.m == m ? 1.0f : exp2_f32(*other.m - m);
  *total.m = m;
  *total.l = contract::fused(*other.l, b, *total.l * a);
  for (int64_t i = 0; i < n; i += lanes) {
    const auto kept = hn::Mul(hn::LoadU(d, total.o + i), hn::Set(d, a));
    hn::StoreU(hn::MulAdd(hn::LoadU(d, other.o + i), hn::Set(d, b), kept), d, total.o + i);
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
  kernels.merge = TF_ISA_FUNCTION(isa, merge_row);
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
