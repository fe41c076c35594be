// What the kernels of linear() and experts() share: how packed weights are loaded and become A operands of
// tensor-core steps, how the steps of one tile are summed, and how a finished output is stored. Layout:
// ops/cuda/linear_layout.h.
//
// What there is to a layout:
//   Layout   what with_layout() gives: constants;
//   Chunk    64 columns of a tile's weights in flight, a lane's share; load_from() asks for them, operand()
//            makes the A operand of a step. A step of 16 columns has kParts operands, all multiplied by the
//            same B (f16: two, f32: three);
//   TileSum  the running sum of one segment of a tile of 16 outputs by 8 rows of x;
//   SegmentChunks, TileChunks   where the chunks of a segment, or of a whole tile, lie in memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/device/async.cuh"
#include "ops/cuda/device/mma.cuh"
#include "ops/cuda/linear_params.h"

namespace tensorfold::cuda {

__device__ __forceinline__ const LinearDeviceCall& call_of_tile(const LinearLaunch& p, int tile) {
  int i = 0;
  while (i + 1 < p.num_calls && tile >= p.calls[i + 1].first_tile) ++i;
  return p.calls[i];
}

/// The bias of an output; 0 where a call has none (not to be added: -0 + 0 is +0).
__device__ __forceinline__ float bias_of(const LinearDeviceCall& call, int column) {
  return call.bias != nullptr ? __ldg(call.bias + column) : 0.0f;
}
/// Bias, sum onto the residual or not, rounding: the last step of one output. `bias`: the column's, of a call
/// that has one; `before`: what it is added to, if to anything.
__device__ __forceinline__ void store_output(const LinearDeviceCall& call, int row, int column, float sum,
                                             float bias, float before) {
  if (call.bias != nullptr) sum = __fadd_rn(sum, bias);
  const int64_t at = row * call.out_stride + column;
  if (call.out_is_bf16) {
    static_cast<__nv_bfloat16*>(call.out)[at] = __float2bfloat16_rn(sum);
  } else {
    static_cast<float*>(call.out)[at] = call.accumulate ? __fadd_rn(before, sum) : sum;
  }
}
__device__ __forceinline__ void store_output(const LinearDeviceCall& call, int row, int column, float sum) {
  const int64_t at = row * call.out_stride + column;
  store_output(call, row, column, sum, bias_of(call, column),
               call.accumulate ? static_cast<const float*>(call.out)[at] : 0.0f);
}

// Where a unit of packed weights is read from. Each byte is read once, so nothing is kept in L1.

struct GlobalUnit {
  const std::byte* at;
  __device__ __forceinline__ uint4 load_16(int offset) const {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at + offset));
    return v;
  }
  __device__ __forceinline__ uint2 load_8(int offset) const {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(at + offset));
    return v;
  }
  __device__ __forceinline__ uint32_t load_4(int offset) const {
    uint32_t v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(at + offset));
    return v;
  }
};

/// A unit in shared memory, at an address of 32 bits.
struct SharedUnit {
  uint32_t at;
  __device__ __forceinline__ uint4 load_16(int offset) const { return load_shared_16(at + offset); }
  __device__ __forceinline__ uint2 load_8(int offset) const { return load_shared_8(at + offset); }
  __device__ __forceinline__ uint32_t load_4(int offset) const {
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at + offset));
    return v;
  }
};

