// The host side of linear() on CUDA: from views to launches (see ops/cuda/linear.h).
#include "ops/cuda/linear.h"

#include <algorithm>

#include "base/check.h"

namespace tensorfold::cuda {
namespace {

LinearLaunch empty_launch(View x, const LinearLayout& layout, LinearKernel kernel) {
  const LinearChunks chunks = linear_chunks(layout, x.dim(1));
  LinearLaunch launch{};
  launch.x = x.data;
  launch.x_stride = x.row_stride;
  launch.num_rows = static_cast<int>(x.num_rows());
  launch.in = static_cast<int>(x.dim(1));
  launch.chunks = chunks.total;
  launch.chunks_per_segment = chunks.per_segment;
  launch.layout = layout;
  launch.kernel = kernel;
  if (kernel == LinearKernel::kAuto)
    launch.kernel = x.num_rows() > max_decode_rows(layout) ? LinearKernel::kWide : LinearKernel::kDecode;
  return launch;
}

void add_call(LinearLaunch& launch, const LinearCall& call) {
  const LinearWeight& w = call.weight;
  TF_DCHECK(w.spec.in == launch.in && call.out.dim(1) == w.spec.out &&
            call.out.num_rows() == launch.num_rows);
  TF_DCHECK(!call.accumulate || call.out.dtype == DType::kF32);
  launch.calls[launch.num_calls++] = {.weights = w.data,
                                      .bias = w.bias,
                                      .out = call.out.data,
                                      .out_stride = call.out.row_stride,
                                      .out_size = static_cast<int>(w.spec.out),
                                      .first_tile = launch.num_tiles,
                                      .out_is_bf16 = call.out.dtype == DType::kBF16,
                                      .accumulate = call.accumulate};
  launch.num_tiles += static_cast<int>((w.spec.out + kLinearTileRows - 1) / kLinearTileRows);
}

}  // namespace

LinearChunks linear_chunks(const LinearLayout& layout, int64_t in) {
  const int64_t unit = layout.unit_columns(),
                segment = (in + kLinearSegments * unit - 1) / (kLinearSegments * unit);
  return {.total = static_cast<int>(layout.units(in) * layout.unit_chunks()),
          .per_segment = static_cast<int>(segment * layout.unit_chunks())};
}

std::vector<LinearLaunch> linear_launches(View x, std::span<const LinearCall> calls, LinearKernel kernel) {
  TF_DCHECK(x.dtype == DType::kBF16 && x.row_stride % 8 == 0 &&
            reinterpret_cast<uintptr_t>(x.data) % 16 == 0);
  std::vector<LinearLaunch> launches;
  if (x.num_rows() == 0) return launches;
  for (const LinearCall& call : calls) {
    const LinearLayout layout = layout_of(call.weight.spec);
    auto launch = std::find_if(launches.begin(), launches.end(), [&](const LinearLaunch& l) {
      return l.layout == layout && l.num_calls < kMaxLinearCalls;
    });
    if (launch == launches.end()) launch = launches.insert(launches.end(), empty_launch(x, layout, kernel));
    add_call(*launch, call);
  }
  for (LinearLaunch& launch : launches) {
    if (kernel == LinearKernel::kAuto && is_short(launch)) launch.kernel = LinearKernel::kShort;
  }
  return launches;
}

void launch_linear(CUstream_st* stream, const LinearLaunch& launch) {
  if (launch.num_rows == 0) return;
  if (launch.kernel == LinearKernel::kWide) {
    launch_linear_wide(stream, launch);
  } else if (launch.kernel == LinearKernel::kShort && can_be_short(launch)) {
    launch_linear_short(stream, launch);
  } else {
    launch_linear_decode(stream, launch);
  }
}

void linear(Stream stream, View x, std::span<const LinearCall> calls, LinearKernel kernel) {
  for (const LinearLaunch& launch : linear_launches(x, calls, kernel)) launch_linear(stream, launch);
}

}  // namespace tensorfold::cuda
