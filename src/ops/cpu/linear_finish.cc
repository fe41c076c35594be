// Kernels of linear_finish.h.
#include "ops/cpu/isa_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/linear_finish.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/linear_finish.h"
#include "ops/cpu/simd_math-inl.h"
#include "ops/linear_layout.h"

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {

template <class Out>
void finish_whole(const FinishArgs& args, Out* out, const float* sums) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  for (int64_t i = 0; i < kPanelOutputs; i += kLanes) {
    auto y = hn::Load(d, sums + i);
    if (args.bias != nullptr) y = hn::Add(y, hn::LoadU(d, args.bias + i));
    if constexpr (sizeof(Out) == sizeof(float)) {
      if (args.accumulate) y = hn::Add(hn::LoadU(d, out + i), y);
    }
    store_as(d, y, out + i);
  }
}

template <class Out>
void finish_part(const FinishArgs& args, Out* out, const float* sums) {
  for (int64_t i = 0; i < args.count; ++i) {
    float y = sums[i];
    if (args.bias != nullptr) y += args.bias[i];
    if constexpr (sizeof(Out) == sizeof(float)) {
      if (args.accumulate) y = out[i] + y;
    }
    store_one(y, out + i);
  }
}

template <class Out>
void finish_rows(const FinishArgs& args) {
  auto* out = reinterpret_cast<Out*>(args.out);
  for (int64_t r = 0; r < args.num_rows; ++r, out += args.out_stride) {
    const float* sums = args.sums + r * kPanelOutputs;
    if (args.count == kPanelOutputs) {
      finish_whole(args, out, sums);
    } else {
      finish_part(args, out, sums);
    }
  }
}

void finish(const FinishArgs& args) {
  args.dtype == DType::kF32 ? finish_rows<float>(args) : finish_rows<bf16>(args);
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tensorfold::cpu {

FinishKernel finish_kernel(CpuIsa isa) { return TF_ISA_FUNCTION(isa, finish); }

}  // namespace tensorfold::cpu
#endif
