// See op_fusion.h.
#include "ops/cuda/op_fusion.h"

#include <initializer_list>

namespace tensorfold::cuda {
namespace {

/// Blocks of a step at most: two rounds of a large device. More were not measured; the kernel of many
/// sequences reads and writes states at 79 % of a copy's bandwidth (docs/cuda-notes.md).
constexpr int64_t kMaxStepBlocks = 264;

/// The bytes from the first to the last of some rows.
struct Extent {
  const std::byte *begin, *end;
};
template <class T>
Extent extent(const T* data, int64_t columns, int64_t stride, int64_t num_rows) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  return {bytes, bytes + ((num_rows - 1) * stride + columns) * static_cast<int64_t>(sizeof(T))};
}
bool are_apart(std::initializer_list<Extent> some, std::initializer_list<Extent> others) {
  for (const Extent& a : some) {
    for (const Extent& b : others) {
      if (a.begin < b.end && b.begin < a.end) return false;
    }
  }
  return true;
}

int num_heads(const RecurrenceLaunch& delta) {
  return delta.num_key_heads * (delta.run_columns / delta.value_dim);
}

/// The arrays of a convolution and a recurrence in a pass of `num_rows` rows.
struct StepArrays {
  Extent x, decay, beta;  ///< Read.
  Extent mixed, out;      ///< Written: the convolution's outputs, the recurrence's.

  StepArrays(const CausalConvLaunch& conv, const RecurrenceLaunch& delta, int64_t num_rows)
      : x(extent(conv.x.data, conv.num_channels, conv.x.stride, num_rows)),
        decay(extent(delta.decay.data, num_heads(delta), delta.decay.stride, num_rows)),
        beta(extent(delta.beta.data, num_heads(delta), delta.beta.stride, num_rows)),
        mixed(extent(conv.out, conv.num_channels, conv.out_stride, num_rows)),
        out(extent(delta.out, num_heads(delta) * delta.value_dim, delta.out_stride, num_rows)) {}
};

/// Whether keys, queries and values are the convolution's outputs, each channel in one of them: so that all
/// of out and of the kept rows are written.
bool share_channels(const CausalConvLaunch& conv, const RecurrenceLaunch& delta, int64_t num_rows) {
  const int64_t keys = int64_t{delta.num_key_heads} * delta.key_dim;
  const int64_t values = int64_t{delta.num_key_heads} * delta.run_columns;
  const auto is_within = [&](const RowsOfFloats& rows, int64_t columns) {
    return rows.data >= conv.out && rows.data + columns <= conv.out + conv.num_channels &&
           (rows.stride == conv.out_stride || num_rows == 1);
  };
  const auto channels = [](const RowsOfFloats& rows, int64_t columns) {
    return extent(rows.data, columns, 0, 1);
  };
  const Extent of_keys = channels(delta.keys, keys), of_queries = channels(delta.queries, keys),
               of_values = channels(delta.values, values);
  return is_within(delta.keys, keys) && is_within(delta.queries, keys) && is_within(delta.values, values) &&
         2 * keys + values == conv.num_channels && are_apart({of_keys}, {of_queries, of_values}) &&
         are_apart({of_queries}, {of_values});
}

/// Whether the recurrence is of the convolution's outputs, both are of a size for one kernel, and nothing is
/// written that other blocks still read.
bool are_a_step(const CausalConvLaunch& conv, const RecurrenceLaunch& delta, int64_t num_rows) {
  if (conv.sequences != delta.sequences || conv.num_sequences != delta.num_sequences ||
      conv.slot_stride != delta.slot_stride || conv.max_rows > kMaxStepRows ||
      delta.key_dim > kMaxStepHeadDim || delta.value_dim > kMaxStepHeadDim ||
      delta.run_columns % delta.value_dim != 0 || delta.run_columns / delta.value_dim > kMaxStepHeads ||
      int64_t{num_heads(delta)} * delta.num_sequences > kMaxStepBlocks ||
      !share_channels(conv, delta, num_rows))
    return false;
  const StepArrays a(conv, delta, num_rows);
  return are_apart({a.mixed, a.out}, {a.x, a.decay, a.beta}) && are_apart({a.mixed}, {a.out});
}

/// Whether the norm is of the step's outputs, head by head, and may be computed beside it.
bool belongs_to(const GatedRmsNormLaunch& norm, const CausalConvLaunch& conv, const RecurrenceLaunch& delta,
                int64_t num_rows) {
  if (norm.x != delta.out || (norm.x_stride != delta.out_stride && num_rows > 1) ||
      norm.num_rows != num_rows || norm.num_groups != num_heads(delta) || norm.group_size != delta.value_dim)
    return false;
  const StepArrays a(conv, delta, num_rows);
  const int64_t values = int64_t{norm.num_groups} * norm.group_size;
  const Extent normed = extent(norm.out, values, norm.out_stride, num_rows);
  const Extent gate = extent(norm.gate, values, norm.gate_stride, num_rows);
  return are_apart({normed}, {a.x, a.decay, a.beta, a.mixed, a.out, gate}) &&
         are_apart({gate}, {a.mixed, a.out});
}

}  // namespace

void OpFusion::begin_pass(int64_t num_rows) {
  conv_.reset(), delta_.reset();
  num_rows_ = num_rows;
}

void OpFusion::flush() {
  if (conv_ && delta_) {
    launches_.add<launch_gated_delta_step>(
        GatedDeltaStepLaunch{.conv = *conv_, .delta = *delta_, .norm = {}});
  } else if (conv_) {
    launches_.add<launch_causal_conv>(*conv_);
  }
  conv_.reset(), delta_.reset();
}

void OpFusion::causal_conv(const CausalConvLaunch& launch) {
  flush();
  conv_ = launch;
}

void OpFusion::gated_delta(const RecurrenceLaunch& launch) {
  if (conv_ && !delta_ && are_a_step(*conv_, launch, num_rows_)) {
    delta_ = launch;
    return;
  }
  flush();
  launches_.add<launch_gated_delta>(launch);
}

void OpFusion::gated_rms_norm(const GatedRmsNormLaunch& launch) {
  if (conv_ && delta_ && belongs_to(launch, *conv_, *delta_, num_rows_)) {
    launches_.add<launch_gated_delta_step>(
        GatedDeltaStepLaunch{.conv = *conv_, .delta = *delta_, .norm = launch});
    conv_.reset(), delta_.reset();
    return;
  }
  flush();
  launches_.add<launch_gated_rms_norm>(launch);
}

}  // namespace tensorfold::cuda