/// The constants of a layout.
template <LinearFormat kFormat_, int kBits_, int kGroupSize_, ScaleType kScaleType_>
struct LayoutOf {
  static constexpr LinearFormat kFormat = kFormat_;
  static constexpr int kBits = kBits_, kGroupSize = kGroupSize_;
  static constexpr ScaleType kScaleType = kScaleType_;
  static constexpr LinearLayout kLayout{kFormat, kScaleType, kBits, kGroupSize};
  static constexpr int kUnitChunks = kLayout.unit_chunks(), kUnitBytes = kLayout.unit_bytes();
  static constexpr int kChunkBytes = kLayout.chunk_bytes(), kUnitWeightBytes = kLayout.unit_weight_bytes();
  /// Groups that have columns in one chunk.
  static constexpr int kChunkGroups = kGroupSize == 32 ? 2 : 1;
  static constexpr int kParts = kFormat == LinearFormat::kF32 ? 3 : kFormat == LinearFormat::kF16 ? 2 : 1;
  static constexpr bool kKeepsIntegers = kLayout.keeps_integers(), kIsPrescaled = kLayout.is_prescaled();
  /// What sums are multiplied by when they are finished: exact.
  static constexpr float kResultScale = kIsPrescaled ? 0x1p32f : 1.0f;
  static_assert(kResultShift == 32, "kResultScale is its power of two");

  /// Whether step `step` of chunk `chunk` is the last one of a group.
  __device__ __forceinline__ static bool ends_group(int chunk, int step) {
    if (step % (4 / kChunkGroups) != 4 / kChunkGroups - 1) return false;
    return chunk % kUnitChunks == kUnitChunks - 1;
  }
  __device__ __forceinline__ static constexpr int group_of_step(int step) { return step * kChunkGroups / 4; }
};

/// The chunks of one segment of a tile, where they lie in memory.
template <class Layout>
struct SegmentChunks {
  const std::byte* first_unit;
  int odd_length;  ///< UnitOrder::offset().

  SegmentChunks() = default;
  /// Of a matrix with rows of `chunks` chunks.
  __device__ __forceinline__ SegmentChunks(const std::byte* weights, int64_t tile, int chunks, int segment) {
    const UnitOrder order(chunks / Layout::kUnitChunks);
    first_unit = weights + (tile * order.units + order.first(segment)) * Layout::kUnitBytes;
    odd_length = order.length(segment - segment % 2 + 1);
  }
  /// The unit of the segment's chunk `chunk`.
  __device__ __forceinline__ GlobalUnit unit_of(int chunk) const {
    return {first_unit +
            int64_t{UnitOrder::offset(chunk / Layout::kUnitChunks, odd_length)} * Layout::kUnitBytes};
  }
};

/// The chunks of a tile one after the other, segment by segment.
template <class Layout>
struct TileChunks {
  const std::byte* tile;
  UnitOrder order;
  int segment = 0, unit = 0, chunk_in_unit = 0;

  __device__ __forceinline__ TileChunks(const std::byte* weights, int64_t index, int chunks)
      : tile(weights + index * (chunks / Layout::kUnitChunks) * Layout::kUnitBytes),
        order(chunks / Layout::kUnitChunks) {}
  __device__ __forceinline__ const std::byte* unit_bytes() const {
    return tile + int64_t{order.place(segment, unit)} * Layout::kUnitBytes;
  }
  __device__ __forceinline__ void next() {
    if (++chunk_in_unit < Layout::kUnitChunks) return;
    chunk_in_unit = 0;
    if (++unit == order.per_segment) unit = 0, ++segment;
  }
};

/// The words of a chunk's integers, a lane's share (linear_layout.h, "Integers").
template <int kBits>
struct FieldWords {
  uint32_t words[kBits];

  template <class Unit>
  __device__ __forceinline__ void load(const Unit& unit, int offset, int lane) {
#pragma unroll
    for (int i = 0; i + 4 <= kBits; i += 4) {
      const uint4 v = unit.load_16(offset + word_offset(kBits, lane, i));
      words[i] = v.x, words[i + 1] = v.y, words[i + 2] = v.z, words[i + 3] = v.w;
    }
    constexpr int kRest = kBits % 4, kFirst = kBits - kRest;
    if constexpr (kRest >= 2) {
      const uint2 v = unit.load_8(offset + word_offset(kBits, lane, kFirst));
      words[kFirst] = v.x, words[kFirst + 1] = v.y;
    }
    if constexpr (kRest % 2 == 1)
      words[kBits - 1] = unit.load_4(offset + word_offset(kBits, lane, kBits - 1));
  }

