// One block of attention (see attention_block.h): spans, tiles, and inside a tile the two products around the softmax.
#include "ops/cpu/attention_block.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/bf16.h"
#include "ops/contract_math.h"
#include "ops/kv_layout.h"

namespace tensorfold::cpu {
namespace {

constexpr int64_t kPairs = kPageTokens / 2;

struct Ones {
  float value[kMaxBlockRows];
  constexpr Ones() : value() {
    for (float& v : value) v = 1.0f;
  }
};
constexpr Ones kOnes;

}  // namespace

BlockAttention::BlockAttention(const AttentionCall& call, const AttentionKernels& kernels)
    : call_(call),
      kernels_(kernels),
      shape_(call.pages->shape),
      padded_(kv_padded_head_dim(shape_.head_dim)),
      element_bytes_(dtype_bytes(shape_.dtype)),
      operand_bytes_(dtype_bytes(kernels.operand_dtype)),
      score_scale_(attention_score_scale(call.scale)) {}

void BlockAttention::run(const AttentionBlock& block) {
  block_ = &block;
  load_queries();
  const int64_t num_rows = block.num_query_rows();
  const SpanPartial span = span_partial_at(span_memory_, num_rows, padded_);
  SpanPartial total = span_partial_at(total_memory_, num_rows, padded_);
  bool is_started[kMaxBlockRows] = {};
  for (int64_t i = block.first_span; i < block.end_span; ++i) {
    add_span(i, span);
    merge(i, span, total, is_started);
  }
  finish(total);
}

void BlockAttention::run_spans(const AttentionBlock& block, int64_t first, int64_t end) {
  block_ = &block;
  load_queries();
  const int64_t num_rows = block.num_query_rows(), floats = span_partial_floats(num_rows, padded_);
  for (int64_t i = first; i < end; ++i) {
    add_span(i, span_partial_at(block.partials + (i - block.first_span) * floats, num_rows, padded_));
  }
}

void BlockAttention::merge_spans(const AttentionBlock& block) {
  block_ = &block;
  const int64_t num_rows = block.num_query_rows(), floats = span_partial_floats(num_rows, padded_);
  SpanPartial total = span_partial_at(total_memory_, num_rows, padded_);
  bool is_started[kMaxBlockRows] = {};
  for (int64_t i = block.first_span; i < block.end_span; ++i) {
    merge(i, span_partial_at(block.partials + (i - block.first_span) * floats, num_rows, padded_), total, is_started);
  }
  finish(total);
}

void BlockAttention::load_queries() {
  for (int64_t r = 0; r < block_->num_query_rows(); ++r) {
    const int64_t t = block_->sequence->first_row + block_->first_row + r / block_->num_heads;
    const int64_t column = (block_->first_head + r % block_->num_heads) * shape_.head_dim;
    std::byte* out = queries_ + r * padded_ * operand_bytes_;
    std::memset(out, 0, padded_ * operand_bytes_);
    if (kernels_.operand_dtype == call_.q.dtype) {
      std::memcpy(out, call_.q.data + (t * call_.q.row_stride + column) * operand_bytes_,
                  shape_.head_dim * operand_bytes_);
    } else {
      const bf16* q = call_.q.row<const bf16>(t) + column;
      for (int64_t d = 0; d < shape_.head_dim; ++d) reinterpret_cast<float*>(out)[d] = to_float(q[d]);
    }
  }
}

void BlockAttention::add_span(int64_t span, const SpanPartial& partial) {
  const int64_t num_rows = block_->num_query_rows();
  std::fill_n(partial.m, num_rows, -std::numeric_limits<float>::infinity());
  std::fill_n(partial.l, num_rows, 0.0f);
  std::fill_n(partial.o, num_rows * padded_, 0.0f);
  const int64_t first = keys_of(0).begin / kPageTokens * kPageTokens;
  const int64_t end = std::min(attention_span_begin(span + 1), keys_of(block_->num_positions - 1).end);
  for (int64_t key = std::max(attention_span_begin(span), first); key < end; key += kPageTokens) {
    add_tile(key, partial);
  }
}

void BlockAttention::add_tile(int64_t first_key, const SpanPartial& partial) {
  first_active_ = block_->num_positions;
  end_active_ = 0;
  for (int64_t i = 0; i < block_->num_positions; ++i) {
    const VisibleKeys keys = keys_of(i);
    if (keys.end <= first_key || keys.begin >= first_key + kPageTokens) continue;
    slots_[i] = {static_cast<int32_t>(std::max<int64_t>(0, keys.begin - first_key)),
                 static_cast<int32_t>(std::min(kPageTokens, keys.end - first_key))};
    first_active_ = std::min(first_active_, i);
    end_active_ = i + 1;
  }
  if (end_active_ == 0) return;
  const int64_t head_bytes = block_->kv_head * kv_head_elements(shape_) * element_bytes_;
  const int32_t* page = block_->sequence->page_table + first_key / kPageTokens;
  const std::byte* values = call_.pages->value_page(*page) + head_bytes;
  const bool has_next = first_key + kPageTokens < keys_of(block_->num_positions - 1).end;
  next_keys_ = has_next ? call_.pages->key_page(page[1]) + head_bytes : nullptr;
  add_products(call_.pages->key_page(*page) + head_bytes, values, partial);
  add_values(values, partial);
}

/// q.k of the active rows with the tile's keys, and their softmax: weights_ and scale_, m and l of the partial.
void BlockAttention::add_products(const std::byte* keys, const std::byte* values, const SpanPartial& partial) {
  const int64_t first = first_active_ * block_->num_heads, end = end_active_ * block_->num_heads;
  kernels_.panel({.c = products_,
                  .c_stride = kPageTokens,
                  .a = queries_ + first * padded_ * operand_bytes_,
                  .a_stride = padded_,
                  .b = keys,
                  .b_stride = kPageTokens,
                  .num_rows = end - first,
                  .num_columns = kPageTokens,
                  .num_steps = (shape_.head_dim + 1) / 2,
                  .next = values});
  int32_t first_slot[kMaxBlockRows], end_slot[kMaxBlockRows];
  for (int64_t r = first; r < end; ++r) {
    first_slot[r - first] = slots_[r / block_->num_heads].first;
    end_slot[r - first] = slots_[r / block_->num_heads].end;
  }
  kernels_.tile_softmax({.products = products_,
                         .weights = weights_,
                         .first_slot = first_slot,
                         .end_slot = end_slot,
                         .m = partial.m + first,
                         .l = partial.l + first,
                         .a = scale_,
                         .score_scale = score_scale_,
                         .num_rows = end - first});
}

/// o = a * o, then the products p.v of `num_pairs` pairs of keys, for active rows [first_row, first_row + num_rows).
void BlockAttention::value_panel(int64_t first_row, int64_t num_rows, int64_t first_pair, int64_t num_pairs,
                                 const void* values, const float* scale, const SpanPartial& partial) {
  kernels_.panel({.c = partial.o + (first_active_ * block_->num_heads + first_row) * padded_,
                  .c_stride = padded_,
                  .scale = scale,
                  .a = weights_ + (first_row * kPageTokens + 2 * first_pair) * operand_bytes_,
                  .a_stride = kPageTokens,
                  .b = values,
                  .b_stride = padded_,
                  .num_rows = num_rows,
                  .num_columns = padded_,
                  .num_steps = num_pairs,
                  .next = num_pairs == kPairs ? next_keys_ : nullptr});
}

void BlockAttention::add_values(const std::byte* values, const SpanPartial& partial) {
  const bool all_in_sight = std::all_of(slots_ + first_active_, slots_ + end_active_, [](Slots slots) {
    return slots.first == 0 && slots.end == kPageTokens;
  });
  if (!all_in_sight) return add_values_in_sight(values, partial);
  value_panel(0, (end_active_ - first_active_) * block_->num_heads, 0, kPairs, values, scale_, partial);
}

/// add_values where some key is out of some row's sight: the pairs that every row sees in full together, those before
/// and after them position by position, so that no row reads a value it does not see.
void BlockAttention::add_values_in_sight(const std::byte* values, const SpanPartial& partial) {
  const int64_t num_rows = (end_active_ - first_active_) * block_->num_heads;
  int32_t last_first = 0, first_end = kPageTokens;
  for (int64_t i = first_active_; i < end_active_; ++i) {
    last_first = std::max(last_first, slots_[i].first);
    first_end = std::min(first_end, slots_[i].end);
  }
  int64_t common = (last_first + 1) / 2, common_end = first_end / 2;
  if (common >= common_end) common = common_end = kPairs;
  value_panel(0, num_rows, 0, 0, values, scale_, partial);
  for (int64_t i = first_active_; i < end_active_; ++i) add_pairs_of_position(i, 0, common, values, partial);
  if (common < common_end) {
    const int64_t pair_bytes = 2 * padded_ * element_bytes_;
    value_panel(0, num_rows, common, common_end - common, values + common * pair_bytes, kOnes.value, partial);
  }
  for (int64_t i = first_active_; i < end_active_; ++i) add_pairs_of_position(i, common_end, kPairs, values, partial);
}

/// The products of pairs [first_pair, end_pair) for one position. Pairs out of sight are one step of zeros, which is
/// what any number of them is.
void BlockAttention::add_pairs_of_position(int64_t position, int64_t first_pair, int64_t end_pair,
                                           const std::byte* values, const SpanPartial& partial) {
  const Slots slots = slots_[position];
  const int64_t row = (position - first_active_) * block_->num_heads;
  const auto add = [&](int64_t pair, int64_t num_pairs, const void* from) {
    value_panel(row, block_->num_heads, pair, num_pairs, from, kOnes.value, partial);
  };
  const auto add_masked = [&](int64_t pair) { add(pair, 1, masked_pair(values, pair, slots)); };

  int64_t pair = std::max<int64_t>(first_pair, slots.first / 2);
  const int64_t end = std::min<int64_t>(end_pair, (slots.end + 1) / 2);
  if (first_pair < std::min(pair, end_pair)) add_masked(first_pair);
  if (pair < end && 2 * pair < slots.first) add_masked(pair++);
  const int64_t whole_end = std::min<int64_t>(end, slots.end / 2);
  if (pair < whole_end) add(pair, whole_end - pair, values + pair * 2 * padded_ * element_bytes_);
  pair = std::max(pair, whole_end);
  if (pair < end) add_masked(pair);
  if (std::max(first_pair, end) < end_pair) add_masked(end_pair - 1);
}

/// The values of a pair with zeros where the key is out of sight.
const void* BlockAttention::masked_pair(const std::byte* values, int64_t pair, Slots slots) {
  const bool sees_low = 2 * pair >= slots.first && 2 * pair < slots.end;
  const bool sees_high = 2 * pair + 1 >= slots.first && 2 * pair + 1 < slots.end;
  if (shape_.dtype == DType::kF32) {
    const float* from = reinterpret_cast<const float*>(values) + pair * 2 * padded_;
    for (int64_t d = 0; d < padded_; ++d) {
      masked_[d] = sees_low ? from[d] : 0.0f;
      masked_[padded_ + d] = sees_high ? from[padded_ + d] : 0.0f;
    }
  } else {
    const uint32_t* from = reinterpret_cast<const uint32_t*>(values) + pair * padded_;
    const uint32_t mask = (sees_low ? 0xffffu : 0u) | (sees_high ? 0xffff0000u : 0u);
    for (int64_t d = 0; d < padded_; ++d) masked_[d] = bits_as<float>(from[d] & mask);
  }
  return masked_;
}

bool BlockAttention::sees(int64_t position, int64_t span) const {
  const VisibleKeys keys = keys_of(position);
  return keys.begin < attention_span_begin(span + 1) && keys.end > attention_span_begin(span);
}

/// Merges a span into the total of each row that sees it; the first one becomes the total.
void BlockAttention::merge(int64_t span, const SpanPartial& partial, SpanPartial& total, bool* is_started) {
  for (int64_t r = 0; r < block_->num_query_rows(); ++r) {
    if (!sees(r / block_->num_heads, span)) continue;
    if (!is_started[r]) {
      is_started[r] = true;
      total.m[r] = partial.m[r];
      total.l[r] = partial.l[r];
      std::copy_n(partial.o + r * padded_, padded_, total.o + r * padded_);
      continue;
    }
    kernels_.merge(total.row(r, padded_), partial.row(r, padded_), padded_);
  }
}

/// The sink, if there is one, and the division.
void BlockAttention::finish(const SpanPartial& total) {
  for (int64_t r = 0; r < block_->num_query_rows(); ++r) {
    const int64_t head = block_->first_head + r % block_->num_heads;
    const int64_t t = block_->sequence->first_row + block_->first_row + r / block_->num_heads;
    if (call_.sinks != nullptr) {
      float m = attention_sink_log2(call_.sinks[head]), l = 1.0f;
      std::fill_n(masked_, padded_, 0.0f);
      kernels_.merge(total.row(r, padded_), {&m, &l, masked_}, padded_);
    }
    const int64_t column = t * call_.out.row_stride + head * shape_.head_dim;
    kernels_.finish(call_.out.data + column * dtype_bytes(call_.out.dtype), total.o + r * padded_, total.l[r],
                    shape_.head_dim);
  }
}

}  // namespace tensorfold::cpu
