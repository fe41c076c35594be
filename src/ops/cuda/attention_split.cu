// attention() on CUDA for few rows and long contexts: spans dealt to blocks, then merged. Pages:
// ops/cuda/attention_params.h; prompts and the steps both share: attention_wide.cu,
// device/attention_tile.cuh.
//
// Decoding reads each key and value once and does little with it, so what counts is bytes in flight and warps
// to hide latency. Query rows (the heads of a KV head by the rows of a sequence) are few; so the four warps
// of a block share a tile: for q k^T a warp takes 16 of the 64 keys, for p v a quarter of the columns. Scores
// meet in shared memory as fp32 fragments; from there on every warp has the whole tile's, and the steps are
// those of the wide kernel.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "ops/cuda/device/attention_tile.cuh"
#include "ops/cuda/device/launch.cuh"

namespace tensorfold::cuda {
namespace {

constexpr int kWarps = 4;  ///< That compute; one more brings keys and values.
constexpr int kThreads = 32 * (kWarps + 1);
constexpr int kMaxStages = 12;

/// Shared memory of a block of 16 * kTiles query rows: q, the scores of a tile, its rows' maxima by warp, the
/// ring. A tile's chain of waits and products is long, so other blocks must fill it: three an SM, or two
/// where the registers of a second tile leave no more.
template <int kD, int kTiles>
struct Shape {
  static constexpr int kBlocks = kTiles == 1 ? 3 : 2;
  static constexpr int kQueryBytes = 16 * kTiles * kD * 2;
  static constexpr int kScoreBytes = kTiles * kWarps * 32 * 32;
  static constexpr int kMaximaBytes = kTiles * kWarps * 16 * 4;
  static constexpr int kFitting =
      ((222 << 10) / kBlocks - 1024 - kQueryBytes - kScoreBytes - kMaximaBytes) / kKvStageBytes;
  static constexpr int kStages = kFitting < kMaxStages ? kFitting : kMaxStages;
  static constexpr int kSharedBytes =
      kQueryBytes + kScoreBytes + kMaximaBytes + kStages * kKvStageBytes + 1024;
  /// Columns of a warp in blocks of 8.
  static constexpr int kColumnBlocks = kD / 8 / kWarps;
};

__device__ __forceinline__ void sync_computing_warps() { asm volatile("bar.sync 1, 128;" ::: "memory"); }

/// s += q k^T of 16 query rows and this warp's 16 keys over 64 columns.
__device__ __forceinline__ void multiply_keys(float (&s)[2][4], uint32_t q, uint32_t keys, int warp,
                                              int lane) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    uint32_t a[4], b[4];
    load_matrices(a, piece_address(q, lane % 16, 2 * step + lane / 16));
    load_matrices(b, piece_address(keys, warp * 16 + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2));
    mma_m16n8k16(s[0], a, b[0], b[1]);
    mma_m16n8k16(s[1], a, b[2], b[3]);
  }
}

/// (m, l) of a lane's two rows, and o of them in the warp's columns.
template <int kColumnBlocks>
struct WarpPartial {
  float m[2] = {kMinusInfinity, kMinusInfinity}, l[2] = {0.0f, 0.0f};
  float o[kColumnBlocks][4] = {};
};

/// o += p v in key order over the warp's columns, whose values are the 8-column pieces first_piece and on of
/// `values`.
template <int kColumnBlocks>
__device__ __forceinline__ void multiply_values(const Weights& weights, WarpPartial<kColumnBlocks>& span,
                                                bool is_edge, int first_piece, uint32_t values,
                                                int first_block, int num_blocks, int lane) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int j = 0; j < kColumnBlocks; j += 2) {
      if (j < first_block || j >= first_block + num_blocks) continue;
      uint32_t b[4];
      load_matrices_transposed(
          b, piece_address(values, step * 16 + lane % 16, first_piece + j - first_block + lane / 16));
      if (is_edge) {
#pragma unroll
        for (int i = 0; i < 4; ++i) b[i] &= weights.mask[step][i % 2];
      }
      mma_m16n8k16(span.o[j], weights.a[step], b[0], b[1]);
      mma_m16n8k16(span.o[j + 1], weights.a[step], b[2], b[3]);
    }
  }
}

/// Which tiles of which span a block has. num_loads 0: nothing to do.
struct SpanTiles {
  int slot, first_tile, end_tile;

