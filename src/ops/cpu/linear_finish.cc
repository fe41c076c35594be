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
void finish_whole(const FinishArgs& args) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  auto* out = reinterpret_cast<Out*>(args.out);
  for (int64_t i = 0; i < kPanelOutputs; i += kLanes) {
    auto y = hn::Load(d, args.sums + i);
    if (args.bias != nullptr) y = hn::Add(y, hn::LoadU(d, args.bias + i));
    if constexpr (sizeof(Out) == sizeof(float)) {
      if (args.accumulate) y = hn::Add(hn::LoadU(d, out + i), y);
    }
    store_as(d, y, out + i);
  }
}

template <class Out>
void finish_part(const FinishArgs& args) {
  auto* out = reinterpret_cast<Out*>(args.out);
  for (int64_t i = 0; i < args.count; ++i) {
    float y = args.sums[i];
    if (args.bias != nullptr) y += args.bias[i];
    if constexpr (sizeof(Out) == sizeof(float)) {
      if (args.accumulate) y = out[i] + y;
    }
    store_one(y, out + i);
  }
}

void finish(const FinishArgs& args) {
  if (args.count == kPanelOutputs) {
    args.dtype == DType::kF32 ? finish_whole<float>(args) : finish_whole<bf16>(args);
  } else {
    args.dtype == DType::kF32 ? finish_part<float>(args) : finish_part<bf16>(args);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tensorfold::cpu {

FinishKernel finish_kernel(CpuIsa isa) { return TF_ISA_FUNCTION(isa, finish); }

}  // namespace tensorfold::cpu
#endif
