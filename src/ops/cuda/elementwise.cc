// The host side of the elementwise ops on CUDA: from views to launches (see ops/cuda/elementwise.h).
#include "ops/cuda/elementwise.h"

#include <initializer_list>
#include <limits>

#include "base/check.h"
#include "ops/cuda/multiprocessors.h"

namespace tensorfold::cuda {
namespace {

/// Whether so many elements still give every multiprocessor its 2,048 threads if each takes four.
bool are_many(int64_t elements) { return elements >= int64_t{4} * 2048 * num_multiprocessors(); }

/// Whether rows can be read four elements at a time.
bool takes_four(View view) {
  const int64_t bytes = 4 * dtype_bytes(view.dtype);
  return view.row_stride % 4 == 0 && reinterpret_cast<uintptr_t>(view.data) % static_cast<size_t>(bytes) == 0;
}

/// Of `out`'s elements; `views` are all that a thread reads or writes at its columns.
ElementShape shape_of(View out, std::initializer_list<View> views) {
  bool wide = out.dim(1) % 4 == 0 && are_many(out.dim(0) * out.dim(1));
  for (const View& view : views) wide = wide && takes_four(view);
  TF_CHECK(out.dim(0) <= std::numeric_limits<int>::max() && out.dim(1) <= std::numeric_limits<int>::max());
  return {.num_rows = static_cast<int>(out.dim(0)),
          .num_columns = static_cast<int>(out.dim(1)),
          .width = wide ? 4 : 1};
}

}  // namespace

MlpActivationLaunch mlp_activation_launch(View out, View gate, View up, const MlpActivation& activation) {
  TF_CHECK(out.dtype == DType::kBF16 && up.dtype == DType::kF32);
  TF_CHECK(!activation.has_gate() || (gate.data != nullptr && gate.dtype == DType::kF32));
  TF_DCHECK(up.dim(0) == out.dim(0) && up.dim(1) == out.dim(1));
  return {.shape = activation.has_gate() ? shape_of(out, {out, gate, up}) : shape_of(out, {out, up}),
          .kind = static_cast<Activation>(activation.kind),
          .alpha = activation.alpha,
          .limit = activation.limit,
          .gate = activation.has_gate() ? gate.row<const float>(0) : nullptr,
          .up = up.row<const float>(0),
          .out = out.row<uint16_t>(0),
          .gate_stride = activation.has_gate() ? gate.row_stride : 0,
          .up_stride = up.row_stride,
          .out_stride = out.row_stride};
}

SigmoidMulLaunch sigmoid_mul_launch(View out, View x, View gate, int64_t head_dim, int64_t gate_head_stride) {
  TF_CHECK(out.dtype == DType::kBF16 && x.dtype == DType::kBF16 && gate.dtype == DType::kF32);
  TF_CHECK(head_dim > 0 && out.dim(1) % head_dim == 0);
  ElementShape shape = shape_of(out, {out, x, gate});
  if (head_dim % 4 != 0 || gate_head_stride % 4 != 0) shape.width = 1;
  return {.shape = shape,
          .head_dim = static_cast<int>(head_dim),
          .x = x.row<const uint16_t>(0),
          .gate = gate.row<const float>(0),
          .out = out.row<uint16_t>(0),
          .x_stride = x.row_stride,
          .gate_stride = gate.row_stride,
          .gate_head_stride = gate_head_stride,
          .out_stride = out.row_stride};
}

AddGatedLaunch add_gated_launch(View out, View x, View gate) {
  TF_CHECK(out.dtype == DType::kF32 && x.dtype == DType::kF32 && gate.dtype == DType::kF32);
  TF_DCHECK(x.dim(0) == out.dim(0) && x.dim(1) == out.dim(1) && gate.dim(0) == out.dim(0));
  return {.shape = shape_of(out, {out, x}),
          .x = x.row<const float>(0),
          .gate = gate.row<const float>(0),
          .out = out.row<float>(0),
          .x_stride = x.row_stride,
          .gate_stride = gate.row_stride,
          .out_stride = out.row_stride};
}

SoftcapLaunch softcap_launch(View x, float limit) {
  TF_CHECK(x.dtype == DType::kF32);
  return {.shape = shape_of(x, {x}), .limit = limit, .x = x.row<float>(0), .x_stride = x.row_stride};
}

GatherRowsLaunch gather_rows_launch(View out, View x, const int32_t* rows) {
  TF_DCHECK(out.row_size() == x.row_size());
  if (out.dtype != x.dtype) {
    TF_CHECK(out.dtype == DType::kBF16 && x.dtype == DType::kF32);
    return {.rows = rows,
            .x = x.data,
            .out = out.data,
            .x_stride = x.row_stride,
            .out_stride = out.row_stride,
            .num_rows = static_cast<int>(out.dim(0)),
            .row_units = static_cast<int>(x.row_size()),
            .unit_bytes = 0};
  }
  const int64_t size = dtype_bytes(x.dtype);
  const int64_t row_bytes = x.row_size() * size, x_bytes = x.row_stride * size,
                out_bytes = out.row_stride * size;
  const int64_t places =
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(x.data) | reinterpret_cast<uintptr_t>(out.data)) |
      row_bytes | x_bytes | out_bytes;
  const int unit = places % 16 == 0 ? 16 : places % 4 == 0 ? 4 : places % 2 == 0 ? 2 : 1;
  return {.rows = rows,
          .x = x.data,
          .out = out.data,
          .x_stride = x_bytes / unit,
          .out_stride = out_bytes / unit,
          .num_rows = static_cast<int>(out.dim(0)),
          .row_units = static_cast<int>(row_bytes / unit),
          .unit_bytes = unit};
}

}  // namespace tensorfold::cuda
