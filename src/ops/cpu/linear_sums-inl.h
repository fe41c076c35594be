// Sums of a few rows in registers, for linear()'s fp32 kernels. Included once per instruction set.

#if defined(TENSORFOLD_OPS_CPU_LINEAR_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TENSORFOLD_OPS_CPU_LINEAR_SUMS_INL_H_
#undef TENSORFOLD_OPS_CPU_LINEAR_SUMS_INL_H_
#else
#define TENSORFOLD_OPS_CPU_LINEAR_SUMS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "ops/cpu/linear_decode-inl.h"
#include "ops/cpu/linear_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {

/// Rows whose sums fit in registers. AVX-512: 16 sums of 32 registers; with more rows the compiler moves sums
/// in and out.
constexpr int kMaxRows = HWY_TARGET == HWY_AVX3 ? 8 : 6;
/// Sums that fit beside their operands. AVX2 has 16 registers and takes more than two rows in two halves of
/// the panel; NEON has 32 and takes more than three so.
constexpr int kMaxSums = HWY_TARGET == HWY_NEON ? 24 : HWY_TARGET == HWY_AVX2 ? 8 : 16;

constexpr int vectors_for(int rows) {
  return rows * kPanelVectors > kMaxSums ? kPanelVectors / 2 : kPanelVectors;
}

/// Sums of kRows rows and kVectors registers of outputs.
template <int kRows, int kVectors>
struct Sums {
  V at[kRows][kVectors];

  // Written out: an implicit constructor is not compiled for the instruction set, and may not call Highway's.
  TF_INLINE Sums() {}
  TF_INLINE void clear() {
    unroll<kRows>([&](auto r)
                      TF_INLINE { unroll<kVectors>([&](auto c) TF_INLINE { at[r][c] = hn::Zero(D()); }); });
  }
};

/// Asks for the `bytes` bytes that are read kPrefetchBytes after p, unless they lie beyond `end`.
TF_INLINE inline void prefetch_ahead(const std::byte* p, int64_t bytes, const std::byte* end) {
  if (end - p < kPrefetchBytes + bytes) return;
  for (int64_t i = 0; i < bytes; i += 64) hwy::Prefetch(p + kPrefetchBytes + i);
}

/// x of kRows rows, moving along the columns.
template <int kRows>
class Rows {
 public:
  Rows(const std::byte* x, int64_t stride_bytes) {
    for (int r = 0; r < kRows; ++r) rows_[r] = reinterpret_cast<const float*>(x + r * stride_bytes);
  }
  TF_INLINE void advance(int64_t columns) {
    for (int r = 0; r < kRows; ++r) rows_[r] += columns;
  }
  template <int kRow>
  TF_INLINE V column(int column) const {
    return hn::Set(D(), rows_[kRow][column]);
  }

 private:
  const float* rows_[kRows];
};

/// sum += x * w. Six rows of AVX2 have a register to spare beside their sums and operands, if the instruction
/// adds in place: GCC 12, left to choose, overwrites operands and then has to put sums into memory.
template <bool kInPlace>
TF_INLINE inline void multiply_add(V& sum, V x, V w) {
#if HWY_TARGET == HWY_AVX2
  if constexpr (kInPlace) {
    asm("vfmadd231ps %2, %1, %0" : "+x"(sum.raw) : "x"(x.raw), "x"(w.raw));
    return;
  }
#endif
  sum = hn::MulAdd(x, w, sum);
}

/// sums += x.w for one column; weight(c) gives register c's weights.
template <int kRows, int kVectors, class Weight>
TF_INLINE inline void add_column(Sums<kRows, kVectors>& sums, const Rows<kRows>& rows, int column,
                                 const Weight& weight) {
  constexpr bool kInPlace = kRows * kVectors >= 10;
  V w[kVectors];
  unroll<kVectors>([&](auto c) TF_INLINE { w[c] = weight(c); });
  unroll<kRows>([&](auto r) TF_INLINE {
    const V x = rows.template column<r>(column);
    unroll<kVectors>([&](auto c) TF_INLINE { multiply_add<kInPlace>(sums.at[r][c], x, w[c]); });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#endif
