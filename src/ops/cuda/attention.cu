// attention() on CUDA for prompts. Decoding: attention_split.cu. Pages: ops/cuda/attention_params.h.
//
// The query heads of one KV head and the rows of one sequence form one long list of query rows, 16 of which are a warp's
// tile, so that heads share a read of the cache. A warp has all of its rows' state, walks the tiles of keys in turn and
// merges span by span: the same steps in the same order as the split kernel, and therefore the same bits.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "ops/cuda/device/attention_tile.cuh"

namespace tensorfold::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kBlockRows = 16 * kWarps;
constexpr int kMaxStages = 12;

/// Shared memory of a block: q, then the ring, then what is parked.
template <int kD>
struct Shape {
  static constexpr int kTileStages = 2 * kD / 64;  ///< Of a tile: its keys, then its values.
  static constexpr int kQueryBytes = kBlockRows * kD * 2;
  /// The merged o of kD > 128 does not fit in registers beside the running one.
  static constexpr bool kParks = kD > 128;
  static constexpr int kParkedBytes = kParks ? kBlockRows * kD * 4 : 0;
  /// Two blocks an SM where the parked o leaves room: 113 KB each.
  static constexpr int kBudget = (kParks ? 226 : 112) << 10;
  static constexpr int kFitting = (kBudget - kQueryBytes - kParkedBytes) / kKvStageBytes;
  static constexpr int kStages = kFitting < kMaxStages ? kFitting : kMaxStages;
  static constexpr int kSharedBytes = kQueryBytes + kStages * kKvStageBytes + kParkedBytes + 1024;
};

/// (m, l, o) of 16 rows over the keys of one span so far.
template <int kD>
struct Partial {
  float m[2], l[2];
  float o[kD / 8][4];

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int i = 0; i < 2; ++i) m[i] = kMinusInfinity, l[i] = 0.0f;
#pragma unroll
    for (int j = 0; j < kD / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o[j][i] = 0.0f;
    }
  }
};

/// s += q k^T of a 16-row tile and 64 keys over one block of 64 columns.
__device__ __forceinline__ void multiply_keys(float (&s)[8][4], uint32_t q, uint32_t keys, int warp, int lane) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    uint32_t a[4];
    load_matrices(a, piece_address(q, warp * 16 + lane % 16, 2 * step + lane / 16));
#pragma unroll
    for (int block = 0; block < 8; block += 2) {
      uint32_t b[4];
      load_matrices(b, piece_address(keys, (block + lane / 16) * 8 + lane % 8, 2 * step + lane / 8 % 2));
      mma_m16n8k16(s[block], a, b[0], b[1]);
      mma_m16n8k16(s[block + 1], a, b[2], b[3]);
    }
  }
}

/// From products to probabilities: s becomes p, (m, l) move on, o is rescaled.
template <int kD>
__device__ __forceinline__ void update_softmax(float (&s)[8][4], Partial<kD>& span) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float m = fmaxf(span.m[half], row_max(s, half));
    const float a = to_probabilities(s, half, span.m[half], m);
    span.m[half] = m;
    span.l[half] = __fmaf_rn(span.l[half], a, row_sum(s, half));
#pragma unroll
    for (int j = 0; j < kD / 8; ++j) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) span.o[j][i] = multiply_keeping_denormals(span.o[j][i], a);
    }
  }
}

/// o += p v in key order, over one block of 64 columns: o[first_block .. first_block + 8).
template <int kD, bool kIsEdge>
__device__ __forceinline__ void multiply_values(const Weights& weights, Partial<kD>& span, int first_block,
                                                uint32_t values, int lane) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      uint32_t b[4];
      load_matrices_transposed(b, piece_address(values, step * 16 + lane % 16, j + lane / 16));
      if (kIsEdge) {
#pragma unroll
        for (int i = 0; i < 4; ++i) b[i] &= weights.mask[step][i % 2];
      }
      mma_m16n8k16(span.o[first_block + j], weights.a[step], b[0], b[1]);
      mma_m16n8k16(span.o[first_block + j + 1], weights.a[step], b[2], b[3]);
    }
  }
}

/// The merged spans of a serial block: in registers, or parked in shared memory, each thread its own words.
template <int kD, bool kParks>
struct Total {
  float m[2], l[2];
  float o[kParks ? 1 : kD / 8][4];
  float* parked;

