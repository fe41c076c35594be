// attention() on CUDA for prompts, 64 query rows a warpgroup: the steps of the split kernel by wgmma, spans
// in turn, and therefore its bits. Decoding: attention_split.cu. Pages: ops/cuda/attention_params.h.
//
// The query heads of one KV head and the rows of one sequence form one long list of query rows. A block is
// two or three warpgroups of 64 of them and one warp that brings tiles. Tensor cores and exponentials take
// about equal time, so the warpgroups take turns: one multiplies (the values of a tile, then the keys of the
// next) while the others are at their softmax. Scores are accumulators, probabilities A operands in the same
// registers' places; keys and values are read where the copy engine has put them.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "ops/cuda/device/attention_tile.cuh"
#include "ops/cuda/device/attention_wgmma.cuh"

namespace tensorfold::cuda {
namespace {

constexpr int kGroupRows = 64;
constexpr int kMaxStages = 16;

/// A block's sizes. Shared memory: q, the ring, what is parked.
template <int kD>
struct Shape {
  static constexpr int kColumnBlocks = kD / 64;
  /// Three warpgroups have 160 registers a thread, two 240.
  static constexpr int kGroups = kD == 64 ? 3 : 2;
  static constexpr int kRows = kGroups * kGroupRows;
  static constexpr int kThreads = 128 * (kGroups + 1);
  static constexpr int kQueryBytes = kRows * kD * 2;
  /// Of the merged o one block of 64 columns (32 registers a thread) is in registers beside the running o, or
  /// two where that is all; of the rest each thread parks its own words in shared memory.
  static constexpr int kKept = kD <= 128 ? kColumnBlocks : 1;
  static constexpr int kParked = kColumnBlocks - kKept;
  static constexpr int kParkedBytes = kParked * kRows * 64 * 4;
  static constexpr int kFitting = ((226 << 10) - 1024 - kQueryBytes - kParkedBytes) / kKvStageBytes;
  static constexpr int kStages = kFitting < kMaxStages ? kFitting : kMaxStages;
  static constexpr int kSharedBytes = kQueryBytes + kStages * kKvStageBytes + kParkedBytes + 1024;
  static_assert(kStages >= 2 * kColumnBlocks, "a turn needs a tile's values and the next one's keys");
};

/// Named barriers: 1 + g is the turn of warpgroup g, passed on by the one before; then one of each warpgroup
/// for itself.
template <int kGroups>
struct Turns {
  int group;
  __device__ __forceinline__ void take() const {
    asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
  }
  __device__ __forceinline__ void pass() const {
    asm volatile("bar.arrive %0, 256;" ::"r"(1 + (group + 1) % kGroups) : "memory");
  }
  __device__ __forceinline__ void sync_group() const {
    asm volatile("bar.sync %0, 128;" ::"r"(1 + kGroups + group) : "memory");
  }
};

/// The ring as one warpgroup reads it, stage after stage. Stages are given back, oldest first, when products
/// have ended.
template <int kStages>
struct RingReader {
  uint32_t ring, full, empty;  ///< Shared addresses.
  int lane;
  int next = 0, oldest = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ uint32_t acquire() {
    mbarrier_wait(full + next * 8, phase);
    const uint32_t address = ring + next * kKvStageBytes;
    if (++next == kStages) next = 0, phase ^= 1;
    return address;
  }
  __device__ __forceinline__ void release() {
    if (lane == 0)
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(empty + oldest * 8) : "memory");
    if (++oldest == kStages) oldest = 0;
  }
};

/// (m, l, o) of 64 rows over the keys of one span so far; a lane has two rows of its warp's 16. While
/// is_fresh, o is +0 whatever it holds: the next product starts from there.
template <int kColumnBlocks>
struct Span {
  float m[2], l[2];
  float o[kColumnBlocks][8][4];
  bool is_fresh;

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int i = 0; i < 2; ++i) m[i] = kMinusInfinity, l[i] = 0.0f;
    is_fresh = true;
  }
  /// From scores to probabilities: s becomes p, (m, l) move on, o is rescaled.
  __device__ __forceinline__ void update(float (&s)[8][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float largest = fmaxf(m[half], row_max(s, half));
      const float a = to_probabilities(s, half, m[half], largest);
      m[half] = largest;
      l[half] = __fmaf_rn(l[half], a, row_sum(s, half));
      if (is_fresh) continue;
#pragma unroll
      for (int block = 0; block < kColumnBlocks; ++block) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i)
            o[block][j][i] = multiply_keeping_denormals(o[block][j][i], a);
        }
      }
    }
  }
};