  __device__ __forceinline__ SpanTiles(const AttentionLaunch& p, const AttentionSequence& s, int first,
                                       int last, int group) {
    const int first_span = p.spans.span_of(visible_begin(p, s.first_pos));
    slot = p.spans.span_of(s.first_pos + s.num_rows - 1) - first_span - static_cast<int>(blockIdx.x);
    int begin = visible_begin(p, s.first_pos + first / group),
        end = visible_end(p, s, s.first_pos + last / group);
    begin = max(begin, p.spans.begin(first_span + slot));
    end = min(end, p.spans.begin(first_span + slot + 1));
    first_tile = begin / kKvTile;
    end_tile = slot >= 0 && begin < end ? (end + kKvTile - 1) / kKvTile : first_tile;
  }
};

template <int kColumnBlocks>
__device__ __forceinline__ void store_partial(const AttentionLaunch& p,
                                              const WarpPartial<kColumnBlocks>& span, const QueryRows& rows,
                                              int slot, int warp, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (rows.row[half] < 0) continue;
    const int64_t at = (int64_t{rows.row[half]} * p.num_heads + rows.head[half]) * p.max_spans + slot;
    if (warp == 0 && lane % 4 == 0) p.partial_ml[at] = {span.m[half], span.l[half]};
#pragma unroll
    for (int j = 0; j < kColumnBlocks; ++j) {
      const int column = (warp * kColumnBlocks + j) * 8 + 2 * (lane % 4);
      if (column < p.head_dim) {
        *reinterpret_cast<float2*>(p.partial_o + at * p.head_dim + column) = {span.o[j][2 * half],
                                                                              span.o[j][2 * half + 1]};
      }
    }
  }
}

/// Grid: x spans, the last first: they are the long ones; y KV heads; z sequences times blocks of 16 * kTiles
/// query rows. A block computes (m, l, o) of its query rows over its span. Traffic: the span's keys and
/// values once, (2 + D) floats a query row.
template <int kD, int kTiles>
__global__ void __launch_bounds__(kThreads, Shape<kD, kTiles>::kBlocks)
    attention_split_kernel(const __grid_constant__ AttentionLaunch p, int row_blocks) {
  using Sizes = Shape<kD, kTiles>;
  constexpr int kColumnBlocks = Sizes::kColumnBlocks;
  extern __shared__ std::byte shared_bytes[];
  __shared__ uint64_t full[Sizes::kStages], empty[Sizes::kStages];
  auto* shared =
      reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(shared_bytes) + 1023) & ~uintptr_t{1023});
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, kv_head = blockIdx.y;
  launch_dependents();
  // Sequences and page tables were there before the pass, so that all this can happen while earlier kernels
  // run.
  const AttentionSequence s = p.sequences[blockIdx.z / row_blocks];
  const int group = p.num_heads / p.num_kv_heads, count = s.num_rows * group;
  const int first = blockIdx.z % row_blocks * 16 * kTiles;
  const int last = min(first + 16 * kTiles, count) - 1;
  const SpanTiles tiles(p, s, first, last, group);
  if (first >= count || tiles.slot < 0) return wait_for_previous_kernel();

  if (threadIdx.x == 0) {
    for (int i = 0; i < Sizes::kStages; ++i)
      mbarrier_init(&full[i], 1), mbarrier_init(&empty[i], 32 * kWarps);
    fence_mbarrier_init();
  }
  const uint32_t q = shared_address(shared), ring = q + Sizes::kQueryBytes;
  auto* scores = reinterpret_cast<float4*>(shared + Sizes::kQueryBytes + Sizes::kStages * kKvStageBytes);
  auto* maxima = reinterpret_cast<float*>(scores) + Sizes::kScoreBytes / 4;
  __syncthreads();
  if (warp == kWarps) {
    if (lane == 0 && tiles.first_tile < tiles.end_tile)
      return bring_tiles<kD, Sizes::kStages>(p, s, kv_head, tiles.first_tile, tiles.end_tile, ring, full,
                                             empty);
    return wait_for_previous_kernel();
  }
  // One tile's are kept, and ready before the products; beside a second tile there are no registers for them.
  const QueryRows first_rows(p, s, kv_head, first, lane);
  const auto rows_of = [&](int t) {
    return kTiles == 1 ? first_rows : QueryRows(p, s, kv_head, first + 16 * t, lane);
  };
  wait_for_previous_kernel();
  stage_queries<kD, 16 * kTiles, 32 * kWarps>(p, s, kv_head, first, shared);
  sync_computing_warps();

  WarpPartial<kColumnBlocks> span[kTiles];
  int stage = 0;
  uint32_t phase = 0;
  const auto release = [&] {
    mbarrier_arrive(&empty[stage]);  // Every lane, for what it read itself.
    if (++stage == Sizes::kStages) stage = 0, phase ^= 1;
  };
  const int min_end = visible_end(p, s, s.first_pos + first / group),
            max_begin = visible_begin(p, s.first_pos + last / group);
  for (int tile = tiles.first_tile; tile < tiles.end_tile; ++tile) {
    const int first_key = tile * kKvTile;
    const bool is_edge = first_key < max_begin || first_key + kKvTile > min_end;
    float own[kTiles][2][4] = {};
#pragma unroll 1
    for (int block = 0; block < kD / 64; ++block) {
      mbarrier_wait(&full[stage], phase);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        multiply_keys(own[t], q + block * 16 * kTiles * 128 + t * 16 * 128, ring + stage * kKvStageBytes,
                      warp, lane);
      }
      release();
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      scale(p, own[t]);
      if (is_edge) mask(own[t], rows_of(t), first_key + warp * 16, lane);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float m = row_max(own[t], half);
        if (lane % 4 == 0) maxima[(t * kWarps + warp) * 16 + half * 8 + lane / 4] = m;
      }
    }
    sync_computing_warps();
    float a[kTiles][2];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float m = span[t].m[half];