  __device__ __forceinline__ explicit Total(float* parked_words) : parked(parked_words) {
#pragma unroll
    for (int i = 0; i < 2; ++i) m[i] = kMinusInfinity, l[i] = 0.0f;
  }
  __device__ __forceinline__ float& at(int j, int i) {
    if constexpr (kParks) return parked[(j * 4 + i) * 32 * kWarps];
    else return o[j][i];
  }
  /// A row that saw nothing in the span keeps its total; a row's first span is its total.
  __device__ __forceinline__ void merge(const Partial<kD>& span) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (span.m[half] == kMinusInfinity) continue;
      const bool is_first = m[half] == kMinusInfinity;
      const MergeFactors factors(is_first ? span.m[half] : m[half], span.m[half]);
      l[half] = is_first ? span.l[half] : factors.merge(l[half], span.l[half]);
#pragma unroll
      for (int j = 0; j < kD / 8; ++j) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          at(j, i) = is_first ? span.o[j][i] : factors.merge(at(j, i), span.o[j][i]);
        }
      }
      m[half] = factors.m;
    }
  }
};

template <int kD, bool kParks>
__device__ __forceinline__ void store_total(const AttentionLaunch& p, Total<kD, kParks>& total, const QueryRows& rows,
                                            int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (rows.row[half] < 0) continue;
    const MergeFactors sink(total.m[half], p.sinks != nullptr ? sink_log2(p, rows.head[half]) : total.m[half]);
    const int64_t at = rows.row[half] * p.out_stride + rows.head[half] * p.head_dim;
#pragma unroll
    for (int j = 0; j < kD / 8; ++j) {
      const int column = j * 8 + 2 * (lane % 4);
      if (column < p.head_dim) {
        const float x = finish(sink, p.sinks != nullptr, total.at(j, 2 * half), total.l[half]);
        const float y = finish(sink, p.sinks != nullptr, total.at(j, 2 * half + 1), total.l[half]);
        *reinterpret_cast<uint32_t*>(p.out + (at + column) * 2) = to_bf16x2(x, y);
      }
    }
  }
}

