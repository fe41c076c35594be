// mlp_activation(), sigmoid_mul(), add_gated(), softcap() and gather_rows() on CUDA: one read and one write
// of each element, bound by memory. Formulas: ops.h.
#include "ops/cuda/device/activation.cuh"
#include "ops/cuda/device/async.cuh"
#include "ops/cuda/device/launch.cuh"
#include "ops/cuda/device/values.cuh"
#include "ops/cuda/elementwise_params.h"

namespace tensorfold::cuda {
namespace {

constexpr int kThreads = 256;

int blocks_per_row(int num_columns, int width) {
  const int columns = kThreads * width;
  return (num_columns + columns - 1) / columns;
}

/// Row and first column of a thread, in the grid that launch_elements() makes: the blocks of a row side by
/// side.
struct Place {
  int64_t row;
  int column;
  __device__ __forceinline__ Place(int row_blocks, int width)
      : row(blockIdx.x / row_blocks),
        column((static_cast<int>(blockIdx.x) - static_cast<int>(row) * row_blocks) * kThreads * width +
               static_cast<int>(threadIdx.x) * width) {}
};

template <Activation kKind>
__device__ __forceinline__ float activate(const MlpActivationLaunch& p, float gate, float up) {
  if constexpr (kKind == Activation::kSilu) return silu_mul(gate, up);
  if constexpr (kKind == Activation::kGeluTanh) return gelu_tanh_mul(gate, up);
  if constexpr (kKind == Activation::kClampedSilu) return clamped_silu_mul(gate, up, p.alpha, p.limit);
  if constexpr (kKind == Activation::kRelu2) return relu_squared(up);
}

template <Activation kKind, int kWidth>
__global__ void __launch_bounds__(kThreads)
    mlp_activation_kernel(const __grid_constant__ MlpActivationLaunch p, int row_blocks) {
  launch_dependents();
  wait_for_previous_kernel();
  const Place at(row_blocks, kWidth);
  if (at.column >= p.shape.num_columns) return;
  float gate[kWidth] = {}, up[kWidth], y[kWidth];
  if constexpr (kKind != Activation::kRelu2) load(gate, p.gate + at.row * p.gate_stride + at.column);
  load(up, p.up + at.row * p.up_stride + at.column);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) y[i] = activate<kKind>(p, gate[i], up[i]);
  store(p.out + at.row * p.out_stride + at.column, y);
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    sigmoid_mul_kernel(const __grid_constant__ SigmoidMulLaunch p, int row_blocks) {
  launch_dependents();
  wait_for_previous_kernel();
  const Place at(row_blocks, kWidth);
  if (at.column >= p.shape.num_columns) return;
  const int head = at.column / p.head_dim, d = at.column - head * p.head_dim;
  float x[kWidth], gate[kWidth];
  load(x, p.x + at.row * p.x_stride + at.column);
  load(gate, p.gate + at.row * p.gate_stride + head * p.gate_head_stride + d);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) x[i] = __fmul_rn(x[i], sigmoid_f32(gate[i]));
  store(p.out + at.row * p.out_stride + at.column, x);
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    add_gated_kernel(const __grid_constant__ AddGatedLaunch p, int row_blocks) {
  launch_dependents();
  wait_for_previous_kernel();
  const Place at(row_blocks, kWidth);
  if (at.column >= p.shape.num_columns) return;
  float x[kWidth], out[kWidth];
  float* to = p.out + at.row * p.out_stride + at.column;
  load(x, p.x + at.row * p.x_stride + at.column);
  load(out, to);
  const float gate = sigmoid_f32(p.gate[at.row * p.gate_stride]);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) out[i] = __fmaf_rn(gate, x[i], out[i]);
  store(to, out);
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    softcap_kernel(const __grid_constant__ SoftcapLaunch p, int row_blocks) {
  launch_dependents();
  wait_for_previous_kernel();
  const Place at(row_blocks, kWidth);
  if (at.column >= p.shape.num_columns) return;
  float x[kWidth];
  float* to = p.x + at.row * p.x_stride + at.column;
  load(x, to);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) x[i] = __fmul_rn(p.limit, tanh_f32(__fdiv_rn(x[i], p.limit)));
  store(to, x);
}

template <class Unit>
__global__ void __launch_bounds__(kThreads)
    gather_rows_kernel(const __grid_constant__ GatherRowsLaunch p, int row_blocks) {
  launch_dependents();
  wait_for_previous_kernel();
  const Place at(row_blocks, 1);
  if (at.column >= p.row_units) return;
  const Unit* x = reinterpret_cast<const Unit*>(p.x) + p.rows[at.row] * p.x_stride;
  reinterpret_cast<Unit*>(p.out)[at.row * p.out_stride + at.column] = x[at.column];
}

__global__ void __launch_bounds__(kThreads)
    gather_rounded_rows_kernel(const __grid_constant__ GatherRowsLaunch p, int row_blocks) {
  launch_dependents();
  wait_for_previous_kernel();
  const Place at(row_blocks, 1);
  if (at.column >= p.row_units) return;
  const float x = reinterpret_cast<const float*>(p.x)[p.rows[at.row] * p.x_stride + at.column];
  reinterpret_cast<uint16_t*>(p.out)[at.row * p.out_stride + at.column] = float_to_bf16(flush_denormal(x));
}

/// Launches one thread for each `width` elements of a row.
template <class Launch>
void launch_elements(CUstream_st* stream, void (*kernel)(Launch, int), const Launch& p, int num_rows,
                     int num_columns, int width) {
  if (num_rows == 0 || num_columns == 0) return;
  const int row_blocks = blocks_per_row(num_columns, width);
  launch_kernel(kernel, static_cast<unsigned>(num_rows) * static_cast<unsigned>(row_blocks), kThreads, 0,
                stream, p, row_blocks);
}

/// The kernel for the launch's width.
template <class Launch>
void launch_wide_or_not(CUstream_st* stream, void (*wide)(Launch, int), void (*narrow)(Launch, int),
                        const Launch& p) {
  launch_elements(stream, p.shape.width == 4 ? wide : narrow, p, p.shape.num_rows, p.shape.num_columns,
                  p.shape.width);
}

template <Activation kKind>
void launch_activation(CUstream_st* stream, const MlpActivationLaunch& p) {
  launch_wide_or_not(stream, mlp_activation_kernel<kKind, 4>, mlp_activation_kernel<kKind, 1>, p);
}

}  // namespace

