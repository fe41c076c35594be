// linear_chain() for affine groups with bf16 scales.
#include "ops/cuda/linear_chain.cuh"

namespace tensorfold::cuda {

void launch_linear_chain_affine_bf16(CUstream_st* stream, const LinearChain& chain) {
  with_affine_layout<ScaleType::kBf16>(
      chain.layout, [&](auto layout) { launch_chain_for_rows<decltype(layout)>(stream, chain); });
}

}  // namespace tensorfold::cuda
