// gated_delta of the cpu backend. What a row's columns share (normalized keys and queries, their product, the
// gates) is prepared once. Then a block of columns of a head's matrix stays in L1 for all rows, and each row
// passes over it once: while the matrix takes a row in, the next row's products with it are already summed.
#include "ops/cpu/isa_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/gated_delta.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/gated_delta.h"
#include "ops/cpu/state_block-inl.h"
#include "ops/cpu/state_split.h"

#ifndef TENSORFOLD_OPS_CPU_GATED_DELTA_TYPES_
#define TENSORFOLD_OPS_CPU_GATED_DELTA_TYPES_
namespace tensorfold::cpu {

/// What the columns of a chunk's rows share.
struct DeltaRows {
  int64_t key_dim = 0, num_key_heads = 0, num_value_heads = 0;
  float* keys = nullptr;      ///< [key heads, chunk rows, 2, key_dim]: k' and then q'.
  float* products = nullptr;  ///< [chunk rows, key heads]: q'.k'.
  float* decays = nullptr;    ///< [chunk rows, value heads]: g.
  float* betas = nullptr;     ///< [chunk rows, value heads].

  float* key(int64_t key_head, int64_t row) const {
    return keys + (key_head * kStateChunkRows + row) * 2 * key_dim;
  }
};

/// What one block reads and writes, from its first row on.
struct DeltaBlock {
  StateBlock block;
  int64_t key_dim = 0, value_dim = 0;
  const float* keys = nullptr;  ///< k' and q' of each row, 2 * key_dim floats.
  const float *products = nullptr, *decays = nullptr, *betas = nullptr;
  int64_t product_stride = 0, gate_stride = 0;  ///< Elements from row to row.
  const float* v = nullptr;                     ///< At the block's first column, as `out`.
  int64_t v_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};

}  // namespace tensorfold::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {

/// y = x * inverse, or (x * inverse) * scale where there is a scale.
HWY_INLINE void scale_to(float* y, const float* x, int64_t n, float inverse, const float* scale) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto unit = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse));
    hn::StoreU(scale == nullptr ? unit : hn::Mul(unit, hn::Set(d, *scale)), d, y + i);
  }
  for (; i < n; ++i) y[i] = scale == nullptr ? x[i] * inverse : (x[i] * inverse) * *scale;
}

/// The sum over i of a[i] * b[i] in the order of sums over the key dimension.
HWY_INLINE float dot_over_keys(const float* a, const float* b, int64_t n) {
  const hn::CappedTag<float, 8> d;
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(d));
  HWY_ALIGN float partials[8];
  for (int64_t lane = 0; lane < 8; lane += kLanes) {
    auto sum = hn::Zero(d);
    for (int64_t i = 0; i + 8 <= n; i += 8)
      sum = hn::MulAdd(hn::LoadU(d, a + i + lane), hn::LoadU(d, b + i + lane), sum);
    hn::Store(sum, d, partials + lane);
  }
  for (int64_t i = n / 8 * 8; i < n; ++i) partials[i % 8] = contract::fused(a[i], b[i], partials[i % 8]);
  for (int half = 4; half >= 1; half /= 2) {
    for (int i = 0; i < half; ++i) partials[i] += partials[i + half];
  }
  return partials[0];
}

/// g and beta of one row, n value heads.
HWY_INLINE void delta_gates(float* decays, float* betas, const float* a, const float* b, const float* a_log,
                            const float* dt_bias, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t h = 0;
  for (; h + lanes <= n; h += lanes) {
    hn::StoreU(simd_sigmoid(d, hn::LoadU(d, b + h)), d, betas + h);
    const auto step = simd_softplus(d, hn::Add(hn::LoadU(d, a + h), hn::LoadU(d, dt_bias + h)));
    hn::StoreU(simd_decay(d, hn::LoadU(d, a_log + h), step), d, decays + h);
  }
  for (; h < n; ++h) {
    betas[h] = sigmoid_f32(b[h]);
    decays[h] = decay(a_log[h], softplus_f32(a[h] + dt_bias[h]));
  }
}

