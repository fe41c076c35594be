// sample() on CUDA: one launch of one kernel, which reads each logit from memory once.
//
// A cluster of blocks takes a row, each block a slice that stays in its shared memory for all passes over it:
//   load    the largest logit, its token, NaN anywhere; ends here for greedy rows
//   select  for top_k, then for top_p: digit by digit as in sample_select.h, one pass a digit
//   draw    each thread scores its best token: a bound that nearly all others fail in a few instructions
// Blocks send sums and bests to each other's shared memory, well under a microsecond an exchange, against two
// for a launch. Each adds up the same integers and so takes the same decisions.
#include <cuda_runtime.h>

#include "ops/cuda/device/async.cuh"
#include "ops/cuda/device/launch.cuh"
#include "ops/cuda/sample_params.h"
#include "ops/cuda/sample_select.h"

namespace tensorfold::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
/// Counters of one digit, one for every other lane: logits crowd in few digits, and lanes that add to one
/// counter would wait for each other.
constexpr int kColumns = 16;
constexpr int kLoadsInFlight = 8;  ///< Of 16 bytes, a thread: 128 KB a block.
constexpr int kSumThreads = kDigits * kColumns / 4;
static_assert(kSumThreads == kThreads, "four threads add up the columns of a digit");
static_assert(kMaxSampleSlice / 4 / kThreads * 4 * (kThreads / kColumns) <= 4095,
              "a counter holds a column's weights");

/// Shared memory beside the slice.
struct alignas(16) Shared {
  uint32_t low_sums[kDigits][kColumns], high_sums[kDigits][kColumns];  ///< Zero between passes.
  /// [parity of the pass][block]: a block may be one exchange ahead of another, so two lie side by side.
  uint64_t incoming_sums[2][kSampleBlocks][kDigits];
  uint64_t incoming_best[2][kSampleBlocks][2];  ///< Largest logits; best scores. Rank and token.
  Ranked warp_best[2][kWarps];
  uint64_t warp_sums[kDigits / 32];
  Selection selection;
  uint64_t barriers[2];  ///< Of even and odd exchanges: one arrival, and the bytes that come in.
};
constexpr int kMaxSharedBytes = 232448;  // Of a block on sm_90.
static_assert(sizeof(Shared) + kMaxSampleSlice * sizeof(float) <= kMaxSharedBytes);

/// A block's part of a row, in groups of four logits.
struct Slice {
  int first, size;
  __device__ __forceinline__ int groups() const { return (size + 3) / 4; }
};
__host__ __device__ constexpr int slice_size(int vocab_size) {
  return (vocab_size + 4 * kSampleBlocks - 1) / (4 * kSampleBlocks) * 4;
}

__device__ __forceinline__ float (&as_array(float4& v))[4] { return reinterpret_cast<float(&)[4]>(v); }

/// A thread's part of loading: its best logit so far.
struct Loaded {
  float best = bits_as<float>(0xff800000u);
  int32_t token = kNoToken.token;
  bool has_nan = false;

  /// Takes in four logits, the first of token `first`, and makes them canonical.
  __device__ __forceinline__ void take(float4& v, int32_t first) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& x = as_array(v)[i];
      x = sampling::canonical(x);
      has_nan |= x != x;
      if (x > best) best = x, token = first + i;
    }
  }
};

/// Not through the read-only cache: the kernel before may still have been writing when this one began.
template <bool kAligned>
__device__ __forceinline__ float4 load_group(const float* from) {
  if constexpr (kAligned) return __ldcg(reinterpret_cast<const float4*>(from));
  return make_float4(__ldcg(from), __ldcg(from + 1), __ldcg(from + 2), __ldcg(from + 3));
}

