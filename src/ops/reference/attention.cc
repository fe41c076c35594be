// attention by its formulas in ops.h: one row and head at a time, spans ascending, tiles ascending inside a span.
#include <cmath>
#include <limits>
#include <vector>

#include "base/fp_env.h"
#include "ops/attention_order.h"
#include "ops/kv_layout.h"
#include "ops/reference/reference_math.h"
#include "ops/reference/reference_ops.h"

namespace tensorfold {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// Online softmax over some keys: their largest score m, l = sum of 2^(s - m), o = sum of 2^(s - m) v.
struct Partial {
  float m = kMinusInfinity;
  float l = 0.0f;
  std::vector<float> o;
};

/// One query row of one head and the cache it reads.
struct HeadQuery {
  const KvPages* pages;
  const int32_t* page_table;
  int64_t kv_head;
  std::vector<float> q;  // [D]
  float score_scale;
  VisibleKeys keys;
  int short_sum_partials;
};

float cached(const std::byte* page, const KvShape& shape, int64_t kv_head, int64_t index) {
  const int64_t i = kv_head * kv_head_elements(shape) + index;
  return shape.dtype == DType::kBF16 ? to_float(reinterpret_cast<const bf16*>(page)[i])
                                     : reinterpret_cast<const float*>(page)[i];
}

/// q . k of the key at `slot` of `page`: two elements a step, the higher first; an odd head_dim padded with a zero.
float dot_key(const HeadQuery& query, const std::byte* page, int64_t slot) {
  const KvShape& shape = query.pages->shape;
  const auto q = [&](int64_t d) { return d < shape.head_dim ? query.q[d] : 0.0f; };
  const auto k = [&](int64_t d) {
    return d < shape.head_dim ? cached(page, shape, query.kv_head, kv_key_index(shape.dtype, d, slot)) : 0.0f;
  };
  float sum = 0.0f;
  for (int64_t d = 0; d < shape.head_dim; d += 2) {
    sum = contract::fused(q(d + 1), k(d + 1), sum);
    sum = contract::fused(q(d), k(d), sum);
  }
  return sum;
}

/// Adds the tile of keys [first, first + 64) to `span`. Keys out of sight have weight 0 and value 0.
void add_tile(Partial& span, const HeadQuery& query, int64_t first) {
  const KvShape& shape = query.pages->shape;
  const int64_t page = query.page_table[first / kPageTokens];
  const auto sees = [&](int64_t slot) {
    return first + slot >= query.keys.begin && first + slot < query.keys.end;
  };
  float s[kPageTokens], p[kPageTokens];
  float m = span.m;
  for (int64_t slot = 0; slot < kPageTokens; ++slot) {
    s[slot] = sees(slot) ? query.score_scale * dot_key(query, query.pages->key_page(page), slot) : kMinusInfinity;
    if (s[slot] > m) m = s[slot];
  }
  reference::ShortSum sum(query.short_sum_partials);
  for (int64_t slot = 0; slot < kPageTokens; ++slot) {
    p[slot] = sees(slot) ? exp2_f32(s[slot] - m) : 0.0f;
    sum.add(p[slot]);
    p[slot] = reference::rounded_to(shape.dtype, p[slot]);
  }
  const float a = exp2_f32(span.m - m);
  span.m = m;
  span.l = contract::fused(span.l, a, sum.total());

  const int64_t padded = kv_padded_head_dim(shape.head_dim);
  for (int64_t d = 0; d < shape.head_dim; ++d) {
    const auto v = [&](int64_t slot) {
      return sees(slot) ? cached(query.pages->value_page(page), shape, query.kv_head,
                                 kv_value_index(shape.dtype, padded, slot, d))
                        : 0.0f;
    };
    float o = a * span.o[d];
    for (int64_t slot = 0; slot < kPageTokens; slot += 2) {
      o = contract::fused(p[slot + 1], v(slot + 1), o);
      o = contract::fused(p[slot], v(slot), o);
    }
    span.o[d] = o;
  }
}

/// total and span become one partial, in total.
void merge(Partial& total, const Partial& span) {
  const float m = span.m > total.m ? span.m : total.m;
  const float a = exp2_f32(total.m - m), b = exp2_f32(span.m - m);
  total.m = m;
  total.l = contract::fused(span.l, b, total.l * a);
  for (size_t d = 0; d < total.o.size(); ++d) total.o[d] = contract::fused(span.o[d], b, total.o[d] * a);
}

Partial attend(const HeadQuery& query) {
  const size_t head_dim = query.q.size();
  Partial total;
  const int64_t first_span = attention_span_of(query.keys.begin);
  for (int64_t i = first_span; i <= attention_span_of(query.keys.end - 1); ++i) {
    Partial span;
    span.o.assign(head_dim, 0.0f);
    const int64_t end = std::min(attention_span_begin(i + 1), query.keys.end);
    for (int64_t tile = attention_span_begin(i); tile < end; tile += kPageTokens) {
      if (tile + kPageTokens > query.keys.begin) add_tile(span, query, tile);
    }
    if (i == first_span) {
      total = span;
    } else {
      merge(total, span);
    }
  }
  return total;
}

}  // namespace

void ReferenceOps::attention(const AttentionCall& call) {
  ScopedFlushDenormals flush;
  const KvShape& shape = call.pages->shape;
  const int64_t head_dim = shape.head_dim;
  for (const SequenceRows& sequence : call.rows.sequences) {
    for (int64_t i = 0; i < sequence.num_rows; ++i) {
      const int64_t t = sequence.first_row + i;
      for (int64_t head = 0; head < call.num_heads; ++head) {
        HeadQuery query{call.pages, sequence.page_table, head * shape.num_kv_heads / call.num_heads, {},
                        attention_score_scale(call.scale), visible_keys(call, sequence, i),
                        short_sum_partials_};
        for (int64_t d = 0; d < head_dim; ++d) query.q.push_back(reference::load(call.q, t, head * head_dim + d));
        Partial total = attend(query);
        if (call.sinks != nullptr) {
          merge(total, {attention_sink_log2(call.sinks[head]), 1.0f, std::vector<float>(head_dim, 0.0f)});
        }
        for (int64_t d = 0; d < head_dim; ++d) {
          reference::store(call.out, t, head * head_dim + d, total.o[d] / total.l);
        }
      }
    }
  }
}

}  // namespace tensorfold
