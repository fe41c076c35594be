// wgmma as attention uses it: tiles of 64 query rows by 64 keys or columns, keys and values straight from a
// page's layout in shared memory (ops/cuda/attention_params.h). One function per instruction (PTX ISA 8.x);
// needs sm_90a. Products run on after the instruction: registers they read or write may be touched only
// behind a wait, and the compiler sees neither, hence hold().
#pragma once

#include <cstdint>

#include "ops/cuda/device/wgmma.cuh"

namespace tensorfold::cuda {

/// Descriptor of rows of 128 bytes, swizzled, at a shared address that is aligned to 1024 but for the column:
/// groups of eight rows follow one another. Of keys and queries the rows are N and M and 16 columns lie 32
/// bytes further; of values the rows are keys (the operand is transposed) and 16 keys lie 2,048 bytes
/// further.
__device__ __forceinline__ uint64_t rows_descriptor(uint32_t address) {
  constexpr uint64_t kGroupStride = 1024 >> 4, kSwizzle128 = 1;
  return ((address & 0x3ffffu) >> 4) | (kGroupStride << 32) | (kSwizzle128 << 62);
}

/// d (+)= q k^T over 16 columns: 64 query rows, 64 keys, both by descriptor. accumulate == 0 starts from +0.
__device__ __forceinline__ void wgmma_keys(float (&d)[8][4], uint64_t q, uint64_t keys, int accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1, 0, 0;\n"
      "}\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),
        "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
        "+f"(d[7][2]), "+f"(d[7][3])
      : "l"(q), "l"(keys), "r"(accumulate));
}

/// d (+)= p v over 16 keys: 64 query rows, p in registers, 64 columns of the values by descriptor.
__device__ __forceinline__ void wgmma_values(float (&d)[8][4], const uint32_t (&p)[4], uint64_t values,
                                             int accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n"
      "}\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),
        "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
        "+f"(d[7][2]), "+f"(d[7][3])
      : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(values), "r"(accumulate));
}

/// A use behind a wait: before it the compiler may neither read these registers nor give them to something
/// else.
__device__ __forceinline__ void hold(float (&tile)[8][4]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) asm volatile("" : "+f"(tile[i / 4][i % 4])::"memory");
}
__device__ __forceinline__ void hold(uint32_t (&operands)[4][4]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) asm volatile("" : "+r"(operands[i / 4][i % 4])::"memory");
}

/// Makes this thread's stores to shared memory visible to products and bulk copies that follow a barrier.
__device__ __forceinline__ void fence_for_async_reads() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace tensorfold::cuda
