// causal_conv(), gated_delta() and mamba2() on CUDA devices: what they take from the host. Layout of a
// state's matrices: recurrences_params.h; of its convolution rows: as in RecurrentStates.
//
// Arithmetic (arithmetic.md, "Recurrences"; ops.h): the one-token update in order, fp32, the state in
// registers from a sequence's first row to its last; sums over the key dimension in eight strided partials,
// then halving; ordinary code flushes denormals. The short sums of gated_delta()'s unit lengths take CUDA's
// 256 strided partials, which for Dk <= 256 are one element each, rounded: partial i plus partial i + 128,
// and so on down to one. A row's bits depend on its sequence's rows up to it alone, not on how they were cut
// into passes, other sequences or the kind of blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/cuda/linear.h"
#include "ops/cuda/recurrences_params.h"
#include "ops/ops.h"

namespace tensorfold::cuda {

/// The rows of a pass on the device. `sequences` is device memory, filled by make_recurrent_rows() and a
/// copy; the rest is what the host must know to launch, and may be larger than this pass's.
struct RecurrentRows {
  const RecurrentSequence* sequences = nullptr;
  int num_sequences = 0;
  int64_t max_rows = 0;  ///< Of one sequence.
};

/// Device form of `rows`: its sequences, to be copied to the device. The pointer stays null.
RecurrentRows make_recurrent_rows(const RowBatch& rows, std::vector<RecurrentSequence>& sequences);

/// kUnsupported, naming the shape, for states that the kernels do not take: kMaxConvTaps, kMaxKeyDim.
Status check_recurrent_shape(const RecurrentShape& shape);

/// What Ops::causal_conv(), Ops::gated_delta() and Ops::mamba2() launch. Slots a multiple of 16 bytes apart;
/// call.rows is not read. Tests force each kind of blocks; callers take recurrence_blocks().
CausalConvLaunch causal_conv_launch(const CausalConvCall& call, const RecurrentRows& rows);
RecurrenceLaunch gated_delta_launch(const GatedDeltaCall& call, const RecurrentRows& rows,
                                    RecurrenceBlocks blocks);
RecurrenceLaunch mamba2_launch(const Mamba2Call& call, const RecurrentRows& rows, RecurrenceBlocks blocks);

/// The same on `stream`, asynchronous.
void causal_conv(Stream stream, const CausalConvCall& call, const RecurrentRows& rows);
void gated_delta(Stream stream, const GatedDeltaCall& call, const RecurrentRows& rows,
                 RecurrenceBlocks blocks);
void mamba2(Stream stream, const Mamba2Call& call, const RecurrentRows& rows, RecurrenceBlocks blocks);

/// The fastest blocks for a pass: `num_keys` key heads (groups) share the matrices of `shape`.
RecurrenceBlocks recurrence_blocks(const RecurrentShape& shape, int64_t num_keys, const RecurrentRows& rows);

}  // namespace tensorfold::cuda
