// linear()'s kernels in fp32 for every instruction set: a step of arithmetic.md, "Linear", is two fused multiply-adds.
// They take any weights, and activations as fp32 (bf16 ones are widened once per call, which is exact).
//
// An integer is cut out of its word by shift and mask and converted: with the multiply-add that is four instructions
// for a register of weights, so AVX2 is bound by computing, not by memory.
#include "ops/cpu/isa_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/linear_simd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/contract_math.h"
#include "ops/cpu/linear_decode-inl.h"
#include "ops/cpu/linear_kernels.h"
#include "ops/linear_layout.h"

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {

template <int kBits, DType kDType>
void affine_row(const RowArgs& args) {
  constexpr int64_t kScaleBytes = kPanelOutputs * scale_size(kDType);
  constexpr int64_t kUnitBytes = kPanelOutputs * kUnitColumns * kBits / 8;
  const D d;
  const std::byte* p = args.panel;
  const auto* x = static_cast<const float*>(args.x);
  const int64_t groups = args.shape.num_groups;
  HWY_ALIGN float sums[kSegments][kPanelOutputs] = {};
  int64_t g = 0;
  for (int segment = 0; g < groups; ++segment) {
    const int64_t end = HWY_MIN(g + args.shape.segment_groups, groups);
    V acc[kVectors];
    unroll<kVectors>([&](auto c) TF_INLINE { acc[c] = hn::Zero(d); });
    for (; g < end; ++g) {
      const std::byte* scales = p;
      p += 2 * kScaleBytes;
      V dot[kVectors];
      unroll<kVectors>([&](auto c) TF_INLINE { dot[c] = hn::Zero(d); });
      for (int64_t u = 0; u < args.shape.units_per_group; ++u, p += kUnitBytes, x += kUnitColumns) {
        unroll<kUnitSteps>([&](auto s) TF_INLINE {
          const V x0 = hn::Set(d, x[2 * s]), x1 = hn::Set(d, x[2 * s + 1]);
          unroll<kVectors>([&](auto c) TF_INLINE {
            dot[c] = hn::MulAdd(x1, integers<kBits, 2 * s + 1>(p, c), dot[c]);
            dot[c] = hn::MulAdd(x0, integers<kBits, 2 * s>(p, c), dot[c]);
          });
        });
      }
      const V xs = hn::Set(d, args.group_sums[g]);
      unroll<kVectors>([&](auto c) TF_INLINE {
        acc[c] = hn::MulAdd(load_scales<kDType>(scales + kScaleBytes, c), xs, acc[c]);
        acc[c] = hn::MulAdd(load_scales<kDType>(scales, c), dot[c], acc[c]);
      });
    }
    unroll<kVectors>([&](auto c) TF_INLINE { hn::Store(acc[c], d, sums[segment] + c * kLanes); });
  }
  unroll<kVectors>([&](auto c) TF_INLINE {
    const auto s = [&](int i) TF_INLINE { return hn::Load(d, sums[i] + c * kLanes); };
    const V low = hn::Add(hn::Add(s(0), s(1)), hn::Add(s(2), s(3)));
    const V high = hn::Add(hn::Add(s(4), s(5)), hn::Add(s(6), s(7)));
    hn::Store(hn::Add(low, high), d, args.sums + c * kLanes);
  });
}

/// kRows rows times a tile: kRows * kVectors independent sums, which with the operands must fit the registers.
template <int kRows, bool kIsAffine>
void tile_rows(const TileArgs& args) {
  const D d;
  const auto* w = reinterpret_cast<const float*>(args.weights);
  const float* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = reinterpret_cast<const float*>(args.x + r * args.x_stride_bytes);
  int64_t k = 0;
  for (int64_t g = 0; g < args.num_groups; ++g) {
    V sum[kRows][kVectors];
    unroll<kRows>([&](auto r) TF_INLINE {
      unroll<kVectors>([&](auto c) TF_INLINE {
        sum[r][c] = kIsAffine ? hn::Zero(d) : hn::Load(d, args.acc + r * kPanelOutputs + c * kLanes);
      });
    });
    for (int64_t s = 0; s < args.steps_per_group; ++s, k += 2, w += 2 * kPanelOutputs) {
      // The odd column first: that is the order of the step.
      for (const int column : {1, 0}) {
        V xk[kRows];
        unroll<kRows>([&](auto r) TF_INLINE { xk[r] = hn::Set(d, x[r][k + column]); });
        unroll<kVectors>([&](auto c) TF_INLINE {
          const V wk = hn::Load(d, w + column * kPanelOutputs + c * kLanes);
          unroll<kRows>([&](auto r) TF_INLINE { sum[r][c] = hn::MulAdd(xk[r], wk, sum[r][c]); });
        });
      }
    }
    unroll<kRows>([&](auto r) TF_INLINE {
      float* acc = args.acc + r * kPanelOutputs;
      if constexpr (kIsAffine) {
        const V xs = hn::Set(d, args.group_sums[r * args.group_sums_stride + g]);
        unroll<kVectors>([&](auto c) TF_INLINE {
          const V scale = hn::Load(d, args.scales + g * kPanelOutputs + c * kLanes);
          const V bias = hn::Load(d, args.biases + g * kPanelOutputs + c * kLanes);
          sum[r][c] = hn::MulAdd(scale, sum[r][c], hn::MulAdd(bias, xs, hn::Load(d, acc + c * kLanes)));
        });
      }
      unroll<kVectors>([&](auto c) TF_INLINE { hn::Store(sum[r][c], d, acc + c * kLanes); });
    });
  }
}

/// Rows for which sums and operands fit: 24 of 32 registers of AVX-512 and NEON, 12 of AVX2's 16.
constexpr int kMaxTileRows = HWY_TARGET == HWY_AVX3 ? 12 : 3;

template <bool kIsAffine>
void tile(const TileArgs& args) {
  [&]<int... R>(std::integer_sequence<int, R...>) {
    static constexpr TileKernel kByRows[] = {tile_rows<R + 1, kIsAffine>...};
    kByRows[args.num_rows - 1](args);
  }
  (std::make_integer_sequence<int, kMaxTileRows>{});
}

/// Scalar: a group's sum is one chain, and several groups' chains overlap in an out-of-order core.
void group_sums(float* sums, const void* x, int64_t num_groups, int64_t units_per_group) {
  const auto* group = static_cast<const float*>(x);
  const int64_t columns = units_per_group * kUnitColumns;
  for (int64_t g = 0; g < num_groups; ++g, group += columns) {
    float sum = 0.0f;
    for (int64_t k = 0; k < columns; k += 2) {
      sum = contract::fused(group[k + 1], 1.0f, sum);  // as additions, GCC 12 miscompiles it: reference/linear.cc
      sum = contract::fused(group[k], 1.0f, sum);
    }
    sums[g] = sum;
  }
}

template <int kBits>
LinearKernels affine_kernels(DType dtype) {
  LinearKernels kernels{.tile = tile<true>, .group_sums = group_sums, .max_tile_rows = kMaxTileRows};
  switch (dtype) {
    case DType::kBF16:
      kernels.row = affine_row<kBits, DType::kBF16>;
      kernels.decode = decode_affine<kBits, DType::kBF16>;
      break;
    case DType::kF16:
      kernels.row = affine_row<kBits, DType::kF16>;
      kernels.decode = decode_affine<kBits, DType::kF16>;
      break;
    default:
      kernels.row = affine_row<kBits, DType::kF32>;
      kernels.decode = decode_affine<kBits, DType::kF32>;
      break;
  }
  return kernels;
}

LinearKernels kernels_for(const LinearSpec& spec) {
  if (spec.format == WeightFormat::kFloat) {
    LinearKernels kernels{.tile = tile<false>, .max_tile_rows = kMaxTileRows};
    if (spec.dtype == DType::kBF16) kernels.decode = decode_bf16;
    if (spec.dtype == DType::kF16) kernels.decode = decode_f16;
    return kernels;
  }
  switch (spec.bits) {
    case 2: return affine_kernels<2>(spec.dtype);
    case 3: return affine_kernels<3>(spec.dtype);
    case 4: return affine_kernels<4>(spec.dtype);
    case 5: return affine_kernels<5>(spec.dtype);
    case 6: return affine_kernels<6>(spec.dtype);
    default: return affine_kernels<8>(spec.dtype);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tensorfold::cpu {

LinearKernels linear_kernels_f32(CpuIsa isa, const LinearSpec& spec) {
  return TF_ISA_FUNCTION(isa, kernels_for)(spec);
}

LinearKernels linear_kernels(CpuIsa isa, const LinearSpec& spec, DType activation) {
#if defined(__x86_64__)
  const bool exact_in_bf16 = spec.format == WeightFormat::kAffine || spec.dtype == DType::kBF16;
  if (isa == CpuIsa::kAvx512Bf16 && activation == DType::kBF16 && exact_in_bf16) {
    return linear_kernels_avx512bf16(spec);
  }
#else
  static_cast<void>(activation);
#endif
  return linear_kernels_f32(isa, spec);
}

}  // namespace tensorfold::cpu
#endif
