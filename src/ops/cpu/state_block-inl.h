// What gated_delta and mamba2 of the cpu backend share: a block of columns of one head's matrix, copied to
// scratch memory so that it stays in L1 for all rows of a sequence, and sums over the key dimension in the
// order of arithmetic.md, "Recurrences". Lanes run over columns. Included once per instruction set.
#if defined(TENSORFOLD_OPS_CPU_STATE_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TENSORFOLD_OPS_CPU_STATE_BLOCK_INL_H_
#undef TENSORFOLD_OPS_CPU_STATE_BLOCK_INL_H_
#else
#define TENSORFOLD_OPS_CPU_STATE_BLOCK_INL_H_
#endif

#include <cstring>

#include "hwy/highway.h"
#include "ops/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using StateTag = hn::ScalableTag<float>;
using StateVector = hn::Vec<StateTag>;
inline constexpr int kStateLanes = static_cast<int>(hn::MaxLanes(StateTag()));
/// Vectors of a block's row. Two sums over them in two partials each are eight chains, which is what two
/// units with a latency of four need; Arm's 32 registers hold twice that. 128 rows of 32 floats are 16 KB of
/// L1.
inline constexpr int kStateVectors = kStateLanes == 4 ? 4 : 2;
inline constexpr int64_t kStateColumns = kStateVectors * kStateLanes;

inline int64_t state_block_columns() { return kStateColumns; }

/// totals[n] = the sum over i < key_dim of what row(i, partials) adds to partials[n]: i goes to partial i mod
/// 8, ascending, then halving. Partials r and r + 4 run together, so that the live ones fit in registers.
template <int kCount, class Row>
HWY_INLINE void sum_over_keys(int64_t key_dim, StateVector* totals, const Row& row) {
  StateVector sums[4][kCount];
  for (int r = 0; r < 4; ++r) {
    StateVector low[kCount], high[kCount];
    for (int n = 0; n < kCount; ++n) low[n] = high[n] = hn::Zero(StateTag());
    int64_t i = r;
    for (; i + 4 < key_dim; i += 8) {
      row(i, low);
      row(i + 4, high);
    }
    if (i < key_dim) row(i, low);
    for (int n = 0; n < kCount; ++n) sums[r][n] = hn::Add(low[n], high[n]);
  }
  for (int n = 0; n < kCount; ++n)
    totals[n] = hn::Add(hn::Add(sums[0][n], sums[2][n]), hn::Add(sums[1][n], sums[3][n]));
}

/// `count` <= kStateColumns floats as a block's row; the rest is zero.
HWY_INLINE void load_columns(const float* from, int64_t count, StateVector* row) {
  const StateTag d;
  if (count == kStateColumns) {
    for (int v = 0; v < kStateVectors; ++v) row[v] = hn::LoadU(d, from + v * kStateLanes);
    return;
  }
  HWY_ALIGN float buffer[kStateColumns] = {};
  memcpy(buffer, from, static_cast<size_t>(count) * sizeof(float));
  for (int v = 0; v < kStateVectors; ++v) row[v] = hn::Load(d, buffer + v * kStateLanes);
}

/// The first `count` floats of a block's row.
HWY_INLINE void store_columns(const StateVector* row, int64_t count, float* to) {
  const StateTag d;
  if (count == kStateColumns) {
    for (int v = 0; v < kStateVectors; ++v) hn::StoreU(row[v], d, to + v * kStateLanes);
    return;
  }
  HWY_ALIGN float buffer[kStateColumns];
  for (int v = 0; v < kStateVectors; ++v) hn::Store(row[v], d, buffer + v * kStateLanes);
  memcpy(to, buffer, static_cast<size_t>(count) * sizeof(float));
}

/// Copies a block of `columns` columns of a matrix [key_dim, stride] into S [key_dim, kStateColumns].
HWY_INLINE void load_block(const float* from, int64_t stride, int64_t key_dim, int64_t columns, float* S) {
  const StateTag d;
  for (int64_t i = 0; i < key_dim; ++i) {
    StateVector row[kStateVectors];
    load_columns(from + i * stride, columns, row);
    for (int v = 0; v < kStateVectors; ++v) hn::Store(row[v], d, S + i * kStateColumns + v * kStateLanes);
  }
}

HWY_INLINE void clear_block(int64_t key_dim, float* S) {
  memset(S, 0, static_cast<size_t>(key_dim * kStateColumns) * sizeof(float));
}

HWY_INLINE void store_block(const float* S, int64_t stride, int64_t key_dim, int64_t columns, float* to) {
  const StateTag d;
  for (int64_t i = 0; i < key_dim; ++i) {
    StateVector row[kStateVectors];
    for (int v = 0; v < kStateVectors; ++v) row[v] = hn::Load(d, S + i * kStateColumns + v * kStateLanes);
    store_columns(row, columns, to + i * stride);
  }
}

/// e^-(e^a_log * step).
template <class D, class V>
HWY_INLINE V simd_decay(D d, V a_log, V step) {
  return simd_exp(d, hn::Neg(hn::Mul(simd_exp(d, a_log), step)));
}
HWY_INLINE float decay(float a_log, float step) { return exp_f32(-(exp_f32(a_log) * step)); }

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#endif
