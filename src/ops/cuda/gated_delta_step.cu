// causal_conv(), gated_delta() and gated_rms_norm() for few rows as one kernel: decoding, where three
// launches would each wait for one trip to memory and do little else. Formulas: ops.h; their order of
// operations: causal_conv.cu, gated_delta.cu, norms.cu.
//
// A block has a value head of a sequence, all of its columns and rows. The blocks of the value heads that
// share a key head compute its keys and queries each for itself; they are a cluster, since what the
// convolution keeps for the next pass may be written only when all of them have read what it kept before.
#include <cuda_runtime.h>

#include "ops/contract_math.h"
#include "ops/cuda/device/async.cuh"
#include "ops/cuda/device/launch.cuh"
#include "ops/cuda/device/recurrence.cuh"
#include "ops/cuda/device/short_sum.cuh"
#include "ops/cuda/device/values.cuh"

namespace tensorfold::cuda {
namespace {

/// Sixteen warps hold a head's state, two columns a thread.
using HeadShape = RecurrenceShape<16, 2, 16, 1, 1, 1>;
static_assert(HeadShape::kColumns == kMaxStepHeadDim && HeadShape::kKeys == kMaxStepHeadDim);
constexpr int kThreads = 32 * HeadShape::kComputeWarps;
using Head = RecurrenceBlock<HeadShape>;

/// A row of the head in shared memory.
struct alignas(16) HeadRow {
  float keys[kMaxStepHeadDim], queries[kMaxStepHeadDim];  ///< In the order of ring_place(), as convolved.
  float values[kMaxStepHeadDim];
  float out[kMaxStepHeadDim];  ///< What the state gives for the query.
  float g, beta;
};

/// A thread's channel of the convolution.
struct Channel {
  const float* x;    ///< Of the sequence's first row.
  float* kept_rows;  ///< Of the sequence's slot.
  int index;
  float weight[kMaxConvTaps], kept[kMaxConvTaps - 1], bias;  ///< From the last tap on back; missing ones 0.

