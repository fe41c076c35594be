// Where the spans of attention's keys begin on CUDA (arithmetic.md, "Attention"): a fixed function of the
// position, part of the arithmetic id. Short spans keep a device busy on short contexts, long ones keep the
// merge of long contexts cheap; the lengths are the best of those measured
// (bench/results/h200-attention-spans.csv). Shared by host and device.
#pragma once

namespace tensorfold::cuda {

/// From position start[i] on, spans are length[i] keys; all are multiples of a tile, and each start is a
/// border of the spans before it.
struct SpanRule {
  static constexpr int kLevels = 4;
  int start[kLevels];
  int length[kLevels];

#ifdef __CUDACC__
  __host__ __device__
#endif
      constexpr int
      span_of(int pos) const {
    int span = 0;
    for (int i = 0; i < kLevels; ++i) {
      const bool is_last = i + 1 == kLevels || pos < start[i + 1];
      if (is_last) return span + (pos - start[i]) / length[i];
      span += (start[i + 1] - start[i]) / length[i];
    }
    return span;
  }

  /// First position of a span; the span ends where the next begins.
#ifdef __CUDACC__
  __host__ __device__
#endif
      constexpr int
      begin(int span) const {
    for (int i = 0; i + 1 < kLevels; ++i) {
      const int count = (start[i + 1] - start[i]) / length[i];
      if (span < count) return start[i] + span * length[i];
      span -= count;
    }
    return start[kLevels - 1] + span * length[kLevels - 1];
  }
};

/// The rule of this arithmetic id.
constexpr SpanRule kSpanRule = {{0, 1024, 8192, 65536}, {128, 256, 512, 1024}};

static_assert(kSpanRule.span_of(1023) == 7 && kSpanRule.span_of(1024) == 8 && kSpanRule.begin(8) == 1024);
static_assert(kSpanRule.span_of(8191) == 35 && kSpanRule.begin(36) == 8192 && kSpanRule.begin(37) == 8704);
static_assert(kSpanRule.span_of(65536) == 148 && kSpanRule.begin(149) == 66560 &&
              kSpanRule.span_of(262143) == 339);

}  // namespace tensorfold::cuda
