// Gated DeltaNet, the recurrent mixer of the Qwen hybrids (Yang et al. 2024, arXiv:2412.06464): projections,
// a short convolution, the delta rule, a gated norm for each head. Facts: specs/qwen.md §4.6 and §5.
#pragma once

#include <cstdint>
#include <string>

#include "base/arena.h"
#include "memory/weight_table.h"
#include "models/layers.h"
#include "ops/ops.h"

namespace tensorfold {

struct GatedDeltaShape {
  int64_t num_key_heads = 0;    ///< Hk, of queries and keys.
  int64_t num_value_heads = 0;  ///< Hv, a multiple of Hk.
  int64_t key_head_dim = 0;     ///< Dk.
  int64_t value_head_dim = 0;   ///< Dv.
  int64_t conv_taps = 0;        ///< 2 or more.

  int64_t key_size() const { return num_key_heads * key_head_dim; }
  int64_t value_size() const { return num_value_heads * value_head_dim; }
  int64_t conv_channels() const { return 2 * key_size() + value_size(); }

  /// What a layer keeps of a sequence.
  RecurrentShape state() const;
};

struct GatedDeltaScratch {
  View qkv;     ///< [T, 2*Hk*Dk + Hv*Dv] f32: queries, keys and values as projected.
  View mixed;   ///< The same after the convolution.
  View z;       ///< [T, Hv*Dv] f32: the gate of the norm.
  View b, a;    ///< [T, Hv] f32: strength of writing, decay.
  View read;    ///< [T, Hv*Dv] f32: what the rule reads from the state.
  View normed;  ///< [T, Hv*Dv] activation dtype.

  GatedDeltaScratch(Arena& arena, const GatedDeltaShape& shape, DType activation_dtype, int64_t num_rows);
};

struct GatedDeltaNet {
  LinearId q_proj, k_proj, v_proj, z_proj, b_proj, a_proj, out_proj;
  VectorId conv;     ///< [taps, channels].
  VectorId a_log;    ///< [Hv].
  VectorId dt_bias;  ///< [Hv].
  VectorId norm;     ///< [Dv], of every head.
  GatedDeltaShape shape;
  float norm_eps = 0;

  /// Advances the rows' states and adds the output to pass.h.
  void forward(const BlockPass& pass, const Lease& weights, const RecurrentStates& states,
               const GatedDeltaScratch& s) const;

  /// Advances the states by accepted drafted rows: the same two operations on the inputs that forward() kept.
  void commit(const CommitPass& pass, const Lease& weights, const RecurrentStates& states,
              const GatedDeltaScratch& s) const;

 private:
  /// What a row feeds the state with.
  struct Inputs {
    View qkv;  ///< [T, 2*Hk*Dk + Hv*Dv] f32, before the convolution.
    View a;    ///< [T, Hv] f32.
    View b;    ///< [T, Hv] f32.
  };
  void advance(Ops& ops, const RowBatch& rows, const Inputs& inputs, const Lease& weights,
               const RecurrentStates& states, const GatedDeltaScratch& s) const;
};

struct GatedDeltaDeclaration {
  std::string module;  ///< "layers.3.linear_attn".
  int64_t hidden_size = 0;
  GatedDeltaShape shape;
  float norm_eps = 0;
  /// The projections are in_proj_qkvz and in_proj_ba, whose rows take turns by key head, instead of
  /// in_proj_qkv, _z, _b and _a.
  bool is_fused = false;
};

GatedDeltaNet declare_gated_delta_net(WeightTable& table, int layer,
                                      const GatedDeltaDeclaration& declaration);

}  // namespace tensorfold