  /// The four fields of a step, field `reg` at bit kBits * reg of both halves (2, 3 and 4 bits).
  __device__ __forceinline__ uint32_t step_fields(int step) const {
    static_assert(kBits <= 4, "a step's fields must fit in a half");
    if constexpr (kBits == 4) return words[step];
    if constexpr (kBits == 2) return words[step / 2] >> (8 * (step % 2));
    if constexpr (kBits == 3) return step < 3 ? words[step] : gather(words[0], words[1], words[2]);
  }
  /// Field `field` (0..15) alone in the low bits of both halves.
  __device__ __forceinline__ uint32_t field(int field) const {
    constexpr uint32_t kMask = ((1u << kBits) - 1) * 0x00010001u;
    if constexpr (kBits == 5) {
      if (field < 15) return (words[field / 3] >> (field % 3 * 5)) & kMask;
      uint32_t v = 0;
#pragma unroll
      for (int b = 0; b < 5; ++b) v |= (words[b] >> (15 - b)) & (0x00010001u << b);
      return v;
    } else if constexpr (kBits == 6) {
      const int gathered = (field - 12) / 2 * 3;
      if (field < 12) return (words[field / 2] >> (field % 2 * 6)) & kMask;
      return (gather(words[gathered], words[gathered + 1], words[gathered + 2]) >> (field % 2 * 6)) & kMask;
    } else {
      constexpr int kPerWord = 16 / kBits;
      return (words[field / kPerWord] >> (field % kPerWord * kBits)) & kMask;
    }
  }

 private:
  /// The top four bits of the halves of three words, side by side.
  __device__ __forceinline__ static uint32_t gather(uint32_t a, uint32_t b, uint32_t c) {
    return ((a >> 12) & 0x000f000fu) | ((b >> 8) & 0x00f000f0u) | ((c >> 4) & 0x0f000f00u);
  }
};

/// 2^127 in bf16, twice: it brings q * 2^-133 (an integer where it lies, linear_layout.h) to q * 2^-6.
constexpr uint32_t kRaiseIntegers = 0x7f007f00u;
/// What is left of it.
constexpr float kRaisedBy = 64.0f;

/// Scales and biases of a lane's two rows, l/4 and l/4 + 8, of one group.
template <ScaleType kType>
struct GroupScales {
  uint32_t words[kType == ScaleType::kF32 ? 4 : 2];  ///< {scale, bias} of the two rows.

  template <class Unit>
  __device__ __forceinline__ void load(const Unit& unit, int offset, int lane) {
    if constexpr (kType == ScaleType::kF32) {
      const uint4 v = unit.load_16(offset + lane / 4 * 16);
      words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    } else {
      const uint2 v = unit.load_8(offset + lane / 4 * 8);
      words[0] = v.x, words[1] = v.y;
    }
  }
  __device__ __forceinline__ float scale(int row) const { return number(row, 0); }
  __device__ __forceinline__ float bias(int row) const { return number(row, 1); }

 private:
  __device__ __forceinline__ float number(int row, int which) const {
    if constexpr (kType == ScaleType::kF32) return __uint_as_float(words[row * 2 + which]);
    if constexpr (kType == ScaleType::kBf16)
      return __uint_as_float(which == 0 ? words[row] << 16 : words[row] & 0xffff0000u);
    return __half2float(__ushort_as_half(static_cast<unsigned short>(words[row] >> (16 * which))));
  }
};

template <class Layout>
struct Chunk;

/// Affine groups.
template <int kBits, int kGroupSize, ScaleType kScaleType>
struct Chunk<LayoutOf<LinearFormat::kAffine, kBits, kGroupSize, kScaleType>> {
  using Layout = LayoutOf<LinearFormat::kAffine, kBits, kGroupSize, kScaleType>;
  FieldWords<kBits> integers;
  GroupScales<kScaleType> scales[Layout::kChunkGroups];

