// The host side of the recurrent ops on CUDA: from views to launches (see ops/cuda/recurrences.h).
#include "ops/cuda/recurrences.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "ops/cuda/multiprocessors.h"

namespace tensorfold::cuda {
namespace {

RowsOfFloats rows_of(View view) {
  TF_CHECK(view.dtype == DType::kF32);
  return {reinterpret_cast<const float*>(view.data), static_cast<int32_t>(view.row_stride)};
}
const float* vector_of(View view) {
  TF_CHECK(view.dtype == DType::kF32);
  return reinterpret_cast<const float*>(view.data);
}

/// What both recurrences have; the rest of the launch is zero.
RecurrenceLaunch make_launch(View out, View keys, View queries, View values, const RecurrentStates& states,
                             const RecurrentRows& rows) {
  const RecurrentShape& shape = states.shape;
  const int64_t num_keys = keys.dim(1) / shape.key_dim;
  TF_CHECK(shape.key_dim <= kMaxKeyDim && shape.num_heads % num_keys == 0 &&
           states.slot_stride_bytes % 16 == 0);
  RecurrenceLaunch launch{};
  launch.sequences = rows.sequences;
  launch.num_sequences = rows.num_sequences;
  launch.num_key_heads = static_cast<int>(num_keys);
  launch.run_columns = static_cast<int>(shape.num_heads / num_keys * shape.value_dim);
  launch.key_dim = static_cast<int>(shape.key_dim);
  launch.value_dim = static_cast<int>(shape.value_dim);
  launch.keys = rows_of(keys);
  launch.queries = rows_of(queries);
  launch.values = rows_of(values);
  launch.out = const_cast<float*>(vector_of(out));
  launch.out_stride = static_cast<int32_t>(out.row_stride);
  launch.states = states.matrices(0);
  launch.slot_stride = states.slot_stride_bytes / 4;
  return launch;
}

}  // namespace

RecurrentRows make_recurrent_rows(const RowBatch& rows, std::vector<RecurrentSequence>& sequences) {
  RecurrentRows result;
  for (const SequenceRows& s : rows.sequences) {
    sequences.push_back({static_cast<int32_t>(s.first_row), static_cast<int32_t>(s.num_rows),
                         static_cast<int32_t>(s.num_stored()), s.state_slot, s.first_pos == 0 ? 1 : 0});
    result.max_rows = std::max(result.max_rows, s.num_rows);
  }
  result.num_sequences = static_cast<int>(sequences.size());
  return result;
}

Status check_recurrent_shape(const RecurrentShape& shape) {
  if (shape.conv_taps > kMaxConvTaps)
    return unsupported("a convolution of {} taps: CUDA takes up to {}", shape.conv_taps, kMaxConvTaps);
  if (shape.key_dim > kMaxKeyDim)
    return unsupported("recurrent states of {} keys: CUDA takes up to {}", shape.key_dim, kMaxKeyDim);
  return {};
}

CausalConvLaunch causal_conv_launch(const CausalConvCall& call, const RecurrentRows& rows) {
  TF_CHECK(call.weight.dim(0) <= kMaxConvTaps);
  return {.sequences = rows.sequences,
          .num_sequences = rows.num_sequences,
          .max_rows = static_cast<int>(rows.max_rows),
          .num_channels = static_cast<int>(call.x.dim(1)),
          .num_taps = static_cast<int>(call.weight.dim(0)),
          .x = rows_of(call.x),
          .weight = rows_of(call.weight),
          .bias = vector_of(call.bias),
          .out = const_cast<float*>(vector_of(call.out)),
          .out_stride = static_cast<int32_t>(call.out.row_stride),
          .states = call.states->conv_rows(0),
          .slot_stride = call.states->slot_stride_bytes / 4};
}

RecurrenceLaunch gated_delta_launch(const GatedDeltaCall& call, const RecurrentRows& rows,
                                    RecurrenceBlocks blocks) {
  TF_CHECK(blocks != RecurrenceBlocks::kOneRow || rows.max_rows <= 1);
  RecurrenceLaunch launch = make_launch(call.out, call.k, call.q, call.v, *call.states, rows);
  launch.blocks = blocks;
  launch.decay = rows_of(call.a);
  launch.beta = rows_of(call.b);
  launch.a_log = vector_of(call.a_log);
  launch.dt_bias = vector_of(call.dt_bias);
  launch.query_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(launch.key_dim)));
  return launch;
}

RecurrenceLaunch mamba2_launch(const Mamba2Call& call, const RecurrentRows& rows, RecurrenceBlocks blocks) {
  TF_CHECK(blocks != RecurrenceBlocks::kOneRow || rows.max_rows <= 1);
  RecurrenceLaunch launch = make_launch(call.out, call.b, call.c, call.x, *call.states, rows);
  launch.blocks = blocks;
  launch.decay = rows_of(call.dt);
  launch.a_log = vector_of(call.a_log);
  launch.dt_bias = vector_of(call.dt_bias);
  launch.skip = vector_of(call.d);
  launch.dt_min = call.dt_min;
  launch.dt_max = call.dt_max;
  return launch;
}

void causal_conv(Stream stream, const CausalConvCall& call, const RecurrentRows& rows) {
  if (rows.max_rows > 0) launch_causal_conv(stream, causal_conv_launch(call, rows));
}

void gated_delta(Stream stream, const GatedDeltaCall& call, const RecurrentRows& rows,
                 RecurrenceBlocks blocks) {
  if (rows.max_rows > 0) launch_gated_delta(stream, gated_delta_launch(call, rows, blocks));
}

void mamba2(Stream stream, const Mamba2Call& call, const RecurrentRows& rows, RecurrenceBlocks blocks) {
  if (rows.max_rows > 0) launch_mamba2(stream, mamba2_launch(call, rows, blocks));
}

RecurrenceBlocks recurrence_blocks(const RecurrentShape& shape, int64_t num_keys, const RecurrentRows& rows) {
  if (rows.max_rows == 1) return RecurrenceBlocks::kOneRow;
  if (rows.max_rows <= 16) return RecurrenceBlocks::kSmall;
  // One block an SM, so the last round counts as a whole one; a round of 32 columns takes 4/5 of the time of
  // one of 48 (bench/results/h200-recurrences.csv).
  const int64_t sms = num_multiprocessors();
  const int64_t run = shape.num_heads / num_keys * shape.value_dim, runs = num_keys * rows.num_sequences;
  const auto rounds = [&](int64_t columns) {
    return (runs * ((run + columns - 1) / columns) + sms - 1) / sms;
  };
  return rounds(32) * 4 <= rounds(48) * 5 ? RecurrenceBlocks::kMedium : RecurrenceBlocks::kWide;
}

}  // namespace tensorfold::cuda
