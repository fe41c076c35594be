// mamba2 of the cpu backend. The step and the decay of each row and head are prepared once; then a block of
// columns of a head's matrix stays in L1 for all rows, and each row passes over it once.
#include "ops/cpu/isa_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/mamba2.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/mamba2.h"
#include "ops/cpu/state_block-inl.h"
#include "ops/cpu/state_split.h"

#ifndef TENSORFOLD_OPS_CPU_MAMBA2_TYPES_
#define TENSORFOLD_OPS_CPU_MAMBA2_TYPES_
namespace tensorfold::cpu {

/// What one block reads and writes, from its first row on; strides are elements from row to row.
struct MambaBlock {
  StateBlock block;
  int64_t key_dim = 0, value_dim = 0;
  const float *b = nullptr, *c = nullptr;  ///< Of the head's group.
  int64_t b_stride = 0, c_stride = 0;
  const float *steps = nullptr, *decays = nullptr;  ///< Of the head.
  int64_t gate_stride = 0;
  float skip = 0.0f;         ///< D of the head.
  const float* x = nullptr;  ///< At the block's first column, as `out`.
  int64_t x_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};

}  // namespace tensorfold::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {

/// Step and decay of every head of row t.
void prepare_mamba_row(const Mamba2Call& call, int64_t t, float* steps, float* decays, int64_t num_heads) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const float *dt = call.dt.row<const float>(t), *dt_bias = call.dt_bias.row<const float>(0);
  const float* a_log = call.a_log.row<const float>(0);
  const auto min = hn::Set(d, call.dt_min), max = hn::Set(d, call.dt_max);
  int64_t h = 0;
  for (; h + lanes <= num_heads; h += lanes) {
    const auto raw = simd_softplus(d, hn::Add(hn::LoadU(d, dt + h), hn::LoadU(d, dt_bias + h)));
    const auto raised = hn::IfThenElse(hn::Lt(raw, min), min, raw);
    const auto step = hn::IfThenElse(hn::Gt(raised, max), max, raised);
    hn::StoreU(step, d, steps + h);
    hn::StoreU(simd_decay(d, hn::LoadU(d, a_log + h), step), d, decays + h);
  }
  for (; h < num_heads; ++h) {
    const float raw = softplus_f32(dt[h] + dt_bias[h]);
    const float raised = raw < call.dt_min ? call.dt_min : raw;
    steps[h] = raised > call.dt_max ? call.dt_max : raised;
    decays[h] = decay(a_log[h], steps[h]);
  }
}

/// S = fma(b, scaled_x, g * S) and sums = c.S of the new S.
HWY_INLINE void update_and_read(float* S, const float* b, const float* c, int64_t key_dim, float decay,
                                const StateVector* scaled_x, StateVector* sums) {
  const StateTag d;
  const auto g = hn::Set(d, decay);
  sum_over_keys<kStateVectors>(key_dim, sums, [&](int64_t n, StateVector* partials) HWY_ATTR {
    const auto input = hn::Set(d, b[n]), output = hn::Set(d, c[n]);
    for (int v = 0; v < kStateVectors; ++v) {
      float* at = S + n * kStateColumns + v * kStateLanes;
      const auto s = hn::MulAdd(input, scaled_x[v], hn::Mul(g, hn::Load(d, at)));
      hn::Store(s, d, at);
      partials[v] = hn::MulAdd(output, s, partials[v]);
    }
  });
}

/// All rows of a block. Per row and vector of the matrix: one load, one store, one product, two fused ones.
void mamba_block(const MambaBlock& call, float* S) {
  const StateTag d;
  const StateBlock& block = call.block;
  const int64_t N = call.key_dim;
  if (block.is_start) {
    clear_block(N, S);
  } else {
    load_block(block.matrix, call.value_dim, N, block.num_columns, S);
  }
  for (int64_t r = 0; r < block.num_rows; ++r) {
    StateVector x[kStateVectors], scaled[kStateVectors], out[kStateVectors];
    load_columns(call.x + r * call.x_stride, block.num_columns, x);
    for (int v = 0; v < kStateVectors; ++v)
      scaled[v] = hn::Mul(hn::Set(d, call.steps[r * call.gate_stride]), x[v]);
    update_and_read(S, call.b + r * call.b_stride, call.c + r * call.c_stride, N,
                    call.decays[r * call.gate_stride], scaled, out);
    for (int v = 0; v < kStateVectors; ++v) out[v] = hn::MulAdd(hn::Set(d, call.skip), x[v], out[v]);
    store_columns(out, block.num_columns, call.out + r * call.out_stride);
    if (r + 1 == block.num_stored) store_block(S, call.value_dim, N, block.num_columns, block.matrix);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "ops/cpu/split.h"

namespace tensorfold::cpu {

void mamba2(CpuContext& cpu, const Mamba2Call& call) {
  const auto prepare_row = TF_ISA_FUNCTION(cpu.isa, prepare_mamba_row);
  const auto run_block = TF_ISA_FUNCTION(cpu.isa, mamba_block);
  const int64_t block_columns = TF_ISA_FUNCTION(cpu.isa, state_block_columns)();
  const RecurrentShape& shape = call.states->shape;
  const int64_t N = shape.key_dim, P = shape.value_dim, num_heads = shape.num_heads;
  const int64_t heads_per_group = num_heads / (call.b.dim(1) / N);
  const Workspace::Frame frame(cpu.workspace);
  float* steps = cpu.workspace.take<float>(kStateChunkRows * num_heads);
  float* decays = cpu.workspace.take<float>(kStateChunkRows * num_heads);
  int64_t chunk = 0;  // the chunk's first row
  const auto prepare = [&](int64_t first, int64_t count) {
    chunk = first;
    for_row_blocks(cpu.pool, count, 16 * num_heads, [&](int64_t r) {
      prepare_row(call, first + r, steps + r * num_heads, decays + r * num_heads, num_heads);
    });
  };
  for_state_blocks(
      cpu, *call.states, call.rows, block_columns, prepare, [&](const StateBlock& block, float* S) {
        const int64_t t = block.first_row, gate = (t - chunk) * num_heads + block.head;
        const int64_t group = block.head / heads_per_group, column = block.head * P + block.first_column;
        run_block({.block = block,
                   .key_dim = N,
                   .value_dim = P,
                   .b = call.b.row<const float>(t) + group * N,
                   .c = call.c.row<const float>(t) + group * N,
                   .b_stride = call.b.row_stride,
                   .c_stride = call.c.row_stride,
                   .steps = steps + gate,
                   .decays = decays + gate,
                   .gate_stride = num_heads,
                   .skip = call.d.row<const float>(0)[block.head],
                   .x = call.x.row<const float>(t) + column,
                   .x_stride = call.x.row_stride,
                   .out = call.out.row<float>(t) + column,
                   .out_stride = call.out.row_stride},
                  S);
      });
}

}  // namespace tensorfold::cpu
#endif
