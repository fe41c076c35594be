// The order of attention's sums that every backend and path shares (arithmetic.md, "Attention"): where spans
// begin.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/ops.h"

namespace tensorfold {

/// Spans are kShortSpan keys below position kLongSpanStart and kLongSpan keys from there on.
inline constexpr int64_t kShortSpan = 128, kLongSpan = 512, kLongSpanStart = 4096;

/// Index of the span that holds position `pos`.
constexpr int64_t attention_span_of(int64_t pos) {
  return pos < kLongSpanStart ? pos / kShortSpan
                              : kLongSpanStart / kShortSpan + (pos - kLongSpanStart) / kLongSpan;
}

/// First position of a span; the span ends where the next begins.
constexpr int64_t attention_span_begin(int64_t span) {
  constexpr int64_t kNumShort = kLongSpanStart / kShortSpan;
  return span < kNumShort ? span * kShortSpan : kLongSpanStart + (span - kNumShort) * kLongSpan;
}

/// The keys [begin, end) that the row at `pos` sees; least_end: of a row that sees later rows, the end of
/// them.
struct VisibleKeys {
  int64_t begin, end;
};
constexpr VisibleKeys visible_keys(int64_t pos, int64_t window, int64_t least_end = 0) {
  return {window > 0 ? std::max<int64_t>(0, pos + 1 - window) : 0, std::max(pos + 1, least_end)};
}

/// The same for row `i` of a sequence of the call.
inline VisibleKeys visible_keys(const AttentionCall& call, const SequenceRows& sequence, int64_t i) {
  const int64_t rows_end = sequence.first_pos + sequence.num_rows;
  return visible_keys(sequence.first_pos + i, call.window, call.sees_later_rows ? rows_end : 0);
}

/// What a score q.k is multiplied by: scale * log2(e), rounded once.
inline float attention_score_scale(float scale) {
  return static_cast<float>(static_cast<double>(scale) * 1.4426950408889634);
}

/// A sink as a logarithm to base 2.
inline float attention_sink_log2(float sink) {
  return static_cast<float>(static_cast<double>(sink) * 1.4426950408889634);
}

}  // namespace tensorfold
