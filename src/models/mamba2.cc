// See mamba2.h.
#include "models/mamba2.h"

namespace tensorfold {

RecurrentShape Mamba2Shape::state() const {
  return {.conv_channels = conv_channels(),
          .conv_taps = conv_taps,
          .num_heads = num_heads,
          .key_dim = state_size,
          .value_dim = head_dim,
          .num_gates = num_heads};
}

Mamba2Scratch::Mamba2Scratch(Arena& arena, const Mamba2Shape& shape, DType activation_dtype, int64_t num_rows)
    : projected(arena.array(DType::kF32, {num_rows, shape.projected_size()})),
      mixed(arena.array(DType::kF32, {num_rows, shape.conv_channels()})),
      read(arena.array(DType::kF32, {num_rows, shape.inner_size()})),
      normed(arena.array(activation_dtype, {num_rows, shape.inner_size()})) {}

void Mamba2::forward(const BlockPass& pass, const Lease& weights, const RecurrentStates& states,
                     const Mamba2Scratch& s) const {
  const int64_t inner = shape.inner_size(), channels = shape.conv_channels();
  const LinearCall in[] = {{.out = s.projected, .weight = weights[in_proj]}};
  pass.ops.linear(pass.x, in);
  const Inputs inputs = {.xbc = s.projected.columns(inner, channels),
                         .dt = s.projected.columns(inner + channels, shape.num_heads)};
  keep_drafted(pass, states, 0, inputs.xbc);
  keep_drafted(pass, states, channels, inputs.dt);
  advance(pass.ops, pass.rows, inputs, weights, states, s);
  pass.ops.gated_rms_norm({.out = s.normed,
                           .x = s.read,
                           .gate = s.projected.columns(0, inner),
                           .weight = weights[norm],
                           .group_size = inner / shape.num_groups,
                           .eps = norm_eps,
                           .order = GatedRmsNormCall::Order::kGateThenNorm});
  const LinearCall out[] = {{.out = pass.h, .weight = weights[out_proj], .accumulate = true}};
  pass.ops.linear(s.normed, out);
}

void Mamba2::commit(const CommitPass& pass, const Lease& weights, const RecurrentStates& states,
                    const Mamba2Scratch& s) const {
  const int64_t channels = shape.conv_channels();
  const View kept = states.drafted.rows(0, pass.accepted.num_rows());
  advance(pass.ops, pass.accepted,
          {.xbc = kept.columns(0, channels), .dt = kept.columns(channels, shape.num_heads)}, weights, states,
          s);
}

void Mamba2::advance(Ops& ops, const RowBatch& rows, const Inputs& inputs, const Lease& weights,
                     const RecurrentStates& states, const Mamba2Scratch& s) const {
  const int64_t inner = shape.inner_size(), bc = shape.group_state_size();
  ops.causal_conv({.out = s.mixed,
                   .x = inputs.xbc,
                   .weight = weights[conv],
                   .bias = conv_bias ? weights[conv_bias] : View(),
                   .states = &states,
                   .rows = rows});
  ops.mamba2({.out = s.read,
              .x = s.mixed.columns(0, inner),
              .b = s.mixed.columns(inner, bc),
              .c = s.mixed.columns(inner + bc, bc),
              .dt = inputs.dt,
              .a_log = weights[a_log],
              .d = weights[d],
              .dt_bias = weights[dt_bias],
              .dt_min = dt_min,
              .dt_max = dt_max,
              .states = &states,
              .rows = rows});
}

Mamba2 declare_mamba2(WeightTable& table, int layer, const Mamba2Declaration& declaration) {
  const Mamba2Shape& shape = declaration.shape;
  const std::string module = declaration.module + ".", conv_bias = module + "conv1d.bias";
  const int64_t E = declaration.hidden_size, inner = shape.inner_size(), channels = shape.conv_channels();
  Mamba2 m;
  m.in_proj = table.linear(layer, {module + "in_proj", shape.projected_size(), E, declaration.has_bias});
  m.conv = table.convolution(layer, module + "conv1d.weight", channels, shape.conv_taps);
  if (declaration.has_conv_bias) {
    m.conv_bias = table.vector(layer, conv_bias, channels);
  } else {
    table.expect_absent(conv_bias, "use_conv_bias = false");
  }
  m.a_log = table.vector(layer, module + "A_log", shape.num_heads);
  m.d = table.vector(layer, module + "D", shape.num_heads);
  m.dt_bias = table.vector(layer, module + "dt_bias", shape.num_heads);
  m.norm = table.vector(layer, module + "norm.weight", inner);
  m.out_proj = table.linear(layer, {module + "out_proj", E, inner, declaration.has_bias});
  m.shape = shape;
  m.norm_eps = declaration.norm_eps;
  return m;
}

}  // namespace tensorfold
