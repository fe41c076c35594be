// Mamba-2, the recurrent mixer of Nemotron-H (Dao & Gu 2024, arXiv:2405.21060): one projection, a short
// convolution, the state-space recurrence, a norm after the gate. Facts: specs/nemotron.md §4.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "base/arena.h"
#include "memory/weight_table.h"
#include "models/layers.h"
#include "ops/ops.h"

namespace tensorfold {

struct Mamba2Shape {
  int64_t num_heads = 0;  ///< Hm.
  int64_t head_dim = 0;   ///< P.
  /// G, a divisor of Hm: the heads of a group share B and C, and its channels are normed together.
  int64_t num_groups = 0;
  int64_t state_size = 0;  ///< N.
  int64_t conv_taps = 0;   ///< 2 or more.

  int64_t inner_size() const { return num_heads * head_dim; }
  int64_t group_state_size() const { return num_groups * state_size; }
  int64_t conv_channels() const { return inner_size() + 2 * group_state_size(); }
  int64_t projected_size() const { return inner_size() + conv_channels() + num_heads; }

  /// What a layer keeps of a sequence.
  RecurrentShape state() const;
};

struct Mamba2Scratch {
  View projected;  ///< [T, Hm*P + channels + Hm] f32: gate, then x, B and C, then the steps.
  View mixed;      ///< [T, channels] f32: x, B and C after the convolution.
  View read;       ///< [T, Hm*P] f32: what the recurrence reads from the state.
  View normed;     ///< [T, Hm*P] activation dtype.

  Mamba2Scratch(Arena& arena, const Mamba2Shape& shape, DType activation_dtype, int64_t num_rows);
};

struct Mamba2 {
  LinearId in_proj, out_proj;
  VectorId conv;       ///< [taps, channels].
  VectorId conv_bias;  ///< [channels], or none.
  VectorId a_log;      ///< [Hm].
  VectorId d;          ///< [Hm].
  VectorId dt_bias;    ///< [Hm].
  VectorId norm;       ///< [Hm*P].
  Mamba2Shape shape;
  float norm_eps = 0;
  float dt_min = 0;  ///< `time_step_limit`.
  float dt_max = std::numeric_limits<float>::infinity();

  /// Advances the rows' states and adds the output to pass.h.
  void forward(const BlockPass& pass, const Lease& weights, const RecurrentStates& states,
               const Mamba2Scratch& s) const;

  /// Advances the states by accepted drafted rows: the same two operations on the inputs that forward() kept.
  void commit(const CommitPass& pass, const Lease& weights, const RecurrentStates& states,
              const Mamba2Scratch& s) const;

 private:
  /// What a row feeds the state with.
  struct Inputs {
    View xbc;  ///< [T, channels] f32, before the convolution.
    View dt;   ///< [T, Hm] f32.
  };
  void advance(Ops& ops, const RowBatch& rows, const Inputs& inputs, const Lease& weights,
               const RecurrentStates& states, const Mamba2Scratch& s) const;
};

struct Mamba2Declaration {
  std::string module;  ///< "layers.3.mixer".
  int64_t hidden_size = 0;
  Mamba2Shape shape;
  bool has_bias = false;       ///< On in_proj and out_proj.
  bool has_conv_bias = false;  ///< On the convolution.
  float norm_eps = 0;
};

Mamba2 declare_mamba2(WeightTable& table, int layer, const Mamba2Declaration& declaration);

}  // namespace tensorfold
