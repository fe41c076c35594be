// linear()'s wide kernel for affine groups with bf16 scales.
#include "ops/cuda/linear_wide.cuh"

namespace tensorfold::cuda {

void launch_linear_wide_affine_bf16(CUstream_st* stream, const LinearLaunch& p) {
  with_affine_layout<ScaleType::kBf16>(p.layout,
                                       [&](auto layout) { launch_wide<decltype(layout)>(stream, p); });
}

}  // namespace tensorfold::cuda