/// The merged spans: the first kKept column blocks in registers, the others parked.
template <int kD>
struct Total {
  using Sizes = Shape<kD>;
  float m[2], l[2];
  float kept[Sizes::kKept][8][4];
  uint32_t parked;  ///< Shared address of this thread's first word.

  __device__ __forceinline__ explicit Total(uint32_t parked_words) : parked(parked_words + threadIdx.x * 16) {
#pragma unroll
    for (int i = 0; i < 2; ++i) m[i] = kMinusInfinity, l[i] = 0.0f;
  }
  __device__ __forceinline__ uint32_t word(int block, int j) const {
    return parked + ((block - Sizes::kKept) * 8 + j) * Sizes::kRows * 2 * 16;
  }
  __device__ __forceinline__ void get(int block, int j, float (&v)[4]) const {
    if (block < Sizes::kKept) {
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = kept[block][j][i];
    } else {
      const uint4 w = load_shared_16(word(block, j));
      v[0] = __uint_as_float(w.x), v[1] = __uint_as_float(w.y), v[2] = __uint_as_float(w.z),
      v[3] = __uint_as_float(w.w);
    }
  }
  __device__ __forceinline__ void set(int block, int j, const float (&v)[4]) {
    if (block < Sizes::kKept) {
#pragma unroll
      for (int i = 0; i < 4; ++i) kept[block][j][i] = v[i];
    } else {
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(word(block, j)), "f"(v[0]), "f"(v[1]),
                   "f"(v[2]), "f"(v[3]));
    }
  }
  /// A row that saw nothing in the span keeps its total; a row's first span is its total.
  __device__ __forceinline__ void merge(const Span<Sizes::kColumnBlocks>& span) {
    bool keeps[2], is_first[2];
    float a[2], b[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      keeps[half] = span.m[half] == kMinusInfinity, is_first[half] = m[half] == kMinusInfinity;
      const MergeFactors factors(is_first[half] ? span.m[half] : m[half], span.m[half]);
      a[half] = factors.a, b[half] = factors.b;
      if (keeps[half]) continue;
      l[half] = is_first[half] ? span.l[half] : factors.merge(l[half], span.l[half]);
      m[half] = factors.m;
    }
    // Four words' loads before their stores: one after the other, each would wait for shared memory.
#pragma unroll
    for (int block = 0; block < Sizes::kColumnBlocks; ++block) {
#pragma unroll
      for (int first = 0; first < 8; first += 4) {
        float v[4][4];
#pragma unroll
        for (int j = 0; j < 4; ++j) get(block, first + j, v[j]);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int half = i / 2;
            const float o = span.o[block][first + j][i];
            const float merged = __fmaf_rn(o, b[half], __fmul_rn(v[j][i], a[half]));
            v[j][i] = keeps[half] ? v[j][i] : is_first[half] ? o : merged;
          }
          set(block, first + j, v[j]);
        }
      }
    }
  }
  __device__ __forceinline__ void store(const AttentionLaunch& p, const QueryRows& rows, int lane) {
    const bool has_sink = p.sinks != nullptr;
#pragma unroll
    for (int block = 0; block < Sizes::kColumnBlocks; ++block) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int column = block * 64 + j * 8 + 2 * (lane % 4);
        float v[4];
        get(block, j, v);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (rows.row[half] < 0 || column >= p.head_dim) continue;
          const MergeFactors sink(m[half], has_sink ? sink_log2(p, rows.head[half]) : m[half]);
          const int64_t at = rows.row[half] * p.out_stride + rows.head[half] * p.head_dim + column;
          *reinterpret_cast<uint32_t*>(p.out + at * 2) = to_bf16x2(
              finish(sink, has_sink, v[2 * half], l[half]), finish(sink, has_sink, v[2 * half + 1], l[half]));
        }
      }
    }
  }
};

/// Leaves the products of the last column block of the keys in flight.
template <int kColumnBlocks, int kRows, int kStages>
__device__ __forceinline__ void multiply_keys(float (&s)[8][4], uint32_t q, RingReader<kStages>& ring) {
#pragma unroll
  for (int block = 0; block < kColumnBlocks; ++block) {
    const uint64_t queries = rows_descriptor(q + block * kRows * 128), keys = rows_descriptor(ring.acquire());
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) wgmma_keys(s, queries + 2 * step, keys + 2 * step, block + step > 0);
    wgmma_commit();
    if (block == 0) continue;
    wgmma_wait<1>();
    ring.release();
  }
}

