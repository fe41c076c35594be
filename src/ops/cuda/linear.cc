// The host side of linear() on CUDA: from views to launches (see ops/cuda/linear.h).
#include "ops/cuda/linear.h"

#include <algorithm>

#include "base/check.h"

namespace tensorfold::cuda {
namespace {

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

LinearLayout layout_of(const LinearSpec& spec) {
  if (spec.format == WeightFormat::kFloat) return LinearLayout::kBf16;
  return spec.group_size == 32   ? LinearLayout::kAffine4G32
         : spec.group_size == 64 ? LinearLayout::kAffine4G64
                                 : LinearLayout::kAffine4G128;
}

/// The columns that segments and padding count in: the group, pairs of 32-wide groups, 64 where there is none.
int64_t unit_columns(const LinearSpec& spec) { return std::max<int64_t>(kLinearChunkColumns, spec.group_size); }

LinearLaunch make_launch(View x, std::span<const LinearCall> calls) {
  const LinearSpec& first = calls[0].weight.spec;
  const int64_t unit = unit_columns(first), padded = round_up(first.in, unit);
  LinearLaunch launch{};
  launch.num_calls = static_cast<int>(calls.size());
  launch.num_rows = static_cast<int>(x.num_rows());
  launch.chunks = static_cast<int>(padded / kLinearChunkColumns);
  launch.chunks_per_segment =
      static_cast<int>(unit * ((first.in + kLinearSegments * unit - 1) / (kLinearSegments * unit)) / kLinearChunkColumns);
  launch.x = x.data;
  launch.x_stride = x.row_stride;
  for (int i = 0; i < launch.num_calls; ++i) {
    const LinearWeight& w = calls[i].weight;
    TF_CHECK(w.spec.in == first.in && layout_of(w.spec) == layout_of(first));
    const int64_t tiles = (w.spec.out + kLinearTileRows - 1) / kLinearTileRows;
    launch.calls[i] = {.weights = w.data,
                       .bias = w.bias,
                       .out = calls[i].out.data,
                       .out_stride = calls[i].out.row_stride,
                       .out_size = static_cast<int>(w.spec.out),
                       .first_tile = launch.num_tiles,
                       .out_is_bf16 = calls[i].out.dtype == DType::kBF16,
                       .accumulate = calls[i].accumulate};
    launch.num_tiles += static_cast<int>(tiles);
  }
  return launch;
}

}  // namespace

void linear(Stream stream, View x, std::span<const LinearCall> calls, LinearKernel kernel) {
  TF_CHECK(!calls.empty() && calls.size() <= kMaxLinearCalls && x.dtype == DType::kBF16);
  if (x.num_rows() == 0) return;
  const LinearLaunch launch = make_launch(x, calls);
  const LinearLayout layout = layout_of(calls[0].weight.spec);
  const bool wide = kernel == LinearKernel::kWide || (kernel == LinearKernel::kAuto && x.num_rows() > kDecodeRows);
  if (wide) {
    launch_linear_wide(stream, layout, launch);
  } else {
    launch_linear_decode(stream, layout, launch);
  }
}

}  // namespace tensorfold::cuda
