// linear()'s wide kernel for affine groups with f16 scales.
#include "ops/cuda/linear_wide.cuh"

namespace tensorfold::cuda {

void launch_linear_wide_affine_f16(CUstream_st* stream, const LinearLaunch& p) {
  with_affine_layout<ScaleType::kF16>(p.layout,
                                      [&](auto layout) { launch_wide<decltype(layout)>(stream, p); });
}

}  // namespace tensorfold::cuda