/// Values of keys that no row of the block sees count as zeros, whatever their slots hold: writes them to the
/// tile whose values are next in the ring, of which the block sees the slots [begin, end). Every warpgroup
/// does it for itself.
template <int kColumnBlocks, int kGroups, int kStages>
__device__ __forceinline__ void clear_unseen(int begin, int end, const Turns<kGroups>& turns,
                                             RingReader<kStages> ring) {
#pragma unroll 1
  for (int block = 0; block < kColumnBlocks; ++block) {
    const uint32_t values = ring.acquire();
    for (int i = threadIdx.x % 128; i < kKvTile * 8; i += 128) {
      if (i / 8 >= begin && i / 8 < end) continue;
      asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(values + i * 16), "r"(0) : "memory");
    }
  }
  fence_for_async_reads();
  turns.sync_group();
}

/// o += p v in key order; done on return.
template <int kColumnBlocks, int kStages>
__device__ __forceinline__ void multiply_values(uint32_t (&weights)[4][4], Span<kColumnBlocks>& span,
                                                RingReader<kStages>& ring) {
#pragma unroll
  for (int block = 0; block < kColumnBlocks; ++block) {
    const uint64_t values = rows_descriptor(ring.acquire());
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step)
      wgmma_values(span.o[block], weights[step], values + 128 * step, !span.is_fresh || step > 0);
    wgmma_commit();
    if (block == 0) continue;
    wgmma_wait<1>();
    ring.release();
  }
  wgmma_wait<0>();
  ring.release();
#pragma unroll
  for (int block = 0; block < kColumnBlocks; ++block) hold(span.o[block]);
  hold(weights);
  span.is_fresh = false;
}

/// The keys that a block's rows see together: positions, and the tiles they lie in.
struct SeenKeys {
  int begin, end, first_tile, end_tile;
  __device__ __forceinline__ SeenKeys(const AttentionLaunch& p, const AttentionSequence& s, int first,
                                      int num_rows) {
    const int group = p.num_heads / p.num_kv_heads, count = s.num_rows * group;
    begin = visible_begin(p, s.first_pos + first / group);
    end = visible_end(p, s, s.first_pos + (min(first + num_rows, count) - 1) / group);
    first_tile = begin / kKvTile, end_tile = (end + kKvTile - 1) / kKvTile;
  }
};

/// A warpgroup's part. Rows that do not see a tile which others of the block see go through it with p = 0,
/// which leaves (m, l, o) as they are.
template <int kD>
__device__ __forceinline__ void consume(const AttentionLaunch& p, const AttentionSequence& s, int kv_head,
                                        int first, const SeenKeys& seen, std::byte* shared, uint64_t* full,
                                        uint64_t* empty) {
  using Sizes = Shape<kD>;
  constexpr int kColumnBlocks = Sizes::kColumnBlocks, kGroups = Sizes::kGroups;
  const int lane = threadIdx.x % 32;
  const int warp =
      __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // So that the compiler knows it to be uniform.
  const int group_idx = warp / 4;
  const Turns<kGroups> turns{group_idx};
  stage_queries<kD, Sizes::kRows, 128 * kGroups>(p, s, kv_head, first, shared);
  fence_for_async_reads();
  asm volatile("bar.sync %0, %1;" ::"n"(1 + 2 * kGroups), "n"(128 * kGroups) : "memory");

  const uint32_t q = shared_address(shared) + group_idx * kGroupRows * 128;
  RingReader<Sizes::kStages> ring{shared_address(shared) + Sizes::kQueryBytes, shared_address(full),
                                  shared_address(empty), lane};
  const int warp_first = first + warp * 16;
  int max_begin, min_end;  // Between them every row of the warp sees all.
  {
    const QueryRows rows(p, s, kv_head, warp_first, lane);
    max_begin = rows.max_begin, min_end = rows.min_end;
  }
  Span<kColumnBlocks> span;
  span.reset();
  Total<kD> total(shared_address(shared) + Sizes::kQueryBytes + Sizes::kStages * kKvStageBytes);
  float scores[8][4];
  uint32_t weights[4][4];
  if (group_idx == kGroups - 1) turns.pass();
  turns.take();
  multiply_keys<kColumnBlocks, Sizes::kRows>(scores, q, ring);
  turns.pass();
  int span_end = p.spans.begin(p.spans.span_of(seen.first_tile * kKvTile) + 1);
  for (int tile = seen.first_tile;;) {
    const int first_key = tile * kKvTile;
    wgmma_wait<0>();
    ring.release();
    hold(scores);
    const bool is_masked = first_key < max_begin || first_key + kKvTile > min_end;
    scale_and_mask(p, scores, s, kv_head, warp_first, first_key, is_masked, lane);
    span.update(scores);
    const Weights rounded(scores);
#pragma unroll
    for (int i = 0; i < 16; ++i) weights[i / 4][i % 4] = rounded.a[i / 4][i % 4];
    const bool is_edge = first_key < seen.begin || first_key + kKvTile > seen.end;
    if (is_edge) clear_unseen<kColumnBlocks>(seen.begin - first_key, seen.end - first_key, turns, ring);
    // A turn: the values of this tile, the keys of the next.
    turns.take();
    multiply_values(weights, span, ring);
    if (++tile == seen.end_tile) break;
    multiply_keys<kColumnBlocks, Sizes::kRows>(scores, q, ring);
    turns.pass();
    if (tile * kKvTile == span_end) {
      total.merge(span);
      span.reset();
      span_end = p.spans.begin(p.spans.span_of(span_end) + 1);
    }
  }
  if (group_idx < kGroups - 1) turns.pass();
  total.merge(span);
  total.store(p, QueryRows(p, s, kv_head, warp_first, lane), lane);
}