  template <class Unit>
  __device__ __forceinline__ void load_from(const Unit& unit, int chunk_in_unit, int lane) {
    integers.load(unit, chunk_in_unit * Layout::kChunkBytes, lane);
#pragma unroll
    for (int g = 0; g < Layout::kChunkGroups; ++g)
      scales[g].load(unit, Layout::kUnitWeightBytes + g * Layout::kLayout.group_bytes(), lane);
  }

  __device__ __forceinline__ void operand(int step, int, uint32_t (&a)[4]) const {
    if constexpr (Layout::kKeepsIntegers) {
#pragma unroll
      for (int reg = 0; reg < 4; ++reg) a[reg] = mul_bf16x2(integers.field(4 * step + reg), kRaiseIntegers);
    } else {
      constexpr uint32_t kMask = ((1u << kBits) - 1) * 0x00010001u;
      const GroupScales<kScaleType>& group = scales[Layout::group_of_step(step)];
      uint32_t fields = integers.step_fields(step);
#pragma unroll
      for (int half = 0; half < 2; ++half, fields >>= 2 * kBits) {
#pragma unroll
        for (int row = 0; row < 2; ++row)
          a[2 * half + row] = rounded(fields & (kMask << (kBits * row)), group, row);
      }
    }
  }

 private:
  /// bf16(fma(scale, q, bias)) of two integers that lie at bit kBits * row of the halves.
  __device__ __forceinline__ static uint32_t rounded(uint32_t fields, const GroupScales<kScaleType>& group,
                                                     int row) {
    if constexpr (Layout::kIsPrescaled) {
      uint32_t scale, bias;
      split_scale_bias(group.words[row], scale, bias);
      return fma_bf16x2(scale, fields, bias);
    } else {
      const uint32_t raised = mul_bf16x2(fields, kRaiseIntegers);
      const float scale = __fmul_rn(group.scale(row), row == 0 ? kRaisedBy : kRaisedBy / (1 << kBits));
      return to_bf16x2(__fmaf_rn(scale, __uint_as_float(raised << 16), group.bias(row)),
                       __fmaf_rn(scale, __uint_as_float(raised & 0xffff0000u), group.bias(row)));
    }
  }
};

/// MXFP4.
template <>
struct Chunk<LayoutOf<LinearFormat::kMxfp4, 4, 32, ScaleType::kBf16>> {
  using Layout = LayoutOf<LinearFormat::kMxfp4, 4, 32, ScaleType::kBf16>;
  FieldWords<4> codes;
  uint32_t scales;  ///< Bytes {row, row + 8} of the chunk's two blocks: exponents of bf16.

  template <class Unit>
  __device__ __forceinline__ void load_from(const Unit& unit, int, int lane) {
    codes.load(unit, 0, lane);
    scales = unit.load_4(Layout::kUnitWeightBytes + lane / 4 * 4);
  }
  __device__ __forceinline__ void operand(int step, int, uint32_t (&a)[4]) const {
    constexpr uint32_t kCode = 0x81c081c0u;
    const uint32_t word = codes.words[step];
    const uint32_t codes_of[4] = {
        word & kCode, (word << 3) & kCode, (word << 6) & kCode,
        ((word << 1) & 0x80008000u) | ((word >> 4) & 0x00c000c0u) | ((word >> 5) & 0x01000100u)};
#pragma unroll
    for (int reg = 0; reg < 4; ++reg) {
      const uint32_t byte = Layout::group_of_step(step) * 2 + reg % 2;
      a[reg] = mul_bf16x2(codes_of[reg], __byte_perm(scales, 0, 0x4040 | byte | byte << 8) << 7);
    }
  }
};

template <>
struct Chunk<LayoutOf<LinearFormat::kBf16, 16, 0, ScaleType::kBf16>> {
  using Layout = LayoutOf<LinearFormat::kBf16, 16, 0, ScaleType::kBf16>;
  uint4 registers[4];
  template <class Unit>
  __device__ __forceinline__ void load_from(const Unit& unit, int, int lane) {
#pragma unroll
    for (int step = 0; step < 4; ++step) registers[step] = unit.load_16(step * 512 + lane * 16);
  }
  __device__ __forceinline__ void operand(int step, int, uint32_t (&a)[4]) const {
    a[0] = registers[step].x, a[1] = registers[step].y, a[2] = registers[step].z, a[3] = registers[step].w;
  }
};

