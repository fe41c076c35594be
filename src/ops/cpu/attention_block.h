// One block of attention on one thread: some rows of a sequence, some query heads of one KV head. A block reads each
// tile of keys and values once for all its query rows, which is what makes grouped heads and prompts cheap.
#pragma once

#include <cstdint>

#include "ops/attention_order.h"
#include "ops/cpu/attention_kernels.h"
#include "ops/ops.h"

namespace tensorfold::cpu {

/// Query rows of a block at most, and their elements at most: queries, products, weights and sums of a block take
/// 12 KiB each, and with two tiles they stay in the L1 and L2 caches.
inline constexpr int64_t kMaxBlockRows = 48;
inline constexpr int64_t kMaxBlockElements = 3072;

/// Query rows are ordered by position, then head: row r is position r / num_heads of the block.
struct AttentionBlock {
  const SequenceRows* sequence = nullptr;
  int64_t first_row = 0;  ///< Within the sequence.
  int64_t num_positions = 0;
  int64_t kv_head = 0;
  int64_t first_head = 0;
  int64_t num_heads = 0;
  int64_t first_span = 0;  ///< Spans that any row sees.
  int64_t end_span = 0;
  float* partials = nullptr;  ///< Where spans are computed apart: end_span - first_span partials (SpanPartial).

  int64_t num_query_rows() const { return num_positions * num_heads; }
};

/// A view of the online softmax of some query rows over some keys: m, l [num_rows], o [num_rows, padded D].
struct SpanPartial {
  float* m;
  float* l;
  float* o;
  RowPartial row(int64_t r, int64_t padded_head_dim) const { return {m + r, l + r, o + r * padded_head_dim}; }
};

/// Floats of one partial.
constexpr int64_t span_partial_floats(int64_t num_rows, int64_t padded_head_dim) {
  return num_rows * (padded_head_dim + 2);
}

/// The pieces of a partial in a block of memory; o comes first, so that it is aligned as the block.
constexpr SpanPartial span_partial_at(float* memory, int64_t num_rows, int64_t padded_head_dim) {
  float* m = memory + num_rows * padded_head_dim;
  return {m, m + num_rows, memory};
}

/// Computes blocks of one call. The object is 100 KiB of working memory: one per task, on its stack.
class BlockAttention {
 public:
  BlockAttention(const AttentionCall& call, const AttentionKernels& kernels);

  /// All spans in turn, merged, to call.out.
  void run(const AttentionBlock& block);

  /// Spans [first, end) of the block, each to its place in block.partials.
  void run_spans(const AttentionBlock& block, int64_t first, int64_t end);

  /// Merges what run_spans left in block.partials, to call.out.
  void merge_spans(const AttentionBlock& block);

 private:
  /// Slots of the current tile that a position sees.
  struct Slots {
    int32_t first, end;
  };

  void load_queries();
  void add_span(int64_t span, const SpanPartial& partial);
  void add_tile(int64_t first_key, const SpanPartial& partial);
  void add_products(const std::byte* keys, const std::byte* values, const SpanPartial& partial);
  void add_values(const std::byte* values, const SpanPartial& partial);
  void add_values_in_sight(const std::byte* values, const SpanPartial& partial);
  void add_pairs_of_position(int64_t position, int64_t first_pair, int64_t end_pair, const std::byte* values,
                             const SpanPartial& partial);
  void value_panel(int64_t first_row, int64_t num_rows, int64_t first_pair, int64_t num_pairs, const void* values,
                   const float* scale, const SpanPartial& partial);
  const void* masked_pair(const std::byte* values, int64_t pair, Slots slots);
  VisibleKeys keys_of(int64_t position) const {
    return visible_keys(call_, *block_->sequence, block_->first_row + position);
  }
  bool sees(int64_t position, int64_t span) const;
  void merge(int64_t span, const SpanPartial& partial, SpanPartial& total, bool* is_started);
  void finish(const SpanPartial& total);

  const AttentionCall& call_;
  const AttentionKernels& kernels_;
  const KvShape& shape_;
  const int64_t padded_;         ///< Dp of kv_layout.h.
  const int64_t element_bytes_;  ///< Of the pages.
  const int64_t operand_bytes_;  ///< Of queries_ and weights_.
  const float score_scale_;
  const AttentionBlock* block_ = nullptr;

  // Of the current tile.
  int64_t first_active_ = 0, end_active_ = 0;  ///< Positions that see a key of it.
  Slots slots_[kMaxBlockRows];                 ///< By position.
  const std::byte* next_keys_ = nullptr;       ///< Of the next tile, or null.

  alignas(64) std::byte queries_[kMaxBlockElements * 4];             ///< [rows][Dp] operands.
  alignas(64) float products_[kMaxBlockRows * kPageTokens];          ///< [active rows][64]
  alignas(64) std::byte weights_[kMaxBlockRows * kPageTokens * 4];   ///< [active rows][64] operands.
  alignas(64) float masked_[2 * kMaxBlockElements];                  ///< One pair of values.
  alignas(64) float scale_[kMaxBlockRows];                           ///< a of the active rows.
  alignas(64) float span_memory_[span_partial_floats(kMaxBlockRows, 0) + kMaxBlockElements];
  alignas(64) float total_memory_[span_partial_floats(kMaxBlockRows, 0) + kMaxBlockElements];
};

}  // namespace tensorfold::cpu
