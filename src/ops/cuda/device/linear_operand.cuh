// What the kernels of linear() share: finding a tile's matrix, loading its packed weights, turning them into the A
// operand of a tensor-core step, and storing a finished output. Layout: ops/cuda/linear.h.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/device/mma.cuh"
#include "ops/cuda/linear_params.h"

namespace tensorfold::cuda {

__device__ __forceinline__ const LinearDeviceCall& call_of_tile(const LinearLaunch& p, int tile) {
  int i = 0;
  while (i + 1 < p.num_calls && tile >= p.calls[i + 1].first_tile) ++i;
  return p.calls[i];
}

__device__ __forceinline__ uint4 load_streaming(const uint4* address) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
}

/// Bias, sum onto the residual or not, rounding: the last step of one output.
__device__ __forceinline__ void store_output(const LinearDeviceCall& call, int row, int column, float sum) {
  if (call.bias != nullptr) sum = __fadd_rn(sum, call.bias[column]);
  const int64_t at = row * call.out_stride + column;
  if (call.out_is_bf16) {
    static_cast<__nv_bfloat16*>(call.out)[at] = __float2bfloat16_rn(sum);
  } else {
    float* out = static_cast<float*>(call.out) + at;
    *out = call.accumulate ? __fadd_rn(*out, sum) : sum;
  }
}

/// How the packed columns of a tile follow one another (ops/cuda/linear.h): in units of whole groups, at least a chunk.
template <int kGroupSize>
struct Affine4Layout {
  static constexpr int kUnitChunks = kGroupSize > 64 ? kGroupSize / 64 : 1;
  static constexpr int kChunkGroups = kGroupSize < 64 ? 64 / kGroupSize : 1;
  static constexpr int kWeightBytes = kUnitChunks * 512;
  static constexpr int kUnitBytes = kWeightBytes + kChunkGroups * 64;
};
struct Bf16Layout {
  static constexpr int kUnitChunks = 1, kUnitBytes = 2048;
};

/// The weights of one 64-column chunk of a tile, in flight, and how they become a step's A operand.
template <int kGroupSize>
struct Affine4Chunk {
  using Layout = Affine4Layout<kGroupSize>;
  uint4 words;
  uint2 scale_bias[Layout::kChunkGroups];

  __device__ __forceinline__ void load(const LinearDeviceCall& call, int64_t tile, int chunk, int chunks, int lane) {
    constexpr int kUnitChunks = Layout::kUnitChunks;
    const std::byte* unit = call.weights + (tile * (chunks / kUnitChunks) + chunk / kUnitChunks) * Layout::kUnitBytes;
    words = load_streaming(reinterpret_cast<const uint4*>(unit + chunk % kUnitChunks * 512) + lane);
    const auto* scales = reinterpret_cast<const uint2*>(unit + Layout::kWeightBytes) + lane / 4;
#pragma unroll
    for (int g = 0; g < Layout::kChunkGroups; ++g) scale_bias[g] = __ldg(scales + g * 8);
  }
  __device__ __forceinline__ void operand(int step, uint32_t magic, uint32_t (&a)[4]) const {
    uint32_t scale[2], bias[2];
    const uint2 sb = scale_bias[step * Layout::kChunkGroups / 4];
    split_scale_bias(sb.x, scale[0], bias[0]);
    split_scale_bias(sb.y, scale[1], bias[1]);
    const uint32_t word = step == 0 ? words.x : step == 1 ? words.y : step == 2 ? words.z : words.w;
    dequantize_affine4(word, scale, bias, magic, a);
  }
};

struct Bf16Chunk {
  uint4 registers[4];
  __device__ __forceinline__ void load(const LinearDeviceCall& call, int64_t tile, int chunk, int chunks, int lane) {
#pragma unroll
    for (int step = 0; step < 4; ++step)
      registers[step] = load_streaming(reinterpret_cast<const uint4*>(call.weights) + ((tile * chunks + chunk) * 4 + step) * 32 + lane);
  }
  __device__ __forceinline__ void operand(int step, uint32_t, uint32_t (&a)[4]) const {
    a[0] = registers[step].x, a[1] = registers[step].y, a[2] = registers[step].z, a[3] = registers[step].w;
  }
};

}  // namespace tensorfold::cuda
