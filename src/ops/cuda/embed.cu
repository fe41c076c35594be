// embed() on CUDA: rows out of the packed layout of linear(), an element a thread.
#include "ops/cuda/device/async.cuh"
#include "ops/cuda/device/launch.cuh"
#include "ops/cuda/device/values.cuh"
#include "ops/cuda/embed_params.h"

namespace tensorfold::cuda {
namespace {

constexpr int kThreads = 128;

/// Grid: the blocks of a row side by side. The words of a row lie between those of the row eight further, so
/// twice the rows' bytes of the table are read (more below 4 bits), and out is written once. The format is
/// known to the compiler, which turns packed_element() into a few loads and shifts.
template <LinearFormat kFormat, int kBits>
__global__ void __launch_bounds__(kThreads)
    embed_kernel(const __grid_constant__ EmbedLaunch p, int row_blocks) {
  launch_dependents();
  wait_for_previous_kernel();
  const int64_t t = blockIdx.x / row_blocks;
  const int column = static_cast<int>(blockIdx.x % row_blocks) * kThreads + static_cast<int>(threadIdx.x);
  if (column >= p.num_columns) return;
  LinearLayout layout = p.layout;
  layout.format = kFormat, layout.bits = kBits;
  if constexpr (kFormat == LinearFormat::kMxfp4) layout.group_size = 32;
  if constexpr (kFormat != LinearFormat::kAffine && kFormat != LinearFormat::kMxfp4) layout.group_size = 0;
  const float element = packed_element(layout, p.table, p.num_columns, p.tokens[t], column);
  const float y = __fmul_rn(element, p.scale);
  const int64_t at = t * p.out_stride + column;
  if (p.out_is_bf16) {
    static_cast<uint16_t*>(p.out)[at] = float_to_bf16(y);
  } else {
    static_cast<float*>(p.out)[at] = y;
  }
}

template <LinearFormat kFormat, int kBits>
void launch(CUstream_st* stream, const EmbedLaunch& p) {
  const int row_blocks = (p.num_columns + kThreads - 1) / kThreads;
  launch_kernel(embed_kernel<kFormat, kBits>, static_cast<unsigned>(p.num_rows) * row_blocks, kThreads, 0,
                stream, p, row_blocks);
}

void launch_affine(CUstream_st* stream, const EmbedLaunch& p) {
  switch (p.layout.bits) {
    case 2:
      return launch<LinearFormat::kAffine, 2>(stream, p);
    case 3:
      return launch<LinearFormat::kAffine, 3>(stream, p);
    case 4:
      return launch<LinearFormat::kAffine, 4>(stream, p);
    case 5:
      return launch<LinearFormat::kAffine, 5>(stream, p);
    case 6:
      return launch<LinearFormat::kAffine, 6>(stream, p);
    case 8:
      return launch<LinearFormat::kAffine, 8>(stream, p);
  }
}

}  // namespace

void launch_embed(CUstream_st* stream, const EmbedLaunch& p) {
  if (p.num_rows == 0 || p.num_columns == 0) return;
  switch (p.layout.format) {
    case LinearFormat::kBf16:
      return launch<LinearFormat::kBf16, 16>(stream, p);
    case LinearFormat::kF16:
      return launch<LinearFormat::kF16, 16>(stream, p);
    case LinearFormat::kF32:
      return launch<LinearFormat::kF32, 32>(stream, p);
    case LinearFormat::kAffine:
      return launch_affine(stream, p);
    case LinearFormat::kMxfp4:
      return launch<LinearFormat::kMxfp4, 4>(stream, p);
  }
}

}  // namespace tensorfold::cuda