/// Row t of the pass to row `r` of the chunk; `scale` is Dk^-1/2.
void prepare_delta_row(const GatedDeltaCall& call, int64_t t, const DeltaRows& rows, int64_t r, float scale) {
  const int64_t Dk = rows.key_dim;
  for (int64_t h = 0; h < rows.num_key_heads; ++h) {
    const float* k = call.k.row<const float>(t) + h * Dk;
    const float* q = call.q.row<const float>(t) + h * Dk;
    float* key = rows.key(h, r);
    scale_to(key, k, Dk, rsqrt_f32(sum_of_squares(k, Dk) + 1e-6f), nullptr);
    scale_to(key + Dk, q, Dk, rsqrt_f32(sum_of_squares(q, Dk) + 1e-6f), &scale);
    rows.products[r * rows.num_key_heads + h] = dot_over_keys(key + Dk, key, Dk);
  }
  const int64_t heads = rows.num_value_heads;
  delta_gates(rows.decays + r * heads, rows.betas + r * heads, call.a.row<const float>(t),
              call.b.row<const float>(t), call.a_log.row<const float>(0), call.dt_bias.row<const float>(0),
              heads);
}

/// products[0..V) = k.S and products[V..2V) = q.S of the block S; `key` holds k and then q.
HWY_INLINE void multiply_keys(const float* S, const float* key, int64_t key_dim, StateVector* products) {
  const StateTag d;
  sum_over_keys<2 * kStateVectors>(key_dim, products, [&](int64_t i, StateVector* partials) HWY_ATTR {
    const auto k = hn::Set(d, key[i]), q = hn::Set(d, key[key_dim + i]);
    for (int v = 0; v < kStateVectors; ++v) {
      const auto s = hn::Load(d, S + i * kStateColumns + v * kStateLanes);
      partials[v] = hn::MulAdd(k, s, partials[v]);
      partials[kStateVectors + v] = hn::MulAdd(q, s, partials[kStateVectors + v]);
    }
  });
}

/// S = fma(k, u, g * S), and the products of the next row's k and q with the new S.
HWY_INLINE void update_and_multiply(float* S, const float* key, const float* next_key, int64_t key_dim,
                                    float decay, const StateVector* u, StateVector* products) {
  const StateTag d;
  const auto g = hn::Set(d, decay);
  sum_over_keys<2 * kStateVectors>(key_dim, products, [&](int64_t i, StateVector* partials) HWY_ATTR {
    const auto k = hn::Set(d, key[i]);
    const auto next_k = hn::Set(d, next_key[i]), next_q = hn::Set(d, next_key[key_dim + i]);
    for (int v = 0; v < kStateVectors; ++v) {
      float* at = S + i * kStateColumns + v * kStateLanes;
      const auto s = hn::MulAdd(k, u[v], hn::Mul(g, hn::Load(d, at)));
      hn::Store(s, d, at);
      partials[v] = hn::MulAdd(next_k, s, partials[v]);
      partials[kStateVectors + v] = hn::MulAdd(next_q, s, partials[kStateVectors + v]);
    }
  });
}

/// S = fma(k, u, g * S).
HWY_INLINE void update(float* S, const float* key, int64_t key_dim, float decay, const StateVector* u) {
  const StateTag d;
  const auto g = hn::Set(d, decay);
  for (int64_t i = 0; i < key_dim; ++i) {
    for (int v = 0; v < kStateVectors; ++v) {
      float* at = S + i * kStateColumns + v * kStateLanes;
      hn::Store(hn::MulAdd(hn::Set(d, key[i]), u[v], hn::Mul(g, hn::Load(d, at))), d, at);
    }
  }
}