/// The upper halves of two floats: their leading 8 bits as bf16.
__device__ __forceinline__ uint32_t upper_halves(float low, float high) {
  return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
}
/// What a float is beyond its upper half: exact.
__device__ __forceinline__ float below_upper_half(float v) {
  return __fsub_rn(v, __uint_as_float(__float_as_uint(v) & 0xffff0000u));
}

template <>
struct Chunk<LayoutOf<LinearFormat::kF16, 16, 0, ScaleType::kBf16>> {
  using Layout = LayoutOf<LinearFormat::kF16, 16, 0, ScaleType::kBf16>;
  uint4 registers[4];
  template <class Unit>
  __device__ __forceinline__ void load_from(const Unit& unit, int, int lane) {
#pragma unroll
    for (int step = 0; step < 4; ++step) registers[step] = unit.load_16(step * 512 + lane * 16);
  }
  __device__ __forceinline__ void operand(int step, int part, uint32_t (&a)[4]) const {
    const uint32_t words[4] = {registers[step].x, registers[step].y, registers[step].z, registers[step].w};
#pragma unroll
    for (int reg = 0; reg < 4; ++reg) {
      const float low = __half2float(__ushort_as_half(static_cast<unsigned short>(words[reg])));
      const float high = __half2float(__ushort_as_half(static_cast<unsigned short>(words[reg] >> 16)));
      a[reg] =
          part == 0 ? upper_halves(low, high) : upper_halves(below_upper_half(low), below_upper_half(high));
    }
  }
};

template <>
struct Chunk<LayoutOf<LinearFormat::kF32, 32, 0, ScaleType::kBf16>> {
  using Layout = LayoutOf<LinearFormat::kF32, 32, 0, ScaleType::kBf16>;
  uint4 registers[4][2];
  template <class Unit>
  __device__ __forceinline__ void load_from(const Unit& unit, int, int lane) {
#pragma unroll
    for (int i = 0; i < 8; ++i) registers[i / 2][i % 2] = unit.load_16(i * 512 + lane * 16);
  }
  __device__ __forceinline__ void operand(int step, int part, uint32_t (&a)[4]) const {
#pragma unroll
    for (int reg = 0; reg < 4; ++reg) {
      const uint4 v = registers[step][reg / 2];
      float low = __uint_as_float(reg % 2 == 0 ? v.x : v.z), high = __uint_as_float(reg % 2 == 0 ? v.y : v.w);
#pragma unroll
      for (int i = 0; i < part; ++i) low = below_upper_half(low), high = below_upper_half(high);
      a[reg] = upper_halves(low, high);
    }
  }
};

/// Asks for chunk `chunk` of a segment.
template <class Layout>
__device__ __forceinline__ void load_chunk(Chunk<Layout>& to, const SegmentChunks<Layout>& from, int chunk,
                                           int lane) {
  to.load_from(from.unit_of(chunk), chunk % Layout::kUnitChunks, lane);
}
/// Asks for a tile's next chunk.
template <class Layout>
__device__ __forceinline__ void load_next_chunk(Chunk<Layout>& to, TileChunks<Layout>& from, int lane) {
  to.load_from(GlobalUnit{from.unit_bytes()}, from.chunk_in_unit, lane);
  from.next();
}

/// The running sum of one segment of a tile of 16 outputs by 8 rows of x, as mma_m16n8k16 keeps it: acc[i] is
/// output lane / 4 + 8 * (i / 2), row 2 * (lane % 4) + i % 2. Per step: add() with the step's operands; where
/// Layout::ends_group(), end_group() with the scales of the chunk.
template <class Layout>
struct TileSum {
  float acc[4] = {};

