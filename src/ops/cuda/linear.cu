// linear()'s decode kernel for every layout: floats and MXFP4 here, affine groups in a file for each type of
// scales, so that they compile side by side.
#include "ops/cuda/linear_decode.cuh"

namespace tensorfold::cuda {

void launch_linear_decode(CUstream_st* stream, const LinearLaunch& p) {
  if (p.layout.format == LinearFormat::kAffine) {
    if (p.layout.scale_type == ScaleType::kBf16) return launch_linear_decode_affine_bf16(stream, p);
    if (p.layout.scale_type == ScaleType::kF16) return launch_linear_decode_affine_f16(stream, p);
    return launch_linear_decode_affine_f32(stream, p);
  }
  with_other_layout(p.layout, [&](auto layout) { launch_decode_for_rows<decltype(layout)>(stream, p); });
}

}  // namespace tensorfold::cuda
