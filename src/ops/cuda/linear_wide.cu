// linear()'s wide kernel: floats and MXFP4 here, affine groups in files of their own. Scales in f32 do not
// happen in published models: they are left to the decode kernel, 8 rows at a time.
#include "ops/cuda/linear_wide.cuh"

namespace tensorfold::cuda {

void launch_linear_wide(CUstream_st* stream, const LinearLaunch& p) {
  if (p.layout.format == LinearFormat::kAffine) {
    if (p.layout.scale_type == ScaleType::kBf16) return launch_linear_wide_affine_bf16(stream, p);
    if (p.layout.scale_type == ScaleType::kF16) return launch_linear_wide_affine_f16(stream, p);
    return launch_linear_decode_affine_f32(stream, p);
  }
  with_other_layout(p.layout, [&](auto layout) { launch_wide<decltype(layout)>(stream, p); });
}

}  // namespace tensorfold::cuda
