// linear()'s kernel for small matrices, for every layout that it has.
#include "ops/cuda/linear_short.cuh"

namespace tensorfold::cuda {

void launch_linear_short(CUstream_st* stream, const LinearLaunch& p) {
  const auto launch = [&](auto layout) { launch_short<decltype(layout)>(stream, p); };
  switch (p.layout.format) {
    case LinearFormat::kBf16:
      return launch(LayoutOf<LinearFormat::kBf16, 16, 0, ScaleType::kBf16>{});
    case LinearFormat::kMxfp4:
      return launch(LayoutOf<LinearFormat::kMxfp4, 4, 32, ScaleType::kBf16>{});
    default:
      if (p.layout.bits == 4) return with_affine_group<4, ScaleType::kBf16>(p.layout.group_size, launch);
      with_affine_group<8, ScaleType::kBf16>(p.layout.group_size, launch);
  }
}

}  // namespace tensorfold::cuda
