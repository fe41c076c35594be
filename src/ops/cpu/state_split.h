// How gated_delta and mamba2 of the cpu backend are split over threads: a pass is taken in chunks of rows,
// whose inputs are prepared first; then every (sequence, head, block of columns) is a unit of its own.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cpu/cpu_context.h"

namespace tensorfold::cpu {

/// Rows taken at a time. The prepared inputs of 128 rows stay in L2, and a matrix is read and written once
/// for all of them, which costs about as much as one row.
inline constexpr int64_t kStateChunkRows = 128;

/// Consecutive rows of one sequence within a chunk, one head and some of its columns.
struct StateBlock {
  int64_t first_row = 0;   ///< Of the pass.
  int64_t num_rows = 0;    ///< At least 1.
  int64_t num_stored = 0;  ///< The matrix is stored as it is after so many rows; 0: not at all.
  bool is_start = false;   ///< The first row is at position 0: the matrix is taken for zeros.
  int64_t head = 0;
  int64_t first_column = 0;
  int64_t num_columns = 0;
  float* matrix = nullptr;  ///< Element (0, first_column) of the head's matrix [key_dim, value_dim].
};

/// Rows of one sequence within a chunk.
struct StatePiece {
  int64_t first_row, num_rows, num_stored;
  bool is_start;  ///< As StateBlock's.
  int32_t slot;   ///< Of the sequence's states.
};

/// The pieces of rows [first, end), in order, to `pieces` (one for each row is enough); returns their number.
inline int64_t pieces_of_chunk(const RowBatch& rows, int64_t first, int64_t end, StatePiece* pieces) {
  int64_t count = 0;
  for (const SequenceRows& sequence : rows.sequences) {
    const int64_t begin = std::max(first, sequence.first_row);
    const int64_t stop = std::min(end, sequence.first_row + sequence.num_rows);
    if (begin >= stop) continue;
    const int64_t stored_end = std::min(stop, sequence.first_row + sequence.num_stored());
    pieces[count++] = {begin, stop - begin, std::max<int64_t>(stored_end - begin, 0),
                       begin == sequence.first_row && sequence.first_pos == 0, sequence.state_slot};
  }
  return count;
}

/// The end of the chunk that begins at row `first`. Drafted rows of a sequence stay together, because nothing
/// stores the state between two of them.
inline int64_t end_of_chunk(const RowBatch& rows, int64_t first) {
  static_assert(kMaxDraftedRows <= kStateChunkRows);
  const int64_t end = std::min(rows.num_rows(), first + kStateChunkRows);
  for (const SequenceRows& sequence : rows.sequences) {
    const int64_t drafted = sequence.first_row + sequence.num_stored();
    if (first < drafted && drafted < end && end < sequence.first_row + sequence.num_rows) return drafted;
  }
  return end;
}

/// For each chunk of the pass: prepare(first row, number of rows), which may use the pool; then
/// block(StateBlock, scratch [key_dim, block_columns], aligned to 64) for everything in it, in parallel.
template <class Prepare, class Block>
void for_state_blocks(CpuContext& cpu, const RecurrentStates& states, const RowBatch& rows,
                      int64_t block_columns, const Prepare& prepare, const Block& block) {
  const RecurrentShape& shape = states.shape;
  const int64_t blocks_per_head = (shape.value_dim + block_columns - 1) / block_columns;
  const int64_t scratch_floats = (shape.key_dim * block_columns + 15) / 16 * 16;
  const Workspace::Frame frame(cpu.workspace);
  float* scratch = cpu.workspace.take<float>(cpu.pool.num_threads() * scratch_floats);
  auto* pieces = cpu.workspace.take<StatePiece>(std::min(rows.num_rows(), kStateChunkRows));
  for (int64_t first = 0, end = 0; first < rows.num_rows(); first = end) {
    end = end_of_chunk(rows, first);
    prepare(first, end - first);
    const int64_t num_heads = pieces_of_chunk(rows, first, end, pieces) * shape.num_heads;
    // A whole head to a thread reads its matrix once from front to back; with few heads the threads share
    // them.
    const int64_t tasks_per_head = num_heads >= 8 * cpu.pool.num_threads() ? 1 : blocks_per_head;
    cpu.pool.run(num_heads * tasks_per_head, [&](int64_t task, int thread) {
      const int64_t unit = task / tasks_per_head, part = task % tasks_per_head;
      const StatePiece& piece = pieces[unit / shape.num_heads];
      const int64_t head = unit % shape.num_heads;
      float* matrix = states.matrices(piece.slot) + head * shape.key_dim * shape.value_dim;
      for (int64_t b = part; b < blocks_per_head; b += tasks_per_head) {
        const int64_t column = b * block_columns;
        block(StateBlock{.first_row = piece.first_row,
                         .num_rows = piece.num_rows,
                         .num_stored = piece.num_stored,
                         .is_start = piece.is_start,
                         .head = head,
                         .first_column = column,
                         .num_columns = std::min(block_columns, shape.value_dim - column),
                         .matrix = matrix + column},
              scratch + thread * scratch_floats);
      }
    });
  }
}

}  // namespace tensorfold::cpu