/// Grid: x sequences times blocks of query rows, the last first: they see most keys; y KV heads. A block
/// computes its query rows. Traffic: the keys and values that the block's rows see, once.
template <int kD>
__global__ void __launch_bounds__(Shape<kD>::kThreads, 1)
    attention_wide_kernel(const __grid_constant__ AttentionLaunch p, int row_blocks) {
  using Sizes = Shape<kD>;
  extern __shared__ std::byte shared_bytes[];
  __shared__ uint64_t full[Sizes::kStages], empty[Sizes::kStages];
  auto* shared =
      reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(shared_bytes) + 1023) & ~uintptr_t{1023});
  const AttentionSequence s = p.sequences[blockIdx.x / row_blocks];
  const int first = (row_blocks - 1 - static_cast<int>(blockIdx.x) % row_blocks) * Sizes::kRows;
  if (first >= s.num_rows * (p.num_heads / p.num_kv_heads)) return;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Sizes::kStages; ++i)
      mbarrier_init(&full[i], 1), mbarrier_init(&empty[i], 4 * Sizes::kGroups);
    fence_mbarrier_init();
  }
  __syncthreads();
  const SeenKeys seen(p, s, first, Sizes::kRows);
  if (threadIdx.x >= 128 * Sizes::kGroups) {
    if constexpr (Sizes::kGroups == 2)
      asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    else
      asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
    if (threadIdx.x == 128 * Sizes::kGroups) {
      bring_tiles<kD, Sizes::kStages>(p, s, blockIdx.y, seen.first_tile, seen.end_tile,
                                      shared_address(shared) + Sizes::kQueryBytes, full, empty);
    }
  } else {
    if constexpr (Sizes::kGroups == 2)
      asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    else
      asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
    consume<kD>(p, s, blockIdx.y, first, seen, shared, full, empty);
  }
}

template <int kD>
void launch(CUstream_st* stream, const AttentionLaunch& p) {
  using Sizes = Shape<kD>;
  auto* kernel = attention_wide_kernel<kD>;
  static const cudaError_t once =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Sizes::kSharedBytes);
  static_cast<void>(once);  // A fault shows at the launch.
  const int row_blocks = (p.max_rows * (p.num_heads / p.num_kv_heads) + Sizes::kRows - 1) / Sizes::kRows;
  kernel<<<dim3(p.num_sequences * row_blocks, p.num_kv_heads), Sizes::kThreads, Sizes::kSharedBytes,
           stream>>>(p, row_blocks);
}

}  // namespace

void launch_attention_wide(CUstream_st* stream, const AttentionLaunch& p) {
  switch ((p.head_dim + 63) / 64) {
    case 1:
      return launch<64>(stream, p);
    case 2:
      return launch<128>(stream, p);
    case 3:
      return launch<192>(stream, p);
    case 4:
      return launch<256>(stream, p);
  }
}

}  // namespace tensorfold::cuda