void launch_mlp_activation(CUstream_st* stream, const MlpActivationLaunch& p) {
  switch (p.kind) {
    case Activation::kSilu:
      return launch_activation<Activation::kSilu>(stream, p);
    case Activation::kGeluTanh:
      return launch_activation<Activation::kGeluTanh>(stream, p);
    case Activation::kClampedSilu:
      return launch_activation<Activation::kClampedSilu>(stream, p);
    case Activation::kRelu2:
      return launch_activation<Activation::kRelu2>(stream, p);
  }
}

void launch_sigmoid_mul(CUstream_st* stream, const SigmoidMulLaunch& p) {
  launch_wide_or_not(stream, sigmoid_mul_kernel<4>, sigmoid_mul_kernel<1>, p);
}

void launch_add_gated(CUstream_st* stream, const AddGatedLaunch& p) {
  launch_wide_or_not(stream, add_gated_kernel<4>, add_gated_kernel<1>, p);
}

void launch_softcap(CUstream_st* stream, const SoftcapLaunch& p) {
  launch_wide_or_not(stream, softcap_kernel<4>, softcap_kernel<1>, p);
}

void launch_gather_rows(CUstream_st* stream, const GatherRowsLaunch& p) {
  const auto launch = [&](auto* kernel) { launch_elements(stream, kernel, p, p.num_rows, p.row_units, 1); };
  switch (p.unit_bytes) {
    case 16:
      return launch(gather_rows_kernel<uint4>);
    case 4:
      return launch(gather_rows_kernel<uint32_t>);
    case 2:
      return launch(gather_rows_kernel<uint16_t>);
    case 0:
      return launch(gather_rounded_rows_kernel);
    default:
      return launch(gather_rows_kernel<uint8_t>);
  }
}

}  // namespace tensorfold::cuda
