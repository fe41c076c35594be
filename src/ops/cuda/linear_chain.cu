// linear_chain() for every layout that it has: floats and MXFP4 here, affine groups with bf16 scales in a
// file of their own, so that they compile side by side. And its barrier alone.
#include "ops/cuda/linear_chain.cuh"

namespace tensorfold::cuda {
namespace {

__global__ void __launch_bounds__(768, 1) grid_barriers_kernel(uint32_t* word, int count) {
  GridBarrier barrier{word};
  for (int i = 0; i < count; ++i) barrier.arrive(), barrier.wait();
}

}  // namespace

void launch_linear_chain(CUstream_st* stream, const LinearChain& chain) {
  if (chain.layout.format == LinearFormat::kAffine) return launch_linear_chain_affine_bf16(stream, chain);
  with_other_layout(chain.layout, [&](auto layout) {
    if constexpr (decltype(layout)::kFormat != LinearFormat::kF32)
      launch_chain_for_rows<decltype(layout)>(stream, chain);
  });
}

void launch_grid_barriers(CUstream_st* stream, uint32_t* barrier, int count) {
  grid_barriers_kernel<<<resident_clusters(grid_barriers_kernel, 1, 768), 768, 0, stream>>>(barrier, count);
}

}  // namespace tensorfold::cuda