  __device__ __forceinline__ void add(const uint32_t (&a)[Layout::kParts][4], uint32_t b0, uint32_t b1) {
#pragma unroll
    for (int part = 0; part < Layout::kParts; ++part) mma_m16n8k16(acc, a[part], b0, b1);
  }
  __device__ __forceinline__ void end_group(const Chunk<Layout>&, int) {}
};

/// Where the integers are kept: a group's sum d of x*q and its sum xs of x (q = 1) in the same steps, then
/// acc = fma(scale, d, fma(bias, xs, acc)).
template <class Layout>
requires Layout::kKeepsIntegers struct TileSum<Layout> {
  float acc[4] = {}, d[4] = {}, xs[4] = {};

  __device__ __forceinline__ void add(const uint32_t (&a)[1][4], uint32_t b0, uint32_t b1) {
    constexpr uint32_t kOnes = 0x3f803f80u;
    const uint32_t ones[4] = {kOnes, kOnes, kOnes, kOnes};
    mma_m16n8k16(d, a[0], b0, b1);
    mma_m16n8k16(xs, ones, b0, b1);
  }
  __device__ __forceinline__ void end_group(const Chunk<Layout>& chunk, int group) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float scale = __fmul_rn(chunk.scales[group].scale(i / 2), kRaisedBy);
      acc[i] = __fmaf_rn(scale, d[i], __fmaf_rn(chunk.scales[group].bias(i / 2), xs[i], acc[i]));
      d[i] = 0.0f, xs[i] = 0.0f;
    }
  }
};

// Dispatch: from the layout of a launch to its type.

template <int kBits, ScaleType kScaleType, class Visit>
void with_affine_group(int group_size, const Visit& visit) {
  if (group_size == 32) return visit(LayoutOf<LinearFormat::kAffine, kBits, 32, kScaleType>{});
  if (group_size == 64) return visit(LayoutOf<LinearFormat::kAffine, kBits, 64, kScaleType>{});
  visit(LayoutOf<LinearFormat::kAffine, kBits, 128, kScaleType>{});
}

/// Calls visit(Layout{}) for an affine layout with scales of this type.
template <ScaleType kScaleType, class Visit>
void with_affine_layout(const LinearLayout& layout, const Visit& visit) {
  switch (layout.bits) {
    case 2:
      return with_affine_group<2, kScaleType>(layout.group_size, visit);
    case 3:
      return with_affine_group<3, kScaleType>(layout.group_size, visit);
    case 4:
      return with_affine_group<4, kScaleType>(layout.group_size, visit);
    case 5:
      return with_affine_group<5, kScaleType>(layout.group_size, visit);
    case 6:
      return with_affine_group<6, kScaleType>(layout.group_size, visit);
    default:
      return with_affine_group<8, kScaleType>(layout.group_size, visit);
  }
}

/// Calls visit(Layout{}) for any other layout.
template <class Visit>
void with_other_layout(const LinearLayout& layout, const Visit& visit) {
  switch (layout.format) {
    case LinearFormat::kBf16:
      return visit(LayoutOf<LinearFormat::kBf16, 16, 0, ScaleType::kBf16>{});
    case LinearFormat::kF16:
      return visit(LayoutOf<LinearFormat::kF16, 16, 0, ScaleType::kBf16>{});
    case LinearFormat::kF32:
      return visit(LayoutOf<LinearFormat::kF32, 32, 0, ScaleType::kBf16>{});
    default:
      return visit(LayoutOf<LinearFormat::kMxfp4, 4, 32, ScaleType::kBf16>{});
  }
}

/// Calls visit(Layout{}) for any layout.
template <class Visit>
void with_layout(const LinearLayout& layout, const Visit& visit) {
  if (layout.format != LinearFormat::kAffine) return with_other_layout(layout, visit);
  switch (layout.scale_type) {
    case ScaleType::kBf16:
      return with_affine_layout<ScaleType::kBf16>(layout, visit);
    case ScaleType::kF16:
      return with_affine_layout<ScaleType::kF16>(layout, visit);
    case ScaleType::kF32:
      return with_affine_layout<ScaleType::kF32>(layout, visit);
  }
}

}  // namespace tensorfold::cuda
