// linear() on CUDA devices: the packed layout of weights and the launchers of its kernels. Host interface only.
//
// Arithmetic (arithmetic.md, "Linear", CUDA): weights rounded to bf16 where the format has 4 bits or fewer, 16-wide
// tensor-core steps with an fp32 accumulator, 8 segments, the fixed tree. A row's bits do not depend on the number of
// rows, the kernel or the tile that computed it.
#pragma once

#include <cstdint>
#include <span>

#include "base/view.h"
#include "memory/weight.h"
#include "ops/cuda/linear_params.h"
#include "ops/ops.h"

namespace tensorfold::cuda {

/// A cudaStream_t, spelled so that callers need no CUDA headers.
using Stream = CUstream_st*;

/// Which kernel computes a product. Tests force each; callers leave kAuto.
enum class LinearKernel {
  kAuto,    ///< kDecode up to kDecodeRows rows, kWide beyond.
  kDecode,  ///< One warp per tile and segment, mma.sync, 16 rows at a time.
  kWide,    ///< Tiles of many rows.
};
inline constexpr int64_t kDecodeRows = 32;

/// kUnsupported, naming the spec, for what the kernels do not take.
Status check_linear(const LinearSpec& spec);

/// Bytes of a packed matrix, a multiple of 256.
///
/// Layout. Rows are taken in tiles of 16, columns in steps of 16: one m16n8k16 A operand. `out` is padded with zero
/// rows to a whole tile, `in` with zero columns to a multiple of 64 (128 with groups of 128). A tile's columns ascend,
/// so that a warp reads one sequential stream. Within a step lane l of a warp owns what the instruction wants of it:
/// rows l/4 and l/4 + 8, columns 2*(l%4) + {0, 1, 8, 9}; call its four registers r0 (row, low columns), r1 (row + 8,
/// low), r2 (row, high), r3 (row + 8, high), two elements each.
///   4 bits: per 64 columns 512 bytes; lane l's four words (one per step) at 16*l. In a word the first element of
///   register i is nibble i, the second nibble i + 4: (word >> 4i) & 0x000f000f is a register's pair of integers.
///   bf16: per step 512 bytes; lane l's four registers at 16*l.
/// Affine formats: behind every 64 columns (128 with groups of 128) come the scales of their groups, per group
/// 16 x {scale, bias} in their dtype, rows in the order 0, 8, 1, 9, ..., so that a lane's two rows are one load, and any
/// run of columns of a tile is one copy.
int64_t packed_bytes(const LinearSpec& spec);

/// Writes packed_bytes(spec) bytes of host memory, `source` in checkpoint order (MLX packing for affine).
void pack_linear(const LinearSpec& spec, const LinearSource& source, std::span<std::byte> packed);

/// Ops::linear() on `stream`, asynchronous. x [T, in] bf16, rows contiguous, each 16-byte aligned, with `in` padded as
/// the packed layout is: columns beyond `in` are read up to the padding and must be finite; everything on the device.
/// At most kMaxLinearCalls calls, of one `in`.
void linear(Stream stream, View x, std::span<const LinearCall> calls, LinearKernel kernel = LinearKernel::kAuto);

}  // namespace tensorfold::cuda
