// causal_conv, gated_delta and mamba2 by their formulas in ops.h: each sequence's rows in order, from its
// slot and back.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/fp_env.h"
#include "ops/reference/reference_math.h"
#include "ops/reference/reference_ops.h"

namespace tensorfold {
namespace {

using contract::fused;
using reference::KeySum;

/// e^-(e^a_log * step).
float decay(float a_log, float step) { return exp_f32(-(exp_f32(a_log) * step)); }

/// The `count` values at `x`, scaled to unit length.
std::vector<float> normalized(const float* x, int64_t count, int short_sum_partials) {
  reference::ShortSum squares(short_sum_partials);
  for (int64_t i = 0; i < count; ++i) squares.add_square(x[i]);
  const float inverse = rsqrt_f32(squares.total() + 1e-6f);
  std::vector<float> y(x, x + count);
  for (float& value : y) value = value * inverse;
  return y;
}

/// What a sequence's rows begin with: the `count` floats of its slot, or zeros.
std::vector<float> state_before(const SequenceRows& sequence, const float* slot, int64_t count) {
  if (sequence.first_pos == 0) return std::vector<float>(static_cast<size_t>(count), 0.0f);
  return {slot, slot + count};
}

/// One row of one value head; S [Dk, Dv].
void delta_row(const GatedDeltaCall& call, int64_t t, int64_t head, float* S, int short_sum_partials) {
  const RecurrentShape& shape = call.states->shape;
  const int64_t Dk = shape.key_dim, Dv = shape.value_dim;
  const int64_t key_head = head / (shape.num_heads / (call.k.dim(1) / Dk));
  std::vector<float> q = normalized(call.q.row<const float>(t) + key_head * Dk, Dk, short_sum_partials);
  const std::vector<float> k = normalized(call.k.row<const float>(t) + key_head * Dk, Dk, short_sum_partials);
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(Dk)));
  KeySum qk;
  for (int64_t i = 0; i < Dk; ++i) {
    q[i] = q[i] * scale;
    qk.add_product(q[i], k[i]);
  }
  const float beta = sigmoid_f32(call.b.row<const float>(t)[head]);
  const float step = softplus_f32(call.a.row<const float>(t)[head] + call.dt_bias.row<const float>(0)[head]);
  const float g = decay(call.a_log.row<const float>(0)[head], step);
  for (int64_t c = 0; c < Dv; ++c) {
    KeySum ks, qs;
    for (int64_t i = 0; i < Dk; ++i) {
      ks.add_product(k[i], S[i * Dv + c]);
      qs.add_product(q[i], S[i * Dv + c]);
    }
    const float u = beta * fused(-g, ks.total(), call.v.row<const float>(t)[head * Dv + c]);
    call.out.row<float>(t)[head * Dv + c] = fused(qk.total(), u, g * qs.total());
    for (int64_t i = 0; i < Dk; ++i) S[i * Dv + c] = fused(k[i], u, g * S[i * Dv + c]);
  }
}

/// One row of one head; S [N, P].
void mamba_row(const Mamba2Call& call, int64_t t, int64_t head, float* S) {
  const RecurrentShape& shape = call.states->shape;
  const int64_t N = shape.key_dim, P = shape.value_dim;
  const int64_t group = head / (shape.num_heads / (call.b.dim(1) / N));
  const float* b = call.b.row<const float>(t) + group * N;
  const float* c = call.c.row<const float>(t) + group * N;
  const float raw = softplus_f32(call.dt.row<const float>(t)[head] + call.dt_bias.row<const float>(0)[head]);
  const float raised = raw < call.dt_min ? call.dt_min : raw;
  const float step = raised > call.dt_max ? call.dt_max : raised;
  const float g = decay(call.a_log.row<const float>(0)[head], step);
  for (int64_t p = 0; p < P; ++p) {
    const float x = call.x.row<const float>(t)[head * P + p];
    KeySum y;
    for (int64_t n = 0; n < N; ++n) {
      S[n * P + p] = fused(b[n], step * x, g * S[n * P + p]);
      y.add_product(c[n], S[n * P + p]);
    }
    call.out.row<float>(t)[head * P + p] = fused(call.d.row<const float>(0)[head], x, y.total());
  }
}

/// row(t, head, matrix of the head) for every row and head, each sequence's rows in order; the slot gets the
/// matrices as they are before the first drafted row.
template <class Row>
void for_recurrent_rows(const RecurrentStates& states, const RowBatch& rows, const Row& row) {
  const RecurrentShape& shape = states.shape;
  for (const SequenceRows& sequence : rows.sequences) {
    float* slot = states.matrices(sequence.state_slot);
    std::vector<float> matrices = state_before(sequence, slot, shape.matrix_floats());
    for (int64_t r = 0; r < sequence.num_rows; ++r) {
      for (int64_t h = 0; h < shape.num_heads; ++h)
        row(sequence.first_row + r, h, matrices.data() + h * shape.key_dim * shape.value_dim);
      if (r + 1 == sequence.num_stored()) std::ranges::copy(matrices, slot);
    }
  }
}

}  // namespace

void ReferenceOps::causal_conv(const CausalConvCall& call) {
  ScopedFlushDenormals flush;
  const int64_t C = call.x.dim(1), taps = call.weight.dim(0), tail = taps - 1;
  for (const SequenceRows& sequence : call.rows.sequences) {
    float* slot = call.states->conv_rows(sequence.state_slot);
    const std::vector<float> kept = state_before(sequence, slot, tail * C);
    // The kept rows and then the sequence's own, which are what a tap can reach.
    std::vector<std::vector<float>> reach;
    for (int64_t i = 0; i < tail; ++i) reach.emplace_back(kept.begin() + i * C, kept.begin() + (i + 1) * C);
    for (int64_t r = 0; r < sequence.num_rows; ++r) {
      const int64_t t = sequence.first_row + r;
      reach.emplace_back(call.x.row<const float>(t), call.x.row<const float>(t) + C);
      for (int64_t c = 0; c < C; ++c) {
        float y = call.bias.data != nullptr ? call.bias.row<const float>(0)[c] : 0.0f;
        for (int64_t j = 0; j < taps; ++j) y = fused(call.weight.row<const float>(j)[c], reach[r + j][c], y);
        call.out.row<float>(t)[c] = silu_f32(y);
      }
    }
    if (sequence.num_stored() == 0) continue;
    for (int64_t i = 0; i < tail; ++i) std::ranges::copy(reach[sequence.num_stored() + i], slot + i * C);
  }
}

void ReferenceOps::gated_delta(const GatedDeltaCall& call) {
  ScopedFlushDenormals flush;
  for_recurrent_rows(*call.states, call.rows, [&](int64_t t, int64_t head, float* S) {
    delta_row(call, t, head, S, short_sum_partials_);
  });
}

void ReferenceOps::mamba2(const Mamba2Call& call) {
  ScopedFlushDenormals flush;
  for_recurrent_rows(*call.states, call.rows,
                     [&](int64_t t, int64_t head, float* S) { mamba_row(call, t, head, S); });
}

}  // namespace tensorfold
