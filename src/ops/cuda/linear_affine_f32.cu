// linear()'s decode kernel for affine groups with f32 scales.
#include "ops/cuda/linear_decode.cuh"

namespace tensorfold::cuda {

void launch_linear_decode_affine_f32(CUstream_st* stream, const LinearLaunch& p) {
  with_affine_layout<ScaleType::kF32>(
      p.layout, [&](auto layout) { launch_decode_for_rows<decltype(layout)>(stream, p); });
}

}  // namespace tensorfold::cuda
