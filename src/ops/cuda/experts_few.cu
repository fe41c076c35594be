// experts() for few rows an expert: its kernels (device/experts_few.cuh) for layouts that are not affine, and
// the choice among all.
#include "ops/cuda/device/experts_few.cuh"

namespace tensorfold::cuda {
namespace {

void launch_stage_of_any(CUstream_st* stream, const ExpertsLaunch& p, ExpertStage stage) {
  const LinearLayout& layout = product_of(p, stage).layout;
  if (layout.format != LinearFormat::kAffine) {
    return with_other_layout(layout,
                             [&](auto l) { experts_few::launch_stage<decltype(l)>(stream, p, stage); });
  }
  switch (layout.scale_type) {
    case ScaleType::kBf16:
      return experts_few::launch_affine_bf16(stream, p, stage);
    case ScaleType::kF16:
      return experts_few::launch_affine_f16(stream, p, stage);
    case ScaleType::kF32:
      return experts_few::launch_affine_f32(stream, p, stage);
  }
}

}  // namespace

void launch_experts_few(CUstream_st* stream, const ExpertsLaunch& p) {
  if (has_gate_alone(p)) launch_stage_of_any(stream, p, ExpertStage::kGate);
  launch_stage_of_any(stream, p, has_fused_gate(p) ? ExpertStage::kGateUp : ExpertStage::kUp);
  launch_stage_of_any(stream, p, ExpertStage::kDown);
}

}  // namespace tensorfold::cuda
