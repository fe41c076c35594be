// What a launch of the recurrent ops' kernels is told, and where an element of a state lies: plain data
// shared by host and device. Device code includes no header with fmt or STL containers in it.
#pragma once

#include <cstdint>

#include "ops/cuda/norms_params.h"

struct CUstream_st;

namespace tensorfold::cuda {

/// Place of (key, column) in a head's matrix, in floats from its start. A column's keys lie together,
/// [Dv][Dk]: 8 lanes share a column, lane i having the keys of partial sum i (keys i, i + 8, ...). Where Dk
/// is a multiple of 32 each lane's four of 32 keys are 16 bytes: one load a lane, whole lines a column.
constexpr int64_t matrix_place(int64_t key_dim, int64_t key, int64_t column) {
  const int64_t start = column * key_dim;
  return key_dim % 32 != 0 ? start + key : start + key / 32 * 32 + key % 8 * 4 + key / 8 % 4;
}

/// The rows of one sequence, on the device.
struct RecurrentSequence {
  int32_t first_row;
  int32_t num_rows;
  int32_t num_stored;  ///< The slot gets the state after this many of them; 0: it stays as it is.
  int32_t state_slot;
  int32_t
      is_start;  ///< Its rows begin at position 0: the state before them is zero, whatever the slot holds.
};

/// Row t's elements begin at data + t * stride.
struct RowsOfFloats {
  const float* data;
  int32_t stride;
};

/// The blocks that a recurrence is dealt out in: which is fast, not what is computed.
enum class RecurrenceBlocks {
  kOneRow,  ///< 16 columns, several blocks an SM; for sequences of one row each, and no more.
  kSmall,   ///< 32 columns, several blocks an SM: few rows, where the states' bytes decide.
  kMedium,  ///< 32 columns, one block an SM: many rows, where instructions decide.
  kWide,    ///< 48 columns, one block an SM.
};

/// gated_delta() and mamba2(). The columns of a state matrix are independent, so a launch counts the columns
/// of all value heads that share a key head (for Mamba-2: of all heads of a group) as one run, and deals runs
/// out in blocks.
struct RecurrenceLaunch {
  RecurrenceBlocks blocks;
  const RecurrentSequence* sequences;
  int num_sequences;
  int num_key_heads;     ///< Hk; for Mamba-2 the groups.
  int run_columns;       ///< Value heads of a key head, times their columns.
  int key_dim;           ///< Dk; N.
  int value_dim;         ///< Dv; P.
  RowsOfFloats keys;     ///< k [T, Hk*Dk]; b.
  RowsOfFloats queries;  ///< q [T, Hk*Dk]; c.
  RowsOfFloats values;   ///< v [T, Hv*Dv]; x.
  RowsOfFloats decay;    ///< a [T, Hv]; dt.
  RowsOfFloats beta;     ///< b [T, Hv] of the delta rule.
  const float* a_log;    ///< [Hv]
  const float* dt_bias;  ///< [Hv]
  const float* skip;     ///< d [Hm] of Mamba-2.
  float query_scale;     ///< Dk^-1/2.
  float dt_min, dt_max;
  float* out;  ///< [T, Hv*Dv]
  int32_t out_stride;
  float* states;        ///< The matrices of slot 0.
  int64_t slot_stride;  ///< Floats.
};

struct CausalConvLaunch {
  const RecurrentSequence* sequences;
  int num_sequences;
  int max_rows;  ///< Of a sequence.
  int num_channels;
  int num_taps;
  RowsOfFloats x;       ///< [T, C]
  RowsOfFloats weight;  ///< [taps, C]
  const float* bias;    ///< [C] or null.
  float* out;           ///< [T, C]
  int32_t out_stride;
  float* states;        ///< The kept rows [taps - 1, C] of slot 0.
  int64_t slot_stride;  ///< Floats.
};

inline constexpr int kMaxConvTaps = 4;
inline constexpr int kMaxKeyDim = 256;

/// causal_conv(), gated_delta() of its outputs, and if norm.out is not null gated_rms_norm() of theirs, for
/// few rows: as one kernel.
struct GatedDeltaStepLaunch {
  CausalConvLaunch conv;
  RecurrenceLaunch delta;
  GatedRmsNormLaunch norm;
};
inline constexpr int kMaxStepRows = 8;       ///< Of a sequence.
inline constexpr int kMaxStepHeadDim = 128;  ///< Dk and Dv.
/// Value heads that share a key head: a cluster of blocks.
inline constexpr int kMaxStepHeads = 8;

void launch_gated_delta(CUstream_st* stream, const RecurrenceLaunch& launch);
void launch_mamba2(CUstream_st* stream, const RecurrenceLaunch& launch);
void launch_gated_delta_step(CUstream_st* stream, const GatedDeltaStepLaunch& launch);
void launch_causal_conv(CUstream_st* stream, const CausalConvLaunch& launch);

}  // namespace tensorfold::cuda