/// Canonical logits to shared memory where they will be read again, and this thread's best, or a NaN. Thread
/// i has groups i, i + kThreads and so on here and in all passes.
template <bool kAligned>
__device__ Ranked load(const float* logits, const Slice& slice, float4* kept, bool keeps) {
  Loaded loaded;
  const int whole_groups = slice.size / 4;
  for (int first = threadIdx.x; first < whole_groups; first += kLoadsInFlight * kThreads) {
    float4 v[kLoadsInFlight];
#pragma unroll
    for (int k = 0; k < kLoadsInFlight; ++k) {
      const int group = first + k * kThreads;
      if (group < whole_groups) v[k] = load_group<kAligned>(logits + 4 * group);
    }
#pragma unroll
    for (int k = 0; k < kLoadsInFlight; ++k) {
      const int group = first + k * kThreads;
      if (group >= whole_groups) break;
      loaded.take(v[k], slice.first + 4 * group);
      if (keeps) kept[group] = v[k];
    }
  }
  if (slice.groups() > whole_groups && threadIdx.x == whole_groups % kThreads) {
    float4 v;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = 4 * whole_groups + i;
      as_array(v)[i] = at < slice.size ? __ldcg(logits + at) : bits_as<float>(0xff800000u);
    }
    loaded.take(v, slice.first + 4 * whole_groups);
    if (keeps) kept[whole_groups] = v;
  }
  return {loaded.has_nan ? kNanRank : sampling::order_key(loaded.best), loaded.token};
}

__device__ __forceinline__ Ranked best_of_warp(Ranked mine) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    mine = better_of(mine,
                     {__shfl_xor_sync(~0u, mine.rank, distance), __shfl_xor_sync(~0u, mine.token, distance)});
  }
  return mine;
}

/// The block's best, in every thread. Two calls in a row take different buffers.
__device__ __forceinline__ Ranked best_of_block(Ranked (&buffer)[kWarps], Ranked mine) {
  mine = best_of_warp(mine);
  if (threadIdx.x % 32 == 0) buffer[threadIdx.x / 32] = mine;
  __syncthreads();
  static_assert(kWarps == 32);
  return best_of_warp(buffer[threadIdx.x % 32]);
}

/// Exchanges between the blocks of a cluster, in the same order in all of them: each block sends to all
/// (itself included), then waits for the bytes of all. No fence: a cluster barrier that orders stores costs
/// one of the whole device. A block may be one exchange ahead of another, never two, so buffers and barriers
/// come in pairs. Between two exchanges the block's threads meet.
class Exchange {
 public:
  __device__ explicit Exchange(Shared& s) : s_(s) {}

  /// Stores `value` at `place` of block `block`.
  __device__ __forceinline__ void send(uint64_t* place, int block, uint64_t value) const {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(
                     cluster_address(place, block)),
                 "l"(value), "r"(cluster_address(barrier(), block))
                 : "memory");
  }
  __device__ __forceinline__ void wait(uint32_t bytes) {
    if (threadIdx.x == 0) mbarrier_expect_bytes(barrier(), bytes);
    mbarrier_wait(barrier(), count_ / 2 % 2);
    ++count_;
  }

  /// The cluster's best, in every thread, by way of `incoming` in each block.
  __device__ __forceinline__ Ranked best(uint64_t (&incoming)[kSampleBlocks][2], const Ranked& of_block) {
    if (threadIdx.x < kSampleBlocks) {
      uint64_t* place = incoming[cluster_rank()];
      send(place, threadIdx.x, of_block.rank);
      send(place + 1, threadIdx.x, static_cast<uint32_t>(of_block.token));
    }
    wait(sizeof(incoming));
    Ranked best = kNoToken;
#pragma unroll
    for (int i = 0; i < kSampleBlocks; ++i) {
      best = better_of(best, {incoming[i][0], static_cast<int32_t>(incoming[i][1])});
    }
    return best;
  }

  /// Sends the sum of a digit to two of the blocks; the four threads of the digit reach all.
  __device__ __forceinline__ void send_sum(int digit, int part, uint64_t sum) const {
    static_assert(kSampleBlocks == 8);
    uint64_t* place = &s_.incoming_sums[count_ % 2][cluster_rank()][digit];
    send(place, 2 * part, sum);
    send(place, 2 * part + 1, sum);
  }
  /// After send_sum() by all: the sum of a digit over the blocks, for those threads that ask; all wait.
  __device__ __forceinline__ uint64_t receive_sum(uint32_t digit) {
    const int buffer = count_ % 2;
    wait(sizeof(s_.incoming_sums[0]));
    uint64_t sum = 0;
    if (digit < kDigits) {
#pragma unroll
      for (int block = 0; block < kSampleBlocks; ++block) sum += s_.incoming_sums[buffer][block][digit];
    }
    return sum;
  }

 private:
  __device__ __forceinline__ uint64_t* barrier() const { return &s_.barriers[count_ % 2]; }
  Shared& s_;
  uint32_t count_ = 0;  ///< Exchanges so far.
};