#pragma unroll
        for (int w = 0; w < kWarps; ++w) m = fmaxf(m, maxima[(t * kWarps + w) * 16 + half * 8 + lane / 4]);
        a[t][half] = to_probabilities(own[t], half, span[t].m[half], m);
        span[t].m[half] = m;
      }
      float4* to = scores + (t * kWarps + warp) * 64 + lane;
      to[0] = {own[t][0][0], own[t][0][1], own[t][0][2], own[t][0][3]};
      to[32] = {own[t][1][0], own[t][1][1], own[t][1][2], own[t][1][3]};
    }
    sync_computing_warps();
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < kColumnBlocks; ++j) {
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i)
            span[t].o[j][i] = multiply_keeping_denormals(span[t].o[j][i], a[t][half]);
        }
      }
    }
#pragma unroll
    for (int block = 0; block < kD / 64; ++block) {
      mbarrier_wait(&full[stage], phase);
      // Of the warp's columns those that lie in this block of 64.
      const int warp_first = warp * kColumnBlocks, own_first = max(warp_first, block * 8);
      const int num_own = min(warp_first + kColumnBlocks, block * 8 + 8) - own_first;
      if (num_own > 0) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          float all[8][4];
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            const float4 v = scores[t * kWarps * 64 + i * 32 + lane];
            all[i][0] = v.x, all[i][1] = v.y, all[i][2] = v.z, all[i][3] = v.w;
          }
          if (own_first == warp_first) {
#pragma unroll
            for (int half = 0; half < 2; ++half)
              span[t].l[half] = __fmaf_rn(span[t].l[half], a[t][half], row_sum(all, half));
          }
          Weights weights(all);
          if (is_edge) weights.mask_values(rows_of(t), first_key, lane);
          multiply_values(weights, span[t], is_edge, own_first - block * 8, ring + stage * kKvStageBytes,
                          own_first - warp_first, num_own, lane);
        }
      }
      release();
    }
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) store_partial(p, span[t], rows_of(t), tiles.slot, warp, lane);
}

