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

bool launch_row_of_any(CUstream_st* stream, const ExpertsLaunch& p) {
  const LinearLayout& layout = p.into.layout;
  if (layout.format == LinearFormat::kAffine)
    return layout.scale_type == ScaleType::kBf16 && experts_few::launch_row_affine_bf16(stream, p);
  bool is_launched = false;
  with_other_layout(layout, [&](auto l) { is_launched = experts_few::launch_row<decltype(l)>(stream, p); });
  return is_launched;
}

}  // namespace

void launch_experts_few(CUstream_st* stream, const ExpertsLaunch& p) {
  if (launch_row_of_any(stream, p)) return;
  if (has_gate_alone(p)) launch_stage_of_any(stream, p, ExpertStage::kGate);
  launch_stage_of_any(stream, p, has_fused_gate(p) ? ExpertStage::kGateUp : ExpertStage::kUp);
  launch_stage_of_any(stream, p, ExpertStage::kDown);
}

}  // namespace tensorfold::cuda