/// One row in one block of its cluster. All threads call everything.
class RowSampler {
 public:
  __device__ RowSampler(Shared& s, Exchange& exchange, float4* kept, const Slice& slice)
      : s_(s), exchange_(exchange), kept_(kept), slice_(slice) {}

  /// The threshold of the search, over tokens of at least `floor`.
  template <class Measure>
  __device__ uint64_t select(const Measure& measure, uint64_t floor) {
    Selection selection;
    for (bool is_first = true; !selection.is_done; is_first = false) {
      add_up(measure, selection, floor);
      __syncthreads();
      send_sums();
      find_digit(measure, selection, is_first);
      __syncthreads();
      selection = s_.selection;
    }
    return threshold_of(selection, floor);
  }

  /// The candidate with the best score. `top` is the row's largest logit (one of them always), `mine` this
  /// thread's.
  __device__ int32_t draw(const Candidates& candidates, uint64_t row_key, Ranked top, Ranked mine) {
    if (threadIdx.x == 0) mine = top;
    Ranked best = kNoToken;
    consider(candidates, row_key, logit_of_key(static_cast<uint32_t>(mine.rank)), mine.token, best);
    best = best_of_block(s_.warp_best[1], best);
    const DrawFilter filter(candidates, row_key, score_of_rank(best.rank));
    for (int group = threadIdx.x; group < slice_.groups(); group += kThreads) {
      float4 v = kept_[group];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t token = slice_.first + 4 * group + i;
        if (filter.may_win(as_array(v)[i], token)) {
          consider(candidates, row_key, as_array(v)[i], token, best);
        }
      }
    }
    best = best_of_block(s_.warp_best[0], best);
    return exchange_.best(s_.incoming_best[1], best).token;
  }

 private:
  /// Minus infinity is never drawn, which also keeps what pads the slice out.
  __device__ static void consider(const Candidates& candidates, uint64_t row_key, float logit, int32_t token,
                                  Ranked& best) {
    if (logit == bits_as<float>(0xff800000u) || !candidates.contains(logit, token)) return;
    const double score = sampling::score(logit, candidates.temperature, sampling::token_hash(row_key, token));
    best = better_of(best, {rank_of_score(score), token});
  }

  /// Adds the measures of the tokens in question to the counters of their digits.
  template <class Measure>
  __device__ void add_up(const Measure& measure, const Selection& selection, uint64_t floor) {
    const int column = threadIdx.x % kColumns;
    for (int group = threadIdx.x; group < slice_.groups(); group += kThreads) {
      float4 v = kept_[group];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float logit = as_array(v)[i];
        const uint32_t key = sampling::order_key(logit);
        const int32_t token = slice_.first + 4 * group + i;
        const uint32_t digit = digit_of(selection, key, token);
        if (digit >= kDigits || 4 * group + i >= slice_.size || order_of(key, token) < floor) continue;
        const uint64_t amount = measure.of(logit);
        if (low_half(amount) != 0) atomicAdd(&s_.low_sums[digit][column], low_half(amount));
        if (high_half(amount) != 0) atomicAdd(&s_.high_sums[digit][column], high_half(amount));
      }
    }
  }

  /// Sends this block's sums to all blocks and clears the counters. Four threads a digit.
  __device__ void send_sums() {
    const int digit = threadIdx.x / 4, part = threadIdx.x % 4;
    uint4& low4 = reinterpret_cast<uint4*>(s_.low_sums[digit])[part];
    uint4& high4 = reinterpret_cast<uint4*>(s_.high_sums[digit])[part];
    const uint4 low = low4, high = high4;
    low4 = high4 = make_uint4(0, 0, 0, 0);
    uint64_t sum = uint64_t{low.x} + low.y + low.z + low.w +
                   ((uint64_t{high.x} + high.y + high.z + high.w) << kHalfWeightBits);
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    exchange_.send_sum(digit, part, sum);
  }

  /// Leaves the narrowed selection in shared memory. A thread a digit, the highest digit first.
  template <class Measure>
  __device__ void find_digit(const Measure& measure, Selection selection, bool is_first) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t digit = kDigits - 1 - threadIdx.x;  // Out of range in the threads beyond kDigits.
    const uint64_t own = exchange_.receive_sum(digit);
    uint64_t through = own;  // The digits above and this one.
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const uint64_t other = __shfl_up_sync(~0u, through, distance);
      if (lane >= distance) through += other;
    }
    if (threadIdx.x < kDigits && lane == 31) s_.warp_sums[warp] = through;
    __syncthreads();
    if (threadIdx.x >= kDigits) return;
    uint64_t total = 0;