/// Grid: x sequences times blocks of 64 query rows, the last first: they see most keys; y KV heads. A block computes its
/// query rows, a warp 16 of them. Traffic: the keys and values that the block's rows see, once.
template <int kD>
__global__ void __launch_bounds__(32 * kWarps, Shape<kD>::kParks ? 1 : 2)
    attention_kernel(const __grid_constant__ AttentionLaunch p, int row_blocks) {
  using Sizes = Shape<kD>;
  extern __shared__ std::byte shared_bytes[];
  __shared__ uint64_t full[Sizes::kStages], empty[Sizes::kStages];
  auto* shared = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(shared_bytes) + 1023) & ~uintptr_t{1023});
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, kv_head = blockIdx.y;
  const AttentionSequence s = p.sequences[blockIdx.x / row_blocks];
  const int block = row_blocks - 1 - blockIdx.x % row_blocks;
  const int group = p.num_heads / p.num_kv_heads, first = block * kBlockRows, count = s.num_rows * group;
  if (first >= count) return;

  const int last_pos = s.first_pos + (min(first + kBlockRows, count) - 1) / group;
  const int begin = visible_begin(p, s.first_pos + first / group), end = visible_end(p, s, last_pos);
  const int first_tile = begin / kKvTile, end_tile = (end + kKvTile - 1) / kKvTile;
  const int num_loads = Sizes::kTileStages * (end_tile - first_tile);
  const int active_warps = min(kWarps, (count - first + 15) / 16);

  if (threadIdx.x == 0) {
    for (int i = 0; i < Sizes::kStages; ++i) mbarrier_init(&full[i], 1), mbarrier_init(&empty[i], 32 * active_warps);
    fence_mbarrier_init();
  }
  const uint32_t q = shared_address(shared), ring = q + Sizes::kQueryBytes;
  const int64_t head_offset = int64_t{kv_head} * kKvTile * kD * 2;
  // Load i is block i % kTileStages (keys, then values) of tile first_tile + i / kTileStages.
  int64_t page = 0;
  const auto load = [&](int i, int stage) {
    if (i >= num_loads) return;
    if (i % Sizes::kTileStages == 0) page = p.page_tables[s.first_page + first_tile + i / Sizes::kTileStages];
    const int part = i % Sizes::kTileStages, column_blocks = kD / 64;
    const std::byte* from = (part < column_blocks ? p.k : p.v) + page * p.page_stride + head_offset;
    const uint32_t barrier = shared_address(&full[stage]);
    mbarrier_expect_bytes(barrier, kKvStageBytes);
    bulk_copy(ring + stage * kKvStageBytes, from + part % column_blocks * kKvStageBytes, kKvStageBytes, barrier);
  };
  if (threadIdx.x == 0) {
    for (int i = 0; i < Sizes::kStages; ++i) load(i, i);
  }
  stage_queries<kD, kBlockRows, 32 * kWarps>(p, s, kv_head, first, shared);
  __syncthreads();
  if (warp >= active_warps) return;

  const QueryRows rows(p, s, kv_head, first + warp * 16, lane);
  Partial<kD> span;
  span.reset();
  Total<kD, Sizes::kParks> total(
      reinterpret_cast<float*>(shared + Sizes::kQueryBytes + Sizes::kStages * kKvStageBytes) + threadIdx.x);
  int loaded = 0, stage = 0;
  uint32_t phase = 0;
  const auto acquire = [&] {
    mbarrier_wait(&full[stage], phase);
    return ring + stage * kKvStageBytes;
  };
  // This warp is done with the stage; once all are, the first one has it refilled.
  const auto release = [&] {
    mbarrier_arrive(&empty[stage]);  // Every lane, for what it read itself.
    if (warp == 0 && loaded + Sizes::kStages < num_loads) {
      mbarrier_wait(&empty[stage], phase);
      if (lane == 0) load(loaded + Sizes::kStages, stage);
    }
    ++loaded;
    if (++stage == Sizes::kStages) stage = 0, phase ^= 1;
  };
  for (int tile = first_tile; loaded < num_loads; ++tile) {
    const int first_key = tile * kKvTile;
    const bool sees = first_key < rows.max_end && first_key + kKvTile > rows.min_begin;
    float scores[8][4] = {};
#pragma unroll 1
    for (int block = 0; block < kD / 64; ++block) {
      const uint32_t keys = acquire();
      if (sees) multiply_keys(scores, q + block * kBlockRows * 128, keys, warp, lane);
      release();
    }
    const bool is_masked = first_key < rows.max_begin || first_key + kKvTile > rows.min_end;
    if (sees) {
      scale_and_mask(p, scores, s, kv_head, first + warp * 16, first_key, is_masked, lane);
      update_softmax<kD>(scores, span);
    }
    Weights weights(scores);
    const bool is_edge = first_key < rows.min_begin || first_key + kKvTile > rows.max_end;
    if (is_edge) weights.mask_values(rows, first_key, lane);
#pragma unroll
    for (int block = 0; block < kD / 64; ++block) {
      const uint32_t values = acquire();
      if (sees && is_edge) multiply_values<kD, true>(weights, span, 8 * block, values, lane);
      if (sees && !is_edge) multiply_values<kD, false>(weights, span, 8 * block, values, lane);
      release();
    }
    const int next = first_key + kKvTile;
    if (loaded == num_loads || p.spans.begin(p.spans.span_of(next)) == next) {
      total.merge(span);
      span.reset();
    }
  }
  store_total<kD>(p, total, rows, lane);
}

template <int kD>
void launch(CUstream_st* stream, const AttentionLaunch& p) {
  auto* kernel = attention_kernel<kD>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape<kD>::kSharedBytes);
  const int row_blocks = (p.max_rows * (p.num_heads / p.num_kv_heads) + kBlockRows - 1) / kBlockRows;
  kernel<<<dim3(p.num_sequences * row_blocks, p.num_kv_heads), 32 * kWarps, Shape<kD>::kSharedBytes, stream>>>(p, row_blocks);
}

}  // namespace

void launch_attention_serial(CUstream_st* stream, const AttentionLaunch& p) {
  switch ((p.head_dim + 63) / 64) {
    case 1: return launch<64>(stream, p);
    case 2: return launch<128>(stream, p);
    case 3: return launch<192>(stream, p);
    case 4: return launch<256>(stream, p);
  }
}

}  // namespace tensorfold::cuda