  /// Asks for what no earlier kernel of this pass writes.
  __device__ __forceinline__ void load(const CausalConvLaunch& p, const RecurrentSequence& s, int index_) {
    index = index_;
    x = p.x.data + int64_t{s.first_row} * p.x.stride + index;
    kept_rows = p.states + s.state_slot * p.slot_stride + index;
#pragma unroll
    for (int j = 0; j < kMaxConvTaps; ++j)
      weight[j] =
          j < p.num_taps ? __ldg(p.weight.data + (p.num_taps - 1 - j) * p.weight.stride + index) : 0.0f;
#pragma unroll
    for (int j = 0; j + 1 < kMaxConvTaps; ++j) {
      const bool is_kept = j + 1 < p.num_taps && !s.is_start;
      kept[j] = is_kept ? kept_rows[(p.num_taps - 2 - j) * p.num_channels] : 0.0f;
    }
    bias = p.bias != nullptr ? __ldg(p.bias + index) : 0.0f;
  }
  /// visit(row of the sequence, output) for each row.
  template <class Visit>
  __device__ __forceinline__ void run(const CausalConvLaunch& p, int num_rows, const Visit& visit) const {
    float rows[kMaxStepRows];
#pragma unroll
    for (int r = 0; r < kMaxStepRows; ++r) rows[r] = r < num_rows ? x[r * p.x.stride] : 0.0f;
#pragma unroll
    for (int r = 0; r < kMaxStepRows; ++r) {
      if (r >= num_rows) break;
      float y = bias;
#pragma unroll
      for (int j = kMaxConvTaps - 1; j >= 0; --j) {
        const float reached = r >= j ? rows[r >= j ? r - j : 0] : kept[r < j ? j - r - 1 : 0];
        if (j < p.num_taps) y = __fmaf_rn(weight[j], reached, y);
      }
      visit(r, silu_f32(y));
    }
  }
  /// Stores what is kept behind `num_stored` rows.
  __device__ __forceinline__ void keep(const CausalConvLaunch& p, int num_stored) const {
#pragma unroll
    for (int j = 0; j + 1 < kMaxConvTaps; ++j) {  // j rows before the last one.
      if (j + 1 >= p.num_taps) break;
      const int r = num_stored - 1 - j;
      float value = r >= 0 ? x[r * p.x.stride] : 0.0f;
#pragma unroll
      for (int i = 0; i + 1 < kMaxConvTaps; ++i) {
        if (r == -1 - i) value = kept[i];
      }
      kept_rows[(p.num_taps - 2 - j) * p.num_channels] = value;
    }
  }
};

/// By a whole warp: what makes keys (or queries), which lie in the order of ring_place(), of unit length.
__device__ __forceinline__ float inverse_length(const float* row) {
  constexpr int kPieces = kMaxStepHeadDim / 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  float part[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const float x = row[ring_place(lane) + 32 * i];
    part[i] = __fmul_rn(x, x);
  }
#pragma unroll
  for (int half = kPieces / 2; half >= 1; half /= 2) {
#pragma unroll
    for (int j = 0; j < half; ++j) part[j] = __fadd_rn(part[j], part[j + half]);
  }
  const float squares[1] = {part[0]};
  return rsqrt_f32(__fadd_rn(sum_lanes<16>(squares, lane), 1e-6f));
}

/// The recurrence over all rows. `tile` is the state before them, then behind them; that behind fewer of them
/// is stored here, if it is asked for.
__device__ __forceinline__ void run_rows(const RecurrenceLaunch& p, const Head& head,
                                         StateTile<HeadShape>& tile, HeadRow* rows) {
  constexpr int kColumns = HeadShape::kThreadColumns, kKeys = HeadShape::kLaneKeys;
  const RecurrentSequence& s = head.sequence;
  for (int t = 0; t < s.num_rows; ++t) {
    HeadRow& row = rows[t];
    const float key_inverse = inverse_length(row.keys), query_inverse = inverse_length(row.queries);
    const auto load_keys = [&](float(&k)[4], int n) {
      load_4(k, row.keys + 8 * n + tile.key_lane * 4);
#pragma unroll
      for (int j = 0; j < 4; ++j) k[j] = __fmul_rn(k[j], key_inverse);
    };
    float key_sum[kColumns] = {}, query_sum[kColumns] = {}, product = 0.0f;
#pragma unroll
    for (int n = 0; n < kKeys; n += 4) {
      float k[4], q[4];
      load_keys(k, n), load_4(q, row.queries + 8 * n + tile.key_lane * 4);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        q[j] = __fmul_rn(__fmul_rn(q[j], query_inverse), p.query_scale);
        // The product of two missing keys would be +0.
        if (8 * (n + j) + tile.key_lane < p.key_dim) product = __fmaf_rn(q[j], k[j], product);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          key_sum[c] = __fmaf_rn(k[j], tile.s[c][n + j], key_sum[c]);
          query_sum[c] = __fmaf_rn(q[j], tile.s[c][n + j], query_sum[c]);
        }
      }
    }
    product = sum_partials(product);
    float* out = p.out + (s.first_row + int64_t{t}) * p.out_stride + head.first_of_all(p);
    float u[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const float key_total = sum_partials(key_sum[c]), query_total = sum_partials(query_sum[c]);
      const int column = tile.column(c);
      const bool exists = column < p.value_dim;
      u[c] = __fmul_rn(row.beta, __fmaf_rn(-row.g, key_total, exists ? row.values[column] : 0.0f));
      if (tile.key_lane == 0 && exists)
        out[column] = row.out[column] = __fmaf_rn(product, u[c], __fmul_rn(row.g, query_total));
    }
#pragma unroll
    for (int n = 0; n < kKeys; n += 4) {
      float k[4];
      load_keys(k, n);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c)
          tile.s[c][n + j] = __fmaf_rn(k[j], u[c], __fmul_rn(row.g, tile.s[c][n + j]));
      }
    }
    if (t + 1 == s.num_stored && t + 1 < s.num_rows) tile.store(p, head);
  }
}

/// gated_rms_norm() of a row of the head, by a whole warp.
struct Norm {
  static constexpr int kPieces = kMaxStepHeadDim / 32;
  float weight[kPieces], gate[kPieces];

  __device__ __forceinline__ void load_weight(const GatedRmsNormLaunch& p, int head) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const float* from = p.weight + int64_t{head} * p.weight_stride;
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      weight[i] = lane + 32 * i < p.group_size ? __ldg(from + lane + 32 * i) : 0.0f;
  }
  __device__ __forceinline__ void load(const GatedRmsNormLaunch& p, int64_t row, int head) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const float* from = p.gate + row * p.gate_stride + int64_t{head} * p.group_size;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) gate[i] = lane + 32 * i < p.group_size ? from[lane + 32 * i] : 0.0f;
  }
  __device__ __forceinline__ void run(const GatedRmsNormLaunch& p, int64_t row, int head,
                                      const float* values) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    float x[kPieces], silu[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      x[i] = lane + 32 * i < p.group_size ? values[lane + 32 * i] : 0.0f;
      silu[i] = silu_f32(gate[i]);
      if (p.gates_first) x[i] = __fmul_rn(x[i], silu[i]);
    }
    const float inverse = inverse_norm(sum_of_squares<32>(x, nullptr), p.reciprocal, p.eps);
    uint16_t* out = p.out + row * p.out_stride + int64_t{head} * p.group_size;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int column = lane + 32 * i;
      if (column >= p.group_size) continue;
      const float y = __fmul_rn(__fmul_rn(x[i], inverse), weight[i]);
      out[column] = float_to_bf16(p.gates_first ? y : __fmul_rn(y, silu[i]));
    }
  }
};

