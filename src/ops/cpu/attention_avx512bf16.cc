// attention's panel for CPUs with VDPBF16PS: one instruction is one step for 16 columns, to the bit (arithmetic.md,
// "Linear"). Six rows by four registers of columns use 24 of the 32 registers for sums, so that 24 multiplications wait
// for five loads and six broadcasts.
//
// Compiled with flags of its own (src/ops/CMakeLists.txt) and called after a check of the CPU. Includes nothing whose
// inline functions could be shared with other files.
#include <immintrin.h>

#include "ops/cpu/attention_kernels.h"

namespace tensorfold::cpu {
namespace {

constexpr int kMaxRows = 6;
constexpr int64_t kLanes = 16;

/// The sums of kRows rows and kVectors * 16 columns from column x on.
template <int kRows, int kVectors>
__attribute__((always_inline)) inline void block(const PanelArgs& args, int64_t row, int64_t x) {
  float* c = args.c + row * args.c_stride + x;
  __m512 sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = args.scale == nullptr ? _mm512_setzero_ps()
                                        : _mm512_mul_ps(_mm512_loadu_ps(c + r * args.c_stride + v * kLanes),
                                                        _mm512_set1_ps(args.scale[row + r]));
    }
  }
  const uint32_t* b = static_cast<const uint32_t*>(args.b) + x;
  const uint16_t* a = static_cast<const uint16_t*>(args.a) + row * args.a_stride;
  const int64_t distance = prefetch_distance(args.num_steps), rest = args.num_steps - distance;
  const char* next = static_cast<const char*>(args.next) + x * args.num_steps * 4;
  for (int64_t j = 0; j < args.num_steps; ++j, b += args.b_stride, a += 2) {
    __m512bh columns[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      columns[v] = (__m512bh)_mm512_loadu_si512(b + v * kLanes);
      asm("" : "+v"(columns[v]));  // GCC 12 would load it again for every row
    }
    if (row == 0 && args.next != nullptr) {
      const char* from = j < rest ? reinterpret_cast<const char*>(b + distance * args.b_stride)
                                  : next + (j - rest) * kVectors * 64;
      for (int v = 0; v < kVectors; ++v) _mm_prefetch(from + v * 64, _MM_HINT_T0);
    }
    for (int r = 0; r < kRows; ++r) {
      int pair;
      __builtin_memcpy(&pair, a + r * args.a_stride, sizeof pair);
      const __m512bh factor = (__m512bh)_mm512_set1_epi32(pair);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], columns[v], factor);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(c + r * args.c_stride + v * kLanes, sum[r][v]);
  }
}

template <int kRows>
void rows(const PanelArgs& args, int64_t row) {
  int64_t x = 0;
  for (; x + 4 * kLanes <= args.num_columns; x += 4 * kLanes) block<kRows, 4>(args, row, x);
  for (; x + 2 * kLanes <= args.num_columns; x += 2 * kLanes) block<kRows, 2>(args, row, x);
  for (; x < args.num_columns; x += kLanes) block<kRows, 1>(args, row, x);
}

}  // namespace

void attention_panel_avx512bf16(const PanelArgs& args) {
  int64_t row = 0;
  for (; row + kMaxRows <= args.num_rows; row += kMaxRows) rows<kMaxRows>(args, row);
  switch (args.num_rows - row) {
    case 5: return rows<5>(args, row);
    case 4: return rows<4>(args, row);
    case 3: return rows<3>(args, row);
    case 2: return rows<2>(args, row);
    case 1: return rows<1>(args, row);
  }
}

}  // namespace tensorfold::cpu
