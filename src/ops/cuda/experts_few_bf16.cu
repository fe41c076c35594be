// experts() for few rows an expert: affine layouts with scales in bf16.
#include "ops/cuda/device/experts_few.cuh"

namespace tensorfold::cuda::experts_few {

void launch_affine_bf16(CUstream_st* stream, const ExpertsLaunch& p, ExpertStage stage) {
  with_affine_layout<ScaleType::kBf16>(
      product_of(p, stage).layout, [&](auto layout) { launch_stage<decltype(layout)>(stream, p, stage); });
}

bool launch_row_affine_bf16(CUstream_st* stream, const ExpertsLaunch& p) {
  bool is_launched = false;
  with_affine_layout<ScaleType::kBf16>(
      p.into.layout, [&](auto layout) { is_launched = launch_row<decltype(layout)>(stream, p); });
  return is_launched;
}

}  // namespace tensorfold::cuda::experts_few
