// linear() on CUDA devices: packing weights, and launches of its kernels. Host interface only.
//
// Arithmetic (arithmetic.md, "Linear", CUDA): weights rounded to bf16 where the format has 4 bits or fewer,
// exact integers with scale and bias applied to the group's sum where it has more, f16 as two and f32 as
// three bf16 parts; 16-wide tensor-core steps with an fp32 accumulator, 8 segments, the fixed tree. A row's
// bits do not depend on the number of rows, the kernel or the tile that computed it. (Parts of an f32 weight
// below 2^-126 are flushed; f16 has none.)
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/view.h"
#include "memory/weight.h"
#include "ops/cuda/linear_params.h"
#include "ops/ops.h"

namespace tensorfold::cuda {

/// A cudaStream_t, spelled so that callers need no CUDA headers.
using Stream = CUstream_st*;

/// kUnsupported, naming the spec, for what the kernels do not take: an `in` that is not a multiple of 8.
Status check_linear(const LinearSpec& spec);

/// How a matrix that check_linear() takes is packed (ops/cuda/linear_layout.h).
LinearLayout layout_of(const LinearSpec& spec);

/// Bytes of a packed matrix, a multiple of 256.
int64_t packed_bytes(const LinearSpec& spec);

/// Writes packed_bytes(spec) bytes of host memory, `source` in checkpoint order (MLX packing for affine).
void pack_linear(const LinearSpec& spec, const LinearSource& source, std::span<std::byte> packed);

/// 64-column chunks of a row of the packed matrix, and of one of the 8 segments of its sum.
struct LinearChunks {
  int total;
  int per_segment;
};
LinearChunks linear_chunks(const LinearLayout& layout, int64_t in);

/// Ops::linear() as launches, one for every kMaxLinearCalls calls of one layout. x [T, in] bf16, rows
/// contiguous, each 16-byte aligned; what lies beyond column `in` is not read. Everything on the device.
/// Empty for no rows.
std::vector<LinearLaunch> linear_launches(View x, std::span<const LinearCall> calls,
                                          LinearKernel kernel = LinearKernel::kAuto);

/// Ops::linear() on `stream`, asynchronous.
void linear(Stream stream, View x, std::span<const LinearCall> calls,
            LinearKernel kernel = LinearKernel::kAuto);

}  // namespace tensorfold::cuda