#pragma unroll
    for (int i = 0; i < kDigits / 32; ++i) {
      total += s_.warp_sums[i];
      if (i < warp) through += s_.warp_sums[i];
    }
    if (is_first) selection.needed = measure.target(total);
    if (is_reached_in(selection, through - own, own)) {
      narrow(selection, measure, digit, through - own, own);
      s_.selection = selection;
    }
  }

  Shared& s_;
  Exchange& exchange_;
  float4* kept_;
  Slice slice_;
};

/// Grid: a cluster of kSampleBlocks blocks a row. Traffic: the logits once; shared memory twice per pass of
/// select().
__global__ void __cluster_dims__(kSampleBlocks) __launch_bounds__(kThreads, 1)
    sample_kernel(const __grid_constant__ SampleLaunch p) {
  extern __shared__ __align__(16) std::byte shared[];
  Shared& s = *reinterpret_cast<Shared*>(shared);
  float4* kept = reinterpret_cast<float4*>(shared + sizeof(Shared));
  launch_dependents();
  if (threadIdx.x == 0) {
    mbarrier_init(&s.barriers[0], 1);
    mbarrier_init(&s.barriers[1], 1);
    fence_mbarrier_init();
  }
  __syncwarp();
  cluster_arrive();
  const int row_idx = blockIdx.x / kSampleBlocks, rank = static_cast<int>(cluster_rank());
  const int step = slice_size(p.vocab_size), first = min(rank * step, p.vocab_size);
  const Slice slice{first, min(step, p.vocab_size - first)};
  reinterpret_cast<uint4*>(&s.low_sums[0][0])[threadIdx.x] = make_uint4(0, 0, 0, 0);
  reinterpret_cast<uint4*>(&s.high_sums[0][0])[threadIdx.x] = make_uint4(0, 0, 0, 0);
  wait_for_previous_kernel();

  const DeviceSampleRow row = p.rows[row_idx];
  const float* logits = p.logits + row_idx * p.logits_stride + first;
  const bool is_aligned = reinterpret_cast<uintptr_t>(logits) % 16 == 0, keeps = row.temperature != 0.0f;
  const Ranked mine =
      is_aligned ? load<true>(logits, slice, kept, keeps) : load<false>(logits, slice, kept, keeps);
  const Ranked of_block = best_of_block(s.warp_best[0], mine);
  cluster_wait();  // The other blocks have started and set up their barriers.
  Exchange exchange(s);
  const Ranked top = exchange.best(s.incoming_best[0], of_block);
  if (is_decided(top, row.temperature, row.top_k)) {
    if (rank == 0 && threadIdx.x == 0) p.tokens[row_idx] = decided_token(top);
    return;
  }

  RowSampler sampler(s, exchange, kept, slice);
  Candidates candidates{.least_weight = sampling::min_p_weight(row.min_p),
                        .max = logit_of_key(static_cast<uint32_t>(top.rank)),
                        .temperature = row.temperature};
  if (row.top_k > 0 && row.top_k < p.vocab_size) {
    candidates.least_order = sampler.select(CountMeasure{static_cast<uint64_t>(row.top_k)}, 0);
  }
  if (row.top_p < 1.0f) {
    candidates.least_order =
        sampler.select(WeightMeasure{candidates.max, row.temperature, row.top_p}, candidates.least_order);
  }
  const int32_t token = sampler.draw(candidates, sampling::row_key(row.seed, row.pos), top, mine);
  if (rank == 0 && threadIdx.x == 0) p.tokens[row_idx] = token;
}

}  // namespace

void launch_sample(CUstream_st* stream, const SampleLaunch& launch) {
  if (launch.num_rows == 0) return;
  cudaFuncSetAttribute(sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes);
  const size_t bytes = sizeof(Shared) + slice_size(launch.vocab_size) * sizeof(float);
  launch_kernel(sample_kernel, dim3(launch.num_rows * kSampleBlocks), dim3(kThreads), bytes, stream, launch);
}

}  // namespace tensorfold::cuda