/// All rows of a block. Per row and vector of the matrix: one load, one store, one product, three fused ones.
void delta_block(const DeltaBlock& call, float* S) {
  const StateTag d;
  const StateBlock& block = call.block;
  const int64_t Dk = call.key_dim;
  if (block.is_start) {
    clear_block(Dk, S);
  } else {
    load_block(block.matrix, call.value_dim, Dk, block.num_columns, S);
  }
  StateVector products[2 * kStateVectors];
  multiply_keys(S, call.keys, Dk, products);
  for (int64_t r = 0; r < block.num_rows; ++r) {
    const float decay = call.decays[r * call.gate_stride];
    const auto g = hn::Set(d, decay), beta = hn::Set(d, call.betas[r * call.gate_stride]);
    const auto qk = hn::Set(d, call.products[r * call.product_stride]);
    StateVector u[kStateVectors], out[kStateVectors];
    load_columns(call.v + r * call.v_stride, block.num_columns, u);
    for (int v = 0; v < kStateVectors; ++v) {
      u[v] = hn::Mul(beta, hn::NegMulAdd(g, products[v], u[v]));
      out[v] = hn::MulAdd(qk, u[v], hn::Mul(g, products[kStateVectors + v]));
    }
    store_columns(out, block.num_columns, call.out + r * call.out_stride);
    const float* key = call.keys + r * 2 * Dk;
    if (r + 1 < block.num_rows) {
      update_and_multiply(S, key, key + 2 * Dk, Dk, decay, u, products);
    } else {
      update(S, key, Dk, decay, u);
    }
    if (r + 1 == block.num_stored) store_block(S, call.value_dim, Dk, block.num_columns, block.matrix);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

#include "ops/cpu/split.h"

namespace tensorfold::cpu {

void gated_delta(CpuContext& cpu, const GatedDeltaCall& call) {
  const auto prepare_row = TF_ISA_FUNCTION(cpu.isa, prepare_delta_row);
  const auto run_block = TF_ISA_FUNCTION(cpu.isa, delta_block);
  const int64_t block_columns = TF_ISA_FUNCTION(cpu.isa, state_block_columns)();
  const RecurrentShape& shape = call.states->shape;
  const int64_t Dk = shape.key_dim, Dv = shape.value_dim;
  const Workspace::Frame frame(cpu.workspace);
  DeltaRows rows{.key_dim = Dk, .num_key_heads = call.k.dim(1) / Dk, .num_value_heads = shape.num_heads};
  const int64_t heads_per_key = rows.num_value_heads / rows.num_key_heads;
  rows.keys = cpu.workspace.take<float>(rows.num_key_heads * kStateChunkRows * 2 * Dk);
  rows.products = cpu.workspace.take<float>(kStateChunkRows * rows.num_key_heads);
  rows.decays = cpu.workspace.take<float>(kStateChunkRows * rows.num_value_heads);
  rows.betas = cpu.workspace.take<float>(kStateChunkRows * rows.num_value_heads);
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(Dk)));
  int64_t chunk = 0;  // the chunk's first row
  const auto prepare = [&](int64_t first, int64_t count) {
    chunk = first;
    const int64_t work = 4 * rows.num_key_heads * Dk + 16 * rows.num_value_heads;
    for_row_blocks(cpu.pool, count, work, [&](int64_t r) { prepare_row(call, first + r, rows, r, scale); });
  };
  for_state_blocks(cpu, *call.states, call.rows, block_columns, prepare,
                   [&](const StateBlock& block, float* S) {
                     const int64_t t = block.first_row, r = t - chunk, key_head = block.head / heads_per_key;
                     const int64_t column = block.head * Dv + block.first_column;
                     run_block({.block = block,
                                .key_dim = Dk,
                                .value_dim = Dv,
                                .keys = rows.key(key_head, r),
                                .products = rows.products + r * rows.num_key_heads + key_head,
                                .decays = rows.decays + r * rows.num_value_heads + block.head,
                                .betas = rows.betas + r * rows.num_value_heads + block.head,
                                .product_stride = rows.num_key_heads,
                                .gate_stride = rows.num_value_heads,
                                .v = call.v.row<const float>(t) + column,
                                .v_stride = call.v.row_stride,
                                .out = call.out.row<float>(t) + column,
                                .out_stride = call.out.row_stride},
                               S);
                   });
}

}  // namespace tensorfold::cpu
#endif