/// Grid: rows of the pass by heads; block: one thread per column. Merges the spans that the row sees,
/// ascending. The factors of kMergeSpans spans are computed at once, so that the chain of dependent steps is
/// two per span. Traffic: (2 + D) floats a span.
constexpr int kMergeSpans = 128;
/// Up to so many spans each thread computes the factors for itself: no step waits for another's.
constexpr int kFewSpans = 8;
__global__ void __launch_bounds__(256) attention_merge_kernel(const __grid_constant__ AttentionLaunch p) {
  __shared__ float2 ml[kMergeSpans];
  __shared__ float running_max[kMergeSpans];
  __shared__ float2 factors[kMergeSpans];
  launch_dependents();
  const int row = blockIdx.x, head = blockIdx.y, column = threadIdx.x;
  int sequence = 0;
  while (sequence + 1 < p.num_sequences && row >= p.sequences[sequence + 1].first_row) ++sequence;
  const AttentionSequence s = p.sequences[sequence];
  const int pos = s.first_pos + row - s.first_row,
            first_span = p.spans.span_of(visible_begin(p, s.first_pos));
  int begin = p.spans.span_of(visible_begin(p, pos)) - first_span;
  const int end = p.spans.span_of(visible_end(p, s, pos) - 1) - first_span + 1;
  const int64_t base = (int64_t{row} * p.num_heads + head) * p.max_spans;

  wait_for_previous_kernel();
  float m = kMinusInfinity, l = 0.0f, o = 0.0f;
  if (end - begin <= kFewSpans) {
    float2 few_ml[kFewSpans];
    float few_o[kFewSpans];
#pragma unroll
    for (int i = 0; i < kFewSpans; ++i) {
      if (begin + i >= end) break;
      few_ml[i] = p.partial_ml[base + begin + i];
      few_o[i] = column < p.head_dim ? p.partial_o[(base + begin + i) * p.head_dim + column] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kFewSpans; ++i) {
      if (begin + i >= end) break;
      const MergeFactors factors(i == 0 ? few_ml[i].x : m, few_ml[i].x);
      o = i == 0 ? few_o[i] : factors.merge(o, few_o[i]);
      l = i == 0 ? few_ml[i].y : factors.merge(l, few_ml[i].y);
      m = factors.m;
    }
    begin = end;
  }
  for (int first = begin; first < end; first += kMergeSpans) {
    const int n = min(kMergeSpans, end - first);
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) ml[i] = p.partial_ml[base + first + i];
    __syncthreads();
    if (threadIdx.x == 0) {
      float running = m;
      for (int i = 0; i < n; ++i) running_max[i] = running, running = fmaxf(running, ml[i].x);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
      const MergeFactors f(i + first == begin ? ml[i].x : running_max[i], ml[i].x);
      factors[i] = {f.a, f.b};
    }
    __syncthreads();
    const float* from = p.partial_o + (base + first) * p.head_dim + column;
#pragma unroll 8
    for (int i = 0; i < n; ++i) {
      const float oi = column < p.head_dim ? from[int64_t{i} * p.head_dim] : 0.0f;
      const bool is_first = first + i == begin;
      o = is_first ? oi : __fmaf_rn(oi, factors[i].y, __fmul_rn(o, factors[i].x));
      l = is_first ? ml[i].y : __fmaf_rn(ml[i].y, factors[i].y, __fmul_rn(l, factors[i].x));
      m = fmaxf(m, ml[i].x);
    }
  }
  const MergeFactors sink(m, p.sinks != nullptr ? sink_log2(p, head) : m);
  if (column < p.head_dim) {
    reinterpret_cast<__nv_bfloat16*>(p.out)[row * p.out_stride + head * p.head_dim + column] =
        __float2bfloat16_rn(finish(sink, p.sinks != nullptr, o, l));
  }
}

template <int kD, int kTiles>
void launch(CUstream_st* stream, const AttentionLaunch& p) {
  auto* kernel = attention_split_kernel<kD, kTiles>;
  constexpr int kSharedBytes = Shape<kD, kTiles>::kSharedBytes;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  const int row_blocks = (p.max_rows * (p.num_heads / p.num_kv_heads) + 16 * kTiles - 1) / (16 * kTiles);
  launch_kernel(kernel, dim3(p.max_spans, p.num_kv_heads, p.num_sequences * row_blocks), kThreads,
                kSharedBytes, stream, p, row_blocks);
}

template <int kD>
void launch_for_rows(CUstream_st* stream, const AttentionLaunch& p) {
  const int query_rows = p.max_rows * (p.num_heads / p.num_kv_heads);
  // Four tiles spill registers; blocks of two share their keys through L2.
  query_rows <= 16 ? launch<kD, 1>(stream, p) : launch<kD, 2>(stream, p);
}

}  // namespace

void launch_attention_split(CUstream_st* stream, const AttentionLaunch& p) {
  switch ((p.head_dim + 63) / 64) {
    case 1:
      launch_for_rows<64>(stream, p);
      break;
    case 2:
      launch_for_rows<128>(stream, p);
      break;
    case 3:
      launch_for_rows<192>(stream, p);
      break;
    case 4:
      launch_for_rows<256>(stream, p);
      break;
  }
  launch_kernel(attention_merge_kernel, dim3(p.num_rows, p.num_heads), (p.head_dim + 31) / 32 * 32, 0, stream,
                p);
}

}  // namespace tensorfold::cuda
