// experts() for few rows an expert: affine layouts with scales in f16.
#include "ops/cuda/device/experts_few.cuh"

namespace tensorfold::cuda::experts_few {

void launch_affine_f16(CUstream_st* stream, const ExpertsLaunch& p, ExpertStage stage) {
  with_affine_layout<ScaleType::kF16>(product_of(p, stage).layout,
                                      [&](auto layout) { launch_stage<decltype(layout)>(stream, p, stage); });
}

}  // namespace tensorfold::cuda::experts_few