/// The convolution's outputs of the head in shared memory, and in conv.out: keys and queries by one of the
/// heads that share them.
__device__ __forceinline__ void convolve(const CausalConvLaunch& p, const Head& head, const Channel& channel,
                                         int part, int place, HeadRow* rows) {
  const bool writes = part == 2 || head.first_column == 0;
  float* out = p.out + int64_t{head.sequence.first_row} * p.out_stride + channel.index;
  const int at = ring_place(place);
  channel.run(p, head.sequence.num_rows, [&](int r, float y) {
    if (part == 0) rows[r].keys[at] = y;
    if (part == 1) rows[r].queries[at] = y;
    if (part == 2) rows[r].values[place] = y;
    if (writes) out[int64_t{r} * p.out_stride] = y;
  });
}

/// Grid: x value heads, those of a key head a cluster, y sequences. Traffic: the states once in and, where
/// they are kept, out; the rows of a key head once for each of its value heads.
__global__ void __launch_bounds__(kThreads)
    gated_delta_step_kernel(const __grid_constant__ GatedDeltaStepLaunch p) {
  __shared__ HeadRow rows[kMaxStepRows];
  launch_dependents();
  const RecurrenceLaunch& delta = p.delta;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  const Head head(delta, delta.sequences[blockIdx.y], static_cast<int>(blockIdx.x));
  const RecurrentSequence& s = head.sequence;
  const int part = thread / kMaxStepHeadDim, place = thread % kMaxStepHeadDim;  // Keys, queries, values.
  const bool has_channel = part < 3 && place < (part < 2 ? delta.key_dim : delta.value_dim);

  // What an earlier pass left, which has ended, and weights.
  StateTile<HeadShape> tile;
  tile.load(delta, head);
  Channel channel;
  if (has_channel) {
    const float* first = part == 0   ? delta.keys.data + head.key_head * delta.key_dim
                         : part == 1 ? delta.queries.data + head.key_head * delta.key_dim
                                     : delta.values.data + head.first_of_all(delta);
    channel.load(p.conv, s, static_cast<int>(first - p.conv.out) + place);
  }
  const bool norms = p.norm.out != nullptr && warp < s.num_rows;
  const int64_t norm_row = int64_t{s.first_row} + warp;
  Norm norm;
  if (norms) norm.load_weight(p.norm, head.first_head);
  wait_for_previous_kernel();

  if (norms) norm.load(p.norm, norm_row, head.first_head);
  if (has_channel) {
    convolve(p.conv, head, channel, part, place, rows);
  } else if (part < 2) {  // A missing key is -0: see PreparingWarp::load_keys().
    for (int r = 0; r < s.num_rows; ++r)
      (part == 0 ? rows[r].keys : rows[r].queries)[ring_place(place)] = -0.0f;
  }
  const int gate_row = thread - 3 * kMaxStepHeadDim;
  if (gate_row >= 0 && gate_row < s.num_rows) {
    const int64_t row = int64_t{s.first_row} + gate_row;
    const float time_step = softplus_f32(delta.decay.data[row * delta.decay.stride + head.first_head] +
                                         __ldg(delta.dt_bias + head.first_head));
    rows[gate_row].g = decay_of(__ldg(delta.a_log + head.first_head), time_step);
    rows[gate_row].beta = sigmoid_f32(delta.beta.data[row * delta.beta.stride + head.first_head]);
  }
  __syncthreads();
  cluster_arrive();  // The kept rows have been read: the convolution has used them.
  run_rows(delta, head, tile, rows);
  __syncthreads();
  if (norms) norm.run(p.norm, norm_row, head.first_head, rows[warp].out);
  if (s.num_stored > 0 && s.num_stored == s.num_rows) tile.store(delta, head);
  __syncwarp();
  cluster_wait();
  if (has_channel && s.num_stored > 0 && (part == 2 || head.first_column == 0))
    channel.keep(p.conv, s.num_stored);
}

}  // namespace

void launch_gated_delta_step(CUstream_st* stream, const GatedDeltaStepLaunch& p) {
  const int heads_of_key = p.delta.run_columns / p.delta.value_dim;
  const dim3 grid(p.delta.num_key_heads * heads_of_key, p.delta.num_sequences);
  launch_clusters(gated_delta_step_kernel, heads_of_key, grid, dim3(kThreads), 0, stream, p);
}

}  // namespace tensorfold::cuda
