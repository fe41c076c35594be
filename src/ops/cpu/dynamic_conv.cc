// dynamic_conv of the cpu backend: a task is some rows of one sequence; lanes run over the channels of a
// group, all of which share what the row adds to a tap.
#include "ops/cpu/isa_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/dynamic_conv.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/dynamic_conv.h"
#include "ops/cpu/simd_math-inl.h"

#ifndef TENSORFOLD_OPS_CPU_DYNAMIC_CONV_TYPES_
#define TENSORFOLD_OPS_CPU_DYNAMIC_CONV_TYPES_
namespace tensorfold::cpu {

/// One row; strides are elements.
struct DynamicConvRow {
  int64_t num_groups = 0, group_size = 0;
  int64_t num_taps = 0;  ///< That reach rows of the sequence.
  const float* x = nullptr;
  int64_t x_stride = 0;  ///< To the next row; the row before is what the second tap reads.
  const float* base = nullptr;
  int64_t base_stride = 0;
  const float* dynamic = nullptr;  ///< [taps][num_groups]
};

}  // namespace tensorfold::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {

template <bool kAccumulates, class Out>
HWY_INLINE void convolve_row(Out* out, const DynamicConvRow& row) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t g = 0; g < row.num_groups; ++g) {
    const int64_t end = (g + 1) * row.group_size;
    int64_t c = g * row.group_size;
    for (; c + lanes <= end; c += lanes) {
      auto y = hn::Zero(d);
      for (int64_t o = 0; o < row.num_taps; ++o) {
        const auto weight = hn::Add(hn::LoadU(d, row.base + o * row.base_stride + c),
                                    hn::Set(d, row.dynamic[o * row.num_groups + g]));
        y = hn::MulAdd(weight, hn::LoadU(d, row.x - o * row.x_stride + c), y);
      }
      if constexpr (kAccumulates) y = hn::Add(hn::LoadU(d, out + c), y);
      store_as(d, y, out + c);
    }
    for (; c < end; ++c) {
      float y = 0.0f;
      for (int64_t o = 0; o < row.num_taps; ++o) {
        const float weight = row.base[o * row.base_stride + c] + row.dynamic[o * row.num_groups + g];
        y = contract::fused(weight, row.x[c - o * row.x_stride], y);
      }
      if constexpr (kAccumulates) y = out[c] + y;
      store_one(y, out + c);
    }
  }
}

void convolve_row_f32(float* out, const DynamicConvRow& row) { convolve_row<false>(out, row); }
void convolve_row_bf16(bf16* out, const DynamicConvRow& row) { convolve_row<false>(out, row); }
void add_convolved_row(float* out, const DynamicConvRow& row) { convolve_row<true>(out, row); }

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>

#include "ops/cpu/split.h"

namespace tensorfold::cpu {

void dynamic_conv(CpuContext& cpu, const DynamicConvCall& call) {
  const int64_t C = call.x.dim(1), taps = call.base.dim(0), G = call.dynamic.dim(1) / taps;
  const auto to_f32 = call.accumulate ? TF_ISA_FUNCTION(cpu.isa, add_convolved_row)
                                      : TF_ISA_FUNCTION(cpu.isa, convolve_row_f32);
  const auto to_bf16 = TF_ISA_FUNCTION(cpu.isa, convolve_row_bf16);
  for (const SequenceRows& sequence : call.rows.sequences) {
    for_row_blocks(cpu.pool, sequence.num_rows, C * taps, [&](int64_t r) {
      const int64_t t = sequence.first_row + r;
      const DynamicConvRow row{.num_groups = G,
                               .group_size = C / G,
                               .num_taps = std::min(taps, r + 1),
                               .x = call.x.row<const float>(t),
                               .x_stride = call.x.row_stride,
                               .base = call.base.row<const float>(0),
                               .base_stride = call.base.row_stride,
                               .dynamic = call.dynamic.row<const float>(t)};
      call.out.dtype == DType::kBF16 ? to_bf16(call.out.row<bf16>(t), row)
                                     : to_f32(call.out.row<float>(t), row);
    });
  }
}

}  // namespace tensorfold::cpu
#endif
